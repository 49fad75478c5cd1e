"""What belongs to a kind of puzzle: who judges its answers, and who builds its data."""

import shlex
from collections.abc import Callable, Mapping
from math import isqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from dataset.format.schema import ARC_VOCAB_SIZE
from dataset.maze import rules as maze
from dataset.sudoku.rules import BOX_SHAPES, EMPTY_TOKEN, find_conflict
from runtime.registry import Registry, imported
from runtime.schema import Schema, StrictBool


def kinds_with(seq_len: int, vocab_size: int) -> list[str]:
    """Return the kinds of puzzles with so many cells and tokens: "sudoku", "maze", "arc".

    At 4 x 4 cells and 6 tokens there are two.
    """
    side = isqrt(seq_len)
    if side * side != seq_len:
        return []
    fits = {
        "sudoku": side in BOX_SHAPES and vocab_size == side + EMPTY_TOKEN + 1,
        "maze": vocab_size == maze.VOCAB_SIZE,
        "arc": vocab_size == ARC_VOCAB_SIZE,
    }
    return [kind for kind, is_one in fits.items() if is_one]


def kinds_that_fit(kinds: list[str], inputs: np.ndarray, labels: np.ndarray) -> list[str]:
    """Return those of the kinds "sudoku" and "maze" that all of these puzzles may be.

    Args:
        inputs, labels: integers [N, seq_len] tokens, labels 0 or less where ignored.
    """
    kept = (labels == inputs) | (labels <= 0)
    on_path = (labels == maze.PATH) & (inputs == maze.FREE)
    fits = {
        "sudoku": all(map(_is_sudoku, inputs, labels)),
        "maze": (maze.are_mazes(inputs) & (kept | on_path).all(axis=1)).all(),
    }
    return [kind for kind in kinds if fits[kind]]


def _is_sudoku(question: np.ndarray, answer: np.ndarray) -> bool:
    """Whether an answer leaves no cell empty, keeps the clues and repeats no digit."""
    known = np.where(answer > 0, answer, question).astype(np.int64)
    kept = (question == EMPTY_TOKEN) | (question == known)
    side = isqrt(question.size)
    conflict = find_conflict((known - EMPTY_TOKEN).reshape(side, side))
    return bool(kept.all() and (answer != EMPTY_TOKEN).all()) and conflict is None


class EvaluatorConfig(Schema):
    """An evaluator and its settings; without any it stands in a configuration as its name."""

    name: str

    @model_serializer(mode="wrap")
    def _as_name(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.name if self == type(self)(name=self.name) else handler(self)


class ArcEvaluatorConfig(EvaluatorConfig):
    keeps_votes: StrictBool = False
    """true: the votes of earlier evaluations of the same process count, too"""


EVALUATORS = Registry("evaluator", EvaluatorConfig)
"""Behind each name stands a class that takes its settings and a `PuzzleDataset`, and is an
`evaluation.evaluators.Evaluator`. Its schema is an `EvaluatorConfig`.
"""
for _name, _schema, _class in (
    ("arc", ArcEvaluatorConfig, "ArcEvaluator"),
    ("sudoku", EvaluatorConfig, "SudokuEvaluator"),
    ("maze", EvaluatorConfig, "MazeEvaluator"),
):
    EVALUATORS.add(_name, _schema, imported("evaluation.evaluators", _class))


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


def _with_flags(module: str) -> Callable[[], Callable[[FlagsConfig, Path], None]]:
    def load() -> Callable[[FlagsConfig, Path], None]:
        main = imported(module, "main")()

        def build(config: FlagsConfig, folder: Path) -> None:
            if code := main([*shlex.split(config.flags), "--output-dir", str(folder)]):
                raise SystemExit(code)

        return build

    return load


for _name in ("sudoku", "maze", "arc"):
    BUILDERS.add(_name, FlagsConfig, _with_flags(f"dataset.build_{_name}_dataset"))
