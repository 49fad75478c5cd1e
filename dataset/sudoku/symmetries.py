"""Symmetries of Sudokus, and random images of puzzles under them.

Augmentation j of puzzle i depends only on (seed, i, j), not on chunks, nor on the number of puzzles
or augmentations.
"""

from functools import cache
from itertools import chain, permutations, product
from math import factorial

import numpy as np

from dataset.dihedral import view_cells
from dataset.kinds.base import Views
from dataset.sudoku.rules import BOX_SHAPES, EMPTY_TOKEN, grid_size
from runtime.progress import bar
from runtime.streams import Stream, random_words

_ROWS_PER_CHUNK = 2048  # The index arrays of a chunk (1.3 MB each) fit the processor's cache.


class SudokuSymmetries(Views):
    """The symmetries of one size of Sudoku.

    They permute digits, rows in a band, bands, columns in a stack and stacks, and they transpose.
    The old position of the new cell [i, j] is row_part[r, i] + column_part[c, j]. The second half
    of both tables is for transposed grids; size 6 has none, because its boxes are not square.

    Attributes:
        number: the number of symmetries, 2**40.2 at size 9.
        num_moves: the number of ways to move the cells.
        tokens: uint8 [size!, size + 2], the new token for each; only digits change.
    """

    def __init__(self, size: int) -> None:
        box_rows, box_columns = BOX_SHAPES[size]
        rows = _line_orders(size // box_rows, box_rows)
        columns = _line_orders(size // box_columns, box_columns)
        self._num_rows, self._num_columns = len(rows), len(columns)
        self.row_part, self.column_part = size * rows, columns
        self._is_square = box_rows == box_columns
        if self._is_square:
            self.row_part = np.concatenate([self.row_part, rows])
            self.column_part = np.concatenate([self.column_part, size * columns])
        digits = range(EMPTY_TOKEN + 1, EMPTY_TOKEN + 1 + size)
        permuted = chain.from_iterable(permutations(digits))
        self.tokens = np.empty((factorial(size), EMPTY_TOKEN + 1 + size), dtype=np.uint8)
        self.tokens[:, : EMPTY_TOKEN + 1] = np.arange(EMPTY_TOKEN + 1)
        self.tokens[:, EMPTY_TOKEN + 1 :] = np.fromiter(permuted, np.uint8).reshape(-1, size)
        self.num_moves = len(self.row_part) * len(columns)
        self.number = self.num_moves * len(self.tokens)
        self._size = size

    def cells(self, moves: np.ndarray | None = None) -> np.ndarray:
        """Return the old position of each cell, intp [N, cells]; `moves`: int64 [N] (None: all)."""
        moves = np.arange(self.num_moves) if moves is None else moves
        rest, column = np.divmod(moves, self._num_columns)
        half = rest // self._num_rows
        rows, columns = self.row_part[rest], self.column_part[half * self._num_columns + column]
        return (rows[:, :, None] + columns[:, None, :]).reshape(len(moves), -1)

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        moves, digits = np.divmod(views, len(self.tokens))
        return self.cells(moves), self.tokens[digits]

    def turns(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Choose a dihedral view and a permutation of digits for each of N puzzles.

        `words` are random, uint64 [2, N]. Returns (cells, tokens) as `moves`, but int32.
        """
        moves, digits = (words >> np.uint64(1)).astype(np.int64)
        turned = view_cells(self._size)
        if not self._is_square:  # Boxes stay boxes only if rows stay rows.
            turned = turned[[0, 2, 4, 5]]
        cells = turned[moves % len(turned)].astype(np.int32)
        return cells, self.tokens[digits % len(self.tokens)].astype(np.int32)


sudoku_symmetries = cache(SudokuSymmetries)


def _line_orders(num_groups: int, group_size: int) -> np.ndarray:
    """Return all orders of rows (or columns) that keep bands (stacks) together, [orders, lines]."""
    inner = list(permutations(range(group_size)))
    lines = np.arange(num_groups * group_size).reshape(num_groups, group_size)
    orders = [
        [lines[group, list(order)] for group, order in zip(groups, within, strict=True)]
        for groups in permutations(range(num_groups))
        for within in product(inner, repeat=num_groups)
    ]
    return np.array(orders, dtype=np.intp).reshape(len(orders), -1)


def augment_sudoku(
    questions: np.ndarray, answers: np.ndarray, num_aug: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each puzzle followed by `num_aug` random symmetric images; some may be equal.

    Args:
        questions, answers: tokens, uint8 [N, cells].
    Returns:
        (questions, answers), uint8 [N * (1 + num_aug), cells] each.
    """
    num_puzzles, cells = questions.shape
    originals = np.stack([questions, answers])
    results = np.empty((2, num_puzzles, 1 + num_aug, cells), dtype=np.uint8)
    results[:, :, 0] = originals
    if num_aug:
        symmetries = sudoku_symmetries(grid_size(cells))
        step = max(1, _ROWS_PER_CHUNK // num_aug)
        for start in bar(range(0, num_puzzles, step), "augment", "chunks"):
            stop = min(start + step, num_puzzles)
            counters = [(0, 0, i, 0) for i in range(start, stop)]
            words = [random_words(seed, Stream.AUGMENTATION, each, num_aug) for each in counters]
            numbers = (np.concatenate(words) % np.uint64(symmetries.number)).astype(np.int64)
            boards = np.repeat(originals[:, start:stop], num_aug, axis=1)
            images = symmetries.apply(numbers, *boards)
            results[:, start:stop, 1:] = np.reshape(images, (2, stop - start, num_aug, cells))
    inputs, labels = results.reshape(2, -1, cells)
    return inputs, labels
