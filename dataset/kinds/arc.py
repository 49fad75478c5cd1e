"""The kind `arc`: grids of colours on a canvas, and reading ARC tasks as puzzles."""

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path

import numpy as np

from dataset.arc.augmentation import IDENTITY, augment_grid, parse_identifier, undo_grid
from dataset.arc.tasks import Task, crop_grids, encode_canvas, parse_task
from dataset.dihedral import INVERSE_VIEWS, dihedral_view
from dataset.format.files import read_json
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_PALETTE, ARC_VOCAB_SIZE
from dataset.kinds.base import BoardLook, Kind, Puzzle, Verdict, colour_tokens
from runtime.errors import DatasetError
from runtime.text import many


class ArcKind(Kind):
    """ARC grids. An answer is right if its cropped grid equals the target's, as in the votes."""

    name = "ARC"
    rating = "rating"
    is_published = True
    is_named = True

    def vocab_size(self, size: int) -> int:
        return ARC_VOCAB_SIZE

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        return isqrt(seq_len) ** 2 == seq_len and vocab_size <= ARC_VOCAB_SIZE

    def board(self, size: int) -> BoardLook:
        return BoardLook(tuple(colour_tokens(ARC_PALETTE, ARC_FIRST_COLOUR_TOKEN)), canvas=True)

    def seen(
        self, puzzle: Puzzle, grid: np.ndarray, values: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the grid of colours cut out of its canvas, with the augmentation undone."""
        view, colours = 0, IDENTITY
        if puzzle.name:
            _, view, colours = parse_identifier(puzzle.name)
        found, (row, column) = cropped(puzzle.question, grid), _corner(puzzle.question)
        if values is None:
            return undo_grid(found, view, colours) + ARC_FIRST_COLOUR_TOKEN
        height, width = found.shape
        return dihedral_view(
            values[row : row + height, column : column + width], INVERSE_VIEWS[view]
        )

    def answer_sizes(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the number of cells of each grid."""
        return {"grid_cells": (labels >= ARC_FIRST_COLOUR_TOKEN).sum(axis=1)}

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark the cells that differ from their label; without a target, mark nothing."""
        if target is None:
            return np.zeros(answer.shape, bool)
        return (target > 0) & (answer != target)

    def changed(self, question: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Mark the cells that differ inside the grids; ignore the canvas around them."""
        changed, (row, column) = np.zeros(after.shape, bool), _corner(question)
        for canvas in (before, after):
            height, width = cropped(question, canvas).shape
            grid = slice(row, row + height), slice(column, column + width)
            changed[grid] = before[grid] != after[grid]
        return changed

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        given = cropped(question, answer)
        shape = f"a grid of {given.shape[0]} x {given.shape[1]} cells"
        if target is None:
            return Verdict(None, f"{shape}; the right one is unknown")
        if np.array_equal(given, cropped(question, target)):
            return Verdict(True, f"{shape}, the right one")
        differ = int(self.wrong(question, answer, target).sum())
        return Verdict(False, f"{shape}, not the right one: it differs in {many(differ, 'cell')}")


ARC = ArcKind()


def cropped(question: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    """Return the grid of colours, uint8 [h, w], at the corner of the question's grid on a canvas.

    In training data this corner may be anywhere.
    """
    row, column = _corner(question)
    moved = np.zeros_like(canvas)
    there = canvas[row:, column:]
    moved[: there.shape[0], : there.shape[1]] = there
    return crop_grids(moved.reshape(1, -1))[0]


def _corner(question: np.ndarray) -> tuple[int, int]:
    """Return the row and the column of the top left cell of the question's grid."""
    row, column = (int((question > 0).any(axis).argmax()) for axis in (1, 0))
    return row, column


def arc_puzzles(task: Task, identifiers: Sequence[str] | None) -> list[Puzzle]:
    """Return the test inputs of a task as puzzles.

    Args:
        identifiers: names of the model's puzzles; None if it has no puzzle embedding.
    Raises:
        DatasetError: the task is not among them.
    """
    puzzles = [
        Puzzle(
            ARC,
            ARC.to_grid(encode_canvas(question)),
            None if output is None else ARC.to_grid(encode_canvas(output)),
            name=task.name,
        )
        for question, output in task.test
    ]
    if identifiers is None:
        return puzzles
    known = [as_known(puzzle, identifiers) for puzzle in puzzles]
    if None in known:
        raise DatasetError(
            f"{task.source}: the model has not seen task {task.name} in training, and can only"
            " solve tasks for which it learned a puzzle embedding"
        )
    return [puzzle for puzzle in known if puzzle is not None]


def task_of(name: str) -> str | None:
    """Return the task of the name of an identifier; None if it is malformed."""
    try:
        return parse_identifier(name)[0]
    except ValueError:
        return None


def as_known(puzzle: Puzzle, identifiers: Sequence[str]) -> Puzzle | None:
    """Return an ARC puzzle as a model with these names has seen its task: with its own identifier,
    or else in the first augmentation of the task; None if the task is not among them.
    """
    if puzzle.name in identifiers:
        return replace(puzzle, identifier=identifiers.index(puzzle.name))
    task = task_of(puzzle.name) or puzzle.name
    known = (row for row, name in enumerate(identifiers) if name.startswith(task))
    row = next((row for row in known if task_of(identifiers[row]) == task), None)
    if row is None:
        return None
    name = identifiers[row]
    _, view, colours = parse_identifier(name)

    def augmented(grid: np.ndarray) -> np.ndarray:
        original = ARC.seen(puzzle, grid) - ARC_FIRST_COLOUR_TOKEN
        shown = augment_grid(original, view, colours)
        return ARC.to_grid(encode_canvas(shown, len(puzzle.question)))

    target = None if puzzle.target is None else augmented(puzzle.target)
    question = augmented(puzzle.question)
    return replace(puzzle, question=question, target=target, identifier=row, name=name)


def read_arc_task(path: Path) -> Task:
    """Read a task from TASK.json; test outputs may be missing.

    Raises:
        DatasetError: the file is not a valid task; the message names the place.
    """
    content = read_json(path)
    return parse_task(path.stem, content, str(path), is_evaluation=True, outputs_may_lack=True)
