"""The names of what belongs to a kind of puzzles: its object, rules, evaluator and builder."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from runtime.errors import ConfigError
from runtime.registry import Registry, imported
from runtime.schema import Schema


class KindConfig(Schema):
    """A kind of puzzles; it has no settings."""


class KindRegistry(Registry):
    """The kinds of puzzles. Behind each name stands an instance of `dataset.kinds.base.Kind`, whose
    `name` in lower case is the name here.
    """

    def load(self, name: str) -> Any:
        """Import and return the kind of this name.

        Raises:
            ConfigError: it cannot be imported, is no instance, or has another name.
        """
        kind = super().load(name)
        if isinstance(kind, type) or getattr(kind, "name", "").lower() != name:
            expected = "register an instance of your class, under its name in lower case"
            raise ConfigError(f"the kind of puzzles {name!r} is {kind!r}; {expected}")
        return kind


KINDS = KindRegistry("kind of puzzles", KindConfig)
for _name in ("sudoku", "maze", "arc"):
    KINDS.add(_name, KindConfig, imported(f"dataset.kinds.{_name}", _name.upper()))


class EvaluatorConfig(Schema):
    """An evaluator and its settings; without any it stands in a configuration as its name."""

    name: str

    @model_serializer(mode="wrap")
    def _as_name(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.name if self == type(self)(name=self.name) else handler(self)


EVALUATORS = Registry("evaluator", EvaluatorConfig)
"""Behind each name stands a class that takes its settings and a `PuzzleDataset`, and is an
`evaluation.evaluators.base.Evaluator`. Its schema is an `EvaluatorConfig`.
"""
for _name in ("arc", "sudoku", "maze"):
    _class = f"{_name.capitalize()}Evaluator"
    EVALUATORS.add(_name, EvaluatorConfig, imported(f"evaluation.evaluators.{_name}", _class))


def _with_settings(value: object) -> object:
    """Take a name for an evaluator without settings, and the published name for ours."""
    if isinstance(value, str):
        value = {"name": value}
    if isinstance(value, Mapping) and value.get("name") == "arc@ARC":
        value = {**value, "name": "arc"}
    return value


AnyEvaluator = Annotated[EvaluatorConfig, EVALUATORS, BeforeValidator(_with_settings)]


def _require_closed_quotes(flags: str) -> str:
    shlex.split(flags)
    return flags


class BuilderConfig(Schema):
    """Who builds a data set, and how."""

    name: str


class FlagsConfig(BuilderConfig):
    """One of our builders, which has a command line of its own: dataset/build_NAME_dataset.py."""

    flags: Annotated[str, AfterValidator(_require_closed_quotes)] = ""
    """its flags, but for --output-dir"""


BUILDERS = Registry("builder", BuilderConfig)
"""Behind each name stands a function that takes its settings and the folder to write, a Path. Its
schema is a `BuilderConfig`.
"""
AnyBuilder = Annotated[BuilderConfig, BUILDERS]


def _run_builder(config: FlagsConfig, folder: Path) -> None:
    main = imported(f"dataset.build_{config.name}_dataset", "main")()
    if code := main([*shlex.split(config.flags), "--output-dir", str(folder)]):
        raise SystemExit(code)


for _name in ("sudoku", "maze", "arc"):
    BUILDERS.add(_name, FlagsConfig, lambda: _run_builder)

FIELDS_WRITTEN_BY = {
    "actions": "dataset/build_maze_dataset.py writes it: build the set again",
    "pixels": "dataset/build_maze_dataset.py --pixels writes it, dataset/build_arc_dataset.py "
    "without --materialize declares it: build the set again",
}
"""How the label fields of our builders come into a data set, by their names."""
