"""Views of a puzzle: images of it under its symmetries, whose answers are turned back exactly.

Imports no torch.
"""

from math import isqrt
from typing import Protocol

import numpy as np

from dataset.dihedral import INVERSE_VIEWS, NUM_VIEWS, dihedral_view
from dataset.sudoku.symmetries import sudoku_symmetries
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError
from runtime.streams import Stream, random_words


class Views(Protocol):
    """The views of one kind of puzzle, numbered; 0 is the puzzle itself.

    Attributes:
        number: how many there are.
    """

    number: int

    def apply(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        """Return each of the boards, uint8 [N, cells] tokens, in its view, int64 [N]."""
        ...

    def undo(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        """Return the boards of which `apply` made these."""
        ...

    def sources(self, views: np.ndarray) -> np.ndarray:
        """Return which cell of the board each cell of a view shows, int64 [N, cells]."""
        ...


class SudokuViews:
    """Digits permuted, rows and columns moved within and with their bands, and transposed."""

    def __init__(self, size: int) -> None:
        self._symmetries = sudoku_symmetries(size)
        self.number = self._symmetries.num_symmetries

    def apply(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        return self._symmetries.apply(views, boards)[0]

    def undo(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        moves, digits = np.divmod(views, len(self._symmetries.tokens))
        old_tokens = self._symmetries.tokens[digits].argsort(1).astype(np.uint8)
        turned_back = np.empty_like(boards)
        tokens = np.take_along_axis(old_tokens, boards, 1)
        np.put_along_axis(turned_back, self._symmetries.sources(moves), tokens, 1)
        return turned_back

    def sources(self, views: np.ndarray) -> np.ndarray:
        return self._symmetries.sources(views // len(self._symmetries.tokens))


class DihedralViews:
    """A square grid turned and mirrored."""

    number = NUM_VIEWS

    def __init__(self, size: int) -> None:
        self._shape = (-1, size, size)

    def apply(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        grids = boards.reshape(self._shape)
        turned = [dihedral_view(grid, view) for grid, view in zip(grids, views, strict=True)]
        return np.stack(turned).reshape(boards.shape)

    def undo(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        return self.apply(np.take(INVERSE_VIEWS, views), boards)

    def sources(self, views: np.ndarray) -> np.ndarray:
        cells = np.arange(self._shape[1] * self._shape[2])
        return self.apply(views, np.tile(cells, (len(views), 1)))


def views_of(dataset: PuzzleDataset) -> Views:
    """Return the views of the puzzles in a data set.

    Raises:
        DatasetError: none are known for its kind.
    """
    cells, vocab = dataset.metadata.seq_len, dataset.metadata.vocab_size
    known = {"sudoku": SudokuViews, "maze": DihedralViews}
    if dataset.kind in known:
        return known[dataset.kind](isqrt(cells))
    raise DatasetError(
        f"{dataset.split_dirs[0]}: {vocab} tokens and {cells} cells: no symmetry of such puzzles "
        "is known (on ARC the votes of evaluators=[arc] do this)"
    )


def draw_views(views: Views, seed: int, rows: np.ndarray, breadth: int) -> np.ndarray:
    """Choose the views of each puzzle's chains, the first of which sees the puzzle itself.

    Args:
        seed: 0 to 2**64 - 1; the views of a row follow from seed and row alone.
        rows: int64 [N], numbers of puzzles.
    Returns:
        int64 [breadth, N]; of at most 8 views each comes once.
    """
    chosen = np.zeros((breadth, len(rows)), np.int64)
    for column, row in enumerate(rows.tolist()):
        words = random_words(seed, Stream.VIEWS, (0, 0, row, 0), max(breadth, NUM_VIEWS))
        if views.number > NUM_VIEWS:
            chosen[1:, column] = words[1:breadth] % np.uint64(views.number)
        else:
            chosen[1:, column] = 1 + words[1 : views.number].argsort(kind="stable")[: breadth - 1]
    return chosen
