"""Symmetries of Sudokus, and random images of puzzles under them.

Augmentation j of puzzle i depends on (seed, i, j) alone: not on how the work is cut into chunks,
nor on how many puzzles or augmentations are built with it.
"""

from collections.abc import Callable
from functools import cache
from itertools import chain, permutations, product
from math import factorial
from typing import NamedTuple

import numpy as np

from dataset.sudoku.rules import BOX_SHAPES, EMPTY_TOKEN, grid_size
from runtime.streams import Stream, random_words

_ROWS_PER_CHUNK = 2048  # keeps a chunk's index arrays (1.3 MB each) in the processor's cache


class SudokuSymmetries(NamedTuple):
    """The symmetries of one size of Sudoku; each has a number below `num_symmetries`.

    A new cell [i, j] comes from the old flat cell row_part[r, i] + column_part[c, j]: orders of
    rows and columns that keep bands and stacks together, and, in the second half of both tables,
    the same after a transposition. Size 6, with boxes of 2 rows by 3 columns, has no second half.

    Args:
        row_part: intp [halves * row orders, size].
        column_part: intp [halves * column orders, size].
        tokens: uint8 [size!, size + 2], the new token of each: pad and empty stay, digits permute.
        halves: 2 with transposition, 1 without.
    """

    row_part: np.ndarray
    column_part: np.ndarray
    tokens: np.ndarray
    halves: int

    @property
    def num_moves(self) -> int:
        """How many ways there are to move the cells."""
        return len(self.row_part) * len(self.column_part) // self.halves

    @property
    def num_symmetries(self) -> int:
        """Ways to move the cells and permute the digits: 2**40.2 at size 9."""
        return self.num_moves * len(self.tokens)

    def sources(self, moves: np.ndarray | None = None) -> np.ndarray:
        """Return intp [N, cells], the old cell of each new one, for int64 [N] moves (None: all)."""
        if moves is None:
            moves = np.arange(self.num_moves)
        num_rows = len(self.row_part) // self.halves
        num_columns = len(self.column_part) // self.halves
        rest, column = np.divmod(moves, num_columns)
        half, row = np.divmod(rest, num_rows)
        rows = self.row_part[half * num_rows + row]
        columns = self.column_part[half * num_columns + column]
        return (rows[:, :, None] + columns[:, None, :]).reshape(len(moves), -1)

    def apply(self, numbers: np.ndarray, *boards: np.ndarray) -> list[np.ndarray]:
        """Map each row of uint8 [N, cells] boards of tokens under its symmetry, of int64 [N]."""
        moves, digits = np.divmod(numbers, len(self.tokens))
        row = np.arange(len(numbers))[:, None]
        sources = self.sources(moves)
        sources += row * sources.shape[1]
        tokens = self.tokens[digits]
        return [tokens.take(board.take(sources) + row * tokens.shape[1]) for board in boards]


@cache
def sudoku_symmetries(size: int) -> SudokuSymmetries:
    """Number the symmetries of Sudokus of `size` 4, 6 or 9."""
    box_rows, box_columns = BOX_SHAPES[size]
    rows = _line_orders(size // box_rows, box_rows)
    columns = _line_orders(size // box_columns, box_columns)
    row_part, column_part = size * rows, columns
    halves = 2 if box_rows == box_columns else 1
    if halves == 2:
        row_part = np.concatenate([row_part, rows])
        column_part = np.concatenate([column_part, size * columns])
    digits = np.arange(EMPTY_TOKEN + 1, EMPTY_TOKEN + 1 + size, dtype=np.uint8)
    tokens = np.empty((factorial(size), EMPTY_TOKEN + 1 + size), dtype=np.uint8)
    tokens[:, : EMPTY_TOKEN + 1] = np.arange(EMPTY_TOKEN + 1)
    permuted = chain.from_iterable(permutations(digits.tolist()))
    tokens[:, EMPTY_TOKEN + 1 :] = np.fromiter(permuted, np.uint8).reshape(-1, size)
    return SudokuSymmetries(row_part, column_part, tokens, halves)


def _line_orders(num_groups: int, group_size: int) -> np.ndarray:
    """All orders of rows that keep bands together (or columns and stacks); intp [orders, lines]."""
    inner = list(permutations(range(group_size)))
    lines = np.arange(num_groups * group_size).reshape(num_groups, group_size)
    orders = [
        [lines[group, list(order)] for group, order in zip(groups, within, strict=True)]
        for groups in permutations(range(num_groups))
        for within in product(inner, repeat=num_groups)
    ]
    return np.array(orders, dtype=np.intp).reshape(len(orders), -1)


def augment_sudoku(
    questions: np.ndarray,
    answers: np.ndarray,
    num_aug: int,
    seed: int,
    advance: Callable[[int], object] = lambda rows: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Follow each puzzle with `num_aug` random symmetric images of it.

    The images are drawn independently, so some may be equal.

    Args:
        questions: uint8 [N, cells] tokens, as `answers`.
        advance: called with the number of rows made since the last call.
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
        for start in range(0, num_puzzles, step):
            stop = min(start + step, num_puzzles)
            counters = [(0, 0, i, 0) for i in range(start, stop)]
            words = [random_words(seed, Stream.AUGMENTATION, each, num_aug) for each in counters]
            numbers = np.concatenate(words) % np.uint64(symmetries.num_symmetries)
            boards = np.repeat(originals[:, start:stop], num_aug, axis=1)
            images = symmetries.apply(numbers.astype(np.int64), *boards)
            results[:, start:stop, 1:] = np.reshape(images, (2, stop - start, num_aug, cells))
            advance((stop - start) * (1 + num_aug))
    inputs, labels = results.reshape(2, -1, cells)
    return inputs, labels
