"""Kinds of puzzles whose answers can be judged by their rules: those that have an evaluator."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator


def _plain_name(value: object) -> object:
    """Take the published form, {name: arc@ARC}, for the name."""
    if isinstance(value, Mapping) and value.keys() == {"name"}:
        value = value["name"]
    return "arc" if value == "arc@ARC" else value


EvaluatorName = Annotated[Literal["arc", "sudoku", "maze"], BeforeValidator(_plain_name)]
