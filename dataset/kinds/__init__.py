"""The registries of kinds of puzzles, of evaluators and of builders."""

import shlex
import sys
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
    """The configuration of a kind of puzzles, without settings."""


class KindRegistry(Registry):
    """The kinds of puzzles: instances of `dataset.kinds.base.Kind`, registered under their keys."""

    def load(self, name: str) -> Any:
        """Import and return the kind with this name.

        Raises:
            ConfigError: it cannot be imported, is not an instance, or has another name.
        """
        kind = super().load(name)
        if isinstance(kind, type) or getattr(kind, "key", "") != name:
            expected = (
                "register an instance of your class under its name in lower case, _ for spaces"
            )
            raise ConfigError(f"the kind of puzzles {name!r} is {kind!r}; {expected}")
        return kind


KINDS = KindRegistry("kind of puzzles", KindConfig)
for _name in (
    "sudoku",
    "maze",
    "arc",
    "latin_square",
    "sudoku_16",
    "sudoku_x",
    "futoshiki",
    "kenken",
    "queens",
    "light_up",
    "colouring",
    "mixed",
):
    KINDS.add(_name, KindConfig, imported(f"dataset.kinds.{_name}", _name.upper()))


class EvaluatorConfig(Schema):
    """An evaluator and its settings; without settings, a configuration holds just its name."""

    name: str

    @model_serializer(mode="wrap")
    def _as_name(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.name if self == type(self)(name=self.name) else handler(self)


EVALUATORS = Registry("evaluator", EvaluatorConfig)
"""The subclasses of `evaluation.evaluators.base.Evaluator`; their schemas are `EvaluatorConfig`s.

They are called with their settings and a `PuzzleDataset`.
"""
EVALUATORS.add("arc", EvaluatorConfig, imported("evaluation.evaluators.arc", "ArcEvaluator"))
for _name in ("rules", "sudoku", "maze"):
    _load = imported("evaluation.evaluators.rules", "RulesEvaluator")
    EVALUATORS.add(_name, EvaluatorConfig, _load)


def _with_settings(value: object) -> object:
    """Accept a plain name as an evaluator without settings, and `arc@ARC` as `arc`."""
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
    """The builder of a data set and its settings."""

    name: str


class FlagsConfig(BuilderConfig):
    """One of our builders, with the command line dataset/build_NAME_dataset.py."""

    flags: Annotated[str, AfterValidator(_require_closed_quotes)] = ""
    """flags of its command line, without --output-dir"""


BUILDERS = Registry("builder", BuilderConfig)
"""Functions that are called with their settings, a `BuilderConfig`, and the folder to write."""
AnyBuilder = Annotated[BuilderConfig, BUILDERS]


def _run_builder(config: FlagsConfig, folder: Path) -> None:
    make = imported(f"dataset.build_{config.name}_dataset", "make")()
    sys.stdout.write(make([*shlex.split(config.flags), "--output-dir", str(folder)]))


for _name in ("sudoku", "maze", "arc", "puzzle", "mixed", "pencil_puzzle_bench"):
    BUILDERS.add(_name, FlagsConfig, lambda: _run_builder)

FIELDS_WRITTEN_BY = {
    "actions": "dataset/build_maze_dataset.py writes it: build the set again",
    "answers": "dataset/build_puzzle_dataset.py --answers N writes it: build the set again",
    "arrivals": "dataset/build_maze_dataset.py --closer writes it: build the set again",
    "closer": "dataset/build_maze_dataset.py --closer writes it: build the set again",
    "pixels": "dataset/build_maze_dataset.py --pixels writes it, dataset/build_arc_dataset.py "
    "without --materialize declares it: build the set again",
}
"""How to get each label field of our builders into a data set."""
