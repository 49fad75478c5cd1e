"""ARC: a grid of colours on a canvas, as the demonstrations of its task ask for it."""

from math import isqrt

import numpy as np

from dataset.arc.augmentation import IDENTITY, parse_identifier, undo_grid
from dataset.arc.tasks import crop_grids
from dataset.dihedral import INVERSE_VIEWS, dihedral_view
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_PALETTE, ARC_VOCAB_SIZE
from dataset.kinds.base import Kind, Puzzle, Verdict
from dataset.kinds.board import BoardLook, colour_tokens
from dataset.maze.rules import grid_size
from runtime.text import many


class ArcKind(Kind):
    """By the right output, where it is known: as the votes have it, the cropped grids are equal."""

    name = "ARC"

    def vocab_size(self, size: int) -> int:
        return ARC_VOCAB_SIZE

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        return isqrt(seq_len) ** 2 == seq_len and vocab_size == ARC_VOCAB_SIZE

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        size = grid_size(tokens.size)
        if tokens.min() < 0 or tokens.max() >= ARC_VOCAB_SIZE:
            found = f"tokens from {tokens.min()} to {tokens.max()}"
            raise ValueError(f"{found}; accepted: 0 to {ARC_VOCAB_SIZE - 1}")
        return tokens.reshape(size, size).astype(np.int8)

    def board(self, size: int) -> BoardLook:
        return BoardLook(tuple(colour_tokens(ARC_PALETTE, ARC_FIRST_COLOUR_TOKEN)), canvas=True)

    def seen(
        self, puzzle: Puzzle, grid: np.ndarray, values: np.ndarray | None = None
    ) -> np.ndarray:
        """Cut the grid of colours out of its canvas, and undo the augmentation."""
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
        """Return the cells of the grids."""
        return {"grid_cells": (labels >= ARC_FIRST_COLOUR_TOKEN).sum(axis=1)}

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark what differs from the target where that has a label; without one nothing."""
        if target is None:
            return np.zeros(answer.shape, bool)
        return (target > 0) & (answer != target)

    def changed(self, question: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Mark them in the grids alone: nothing is asked of the canvas around these."""
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
            return Verdict(None, f"{shape}; the right one is not known")
        if np.array_equal(given, cropped(question, target)):
            return Verdict(True, f"{shape}, the right one")
        differ = int(self.wrong(question, answer, target).sum())
        return Verdict(False, f"{shape}, not the right one: it differs in {many(differ, 'cell')}")


ARC = ArcKind()


def cropped(question: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    """Return the grid of colours, uint8 [h, w], that lies on a canvas where the question's does: in
    training data that may be anywhere.
    """
    row, column = _corner(question)
    moved = np.zeros_like(canvas)
    there = canvas[row:, column:]
    moved[: there.shape[0], : there.shape[1]] = there
    return crop_grids(moved.reshape(1, -1))[0]


def _corner(question: np.ndarray) -> tuple[int, int]:
    """Return the row and the column at which the question's grid begins."""
    row, column = (int((question > 0).any(axis).argmax()) for axis in (1, 0))
    return row, column
