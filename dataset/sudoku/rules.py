"""Sudoku of 4x4, 6x6 and 9x9 cells: rules, text, tokens, and the solver.

A grid is an integer array [size, size] of digits 1 to size; 0 is an empty cell. Boxes are 2 rows by
2 columns, 2 by 3, and 3 by 3. Tokens are digit + 1: 1 is an empty cell, 0 is padding.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from math import isqrt
from typing import NamedTuple

import numpy as np

BOX_SHAPES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box, by size of the grid
_CELLS = [size * size for size in BOX_SHAPES]
EMPTY_TOKEN = 1
EMPTY_MARKS = ".0-_*"
"""The characters for an empty cell; x is accepted too if a puzzle has none of them."""
EMPTY_CELL_HELP = f"one of {' '.join(EMPTY_MARKS)} for an empty cell"
DIGIT_OF_BIT = np.frexp(np.arange(2**8 + 1))[1].astype(np.uint8)
"""The digit for a cell's value on a board of `dataset.sudoku.kernels`; 0 for an empty cell."""
_FRAME_WITH_CORNERS = re.compile(r"[-=]*\+[-=+]*")
_FRAME_OR_SPACE = re.compile(r"[\s|=\u2500-\u257f]")


class Layout(NamedTuple):
    """The units of a grid: rows, columns and boxes, numbered 0 to 3 * size - 1 in this order.

    Attributes:
        cell_units: int64 [cells, 3], the row, the column and the box of each cell.
        unit_cells: int64 [3 * size, size], the cells of each unit, ascending.
    """

    size: int
    cell_units: np.ndarray
    unit_cells: np.ndarray


@cache
def layout_of(size: int) -> Layout:
    """Return the layout of size 4, 6 or 9; cells are numbered row by row."""
    box_rows, box_columns = BOX_SHAPES[size]
    row, column = np.divmod(np.arange(size * size), size)
    box = row // box_rows * (size // box_columns) + column // box_columns
    cell_units = np.stack([row, size + column, 2 * size + box], axis=1)
    unit_cells = np.argsort(cell_units.T, axis=1, kind="stable").reshape(3 * size, size)
    return Layout(size, cell_units, unit_cells)


def grid_size(cells: int) -> int:
    """Return the size of a grid from its number of cells; raise ValueError if no grid has it."""
    if cells not in _CELLS:
        accepted = ", ".join(map(str, _CELLS))
        raise ValueError(f"{cells} cells do not form a Sudoku grid; accepted: {accepted}")
    return isqrt(cells)


def parse_puzzle(text: str) -> np.ndarray:
    """Parse a puzzle, row by row; white space and frames of | - + = are skipped.

    An empty cell is one of `. 0 - _ *`, or x if the text has none of these.

    Returns:
        int8 [size, size] digits, 0 for an empty cell.
    Raises:
        ValueError: a wrong character or number of cells, or contradicting clues.
    """
    symbols = _cells_in(text)
    is_marked = any(mark in symbols for mark in EMPTY_MARKS)
    size = isqrt(len(symbols)) if len(symbols) in _CELLS else max(BOX_SHAPES)
    digits = "123456789"[:size]
    for number, symbol in enumerate(symbols, start=1):
        if symbol not in digits + EMPTY_MARKS and (is_marked or symbol not in "xX"):
            accepted = f"in {size}x{size} cells: 1 to {size}, or {EMPTY_CELL_HELP}"
            raise ValueError(f"cell {number} is {symbol!r}; accepted {accepted}")
    size = grid_size(len(symbols))
    cells = [int(symbol) if symbol in digits else 0 for symbol in symbols]
    grid = np.array(cells, dtype=np.int8).reshape(size, size)
    if conflict := find_conflict(grid):
        raise ValueError(conflict)
    return grid


def _cells_in(text: str) -> str:
    """Return the text without white space and frames.

    A dash is an empty cell unless it is part of a frame: dashes joined to a + always are, and lines
    of only dashes are if the number of cells fits no grid with them.
    """
    lines = [_without_frame(line) for line in text.splitlines()]
    cells = "".join(lines)
    if len(cells) in _CELLS:
        return cells
    return "".join(line for line in lines if line.strip("-"))


def _without_frame(line: str) -> str:
    return _FRAME_OR_SPACE.sub("", _FRAME_WITH_CORNERS.sub("", line))


def split_puzzles(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line (from 1) and the text of each puzzle.

    A puzzle has one line, or one line for each row. Frames and empty lines are skipped.
    """
    first, rows = 0, list[str]()
    for number, line in enumerate(lines, start=1):
        cells = _without_frame(line)
        size = len(rows[0]) if rows else len(cells)
        could_be_row = len(cells) == size if rows else size in (*BOX_SHAPES, *_CELLS)
        if not cells or not (cells.strip("-") or could_be_row):
            continue  # Nothing, or the dashes of a frame.
        first = first if rows else number
        rows.append(cells)
        if len(rows) == size or size > max(BOX_SHAPES):
            yield first, "\n".join(rows)
            rows = []
    if any(row.strip("-") for row in rows):
        yield first, "\n".join(rows)


def find_conflict(grid: np.ndarray) -> str | None:
    """Return "digit 5 stands twice in row 3" for the first unit with a repeated digit, or None."""
    layout = layout_of(len(grid))
    digits = np.sort(grid.reshape(-1)[layout.unit_cells], axis=1)
    repeated = (digits[:, 1:] == digits[:, :-1]) & (digits[:, 1:] != 0)
    if not repeated.any():
        return None
    unit, position = np.argwhere(repeated)[0]
    kind = ("row", "column", "box")[unit // layout.size]
    return f"digit {digits[unit, position]} stands twice in {kind} {unit % layout.size + 1}"


def are_valid_solutions(grids: np.ndarray, size: int) -> np.ndarray:
    """Return bool [N]: whether each of [N, size * size] grids has every digit once in each unit."""
    in_range = np.asarray(((grids >= 1) & (grids <= size)).all(axis=1))
    bit_of = np.array([1 << digit for digit in range(size + 1)], dtype=np.int16)
    bits = bit_of[np.where(in_range[:, None], grids, 0)]
    seen = np.bitwise_or.reduce(bits[:, layout_of(size).unit_cells], axis=2)
    return in_range & (seen == (1 << (size + 1)) - 2).all(axis=1)


def solve(puzzle: np.ndarray) -> tuple[np.ndarray | None, int]:
    """Return the first solution of a puzzle, int8 [size, size] or None, and its rating.

    The solver fills in cells with one candidate and digits with one cell left in a unit. When it is
    stuck, it guesses a digit, in ascending order, in the first cell with the fewest candidates. The
    rating is the number of backtracks, guessed digits taken back. Images of a puzzle may differ in
    it. Published data sets count the guesses of the tdoku solver instead: their 20 is about 100.
    """
    solutions, backtracks, answer = _search(puzzle, limit=1)
    return (answer if solutions else None), backtracks


def count_solutions(puzzle: np.ndarray, limit: int = 2) -> int:
    """Count the solutions of a puzzle, integer [size, size], up to `limit`, 1 or more."""
    return _search(puzzle, limit)[0]


def count_plainly(puzzle: np.ndarray, limit: int = 2, most_steps: int = 12_000) -> int | None:
    """Count the solutions of a puzzle up to `limit` without the compiler, which takes seconds to
    start. Return None after `most_steps` placed digits, about a second.

    An exact cover: each digit placed meets four needs, those of its cell and of its three units,
    and the need with the fewest placements left is met next.
    """
    layout, steps, found = layout_of(grid_size(puzzle.size)), 0, 0
    needs = {
        (cell, digit): [(-1, cell), *((unit, digit) for unit in units)]
        for cell, (units, known) in enumerate(
            zip(layout.cell_units.tolist(), puzzle.reshape(-1).tolist(), strict=True)
        )
        for digit in range(1, layout.size + 1)
        if known in (0, digit)
    }
    cover = {need: set[tuple[int, int]]() for each in needs.values() for need in each}
    for placed, met in needs.items():
        for need in met:
            cover[need].add(placed)

    def search(cover: dict[tuple[int, int], set[tuple[int, int]]]) -> None:
        nonlocal steps, found
        if not cover:
            found += 1
            return
        for placed in min(cover.values(), key=len):
            steps += 1
            if found >= limit or steps > most_steps:
                return
            met = needs[placed]
            gone = set().union(*(cover[need] for need in met))
            search({need: left - gone for need, left in cover.items() if need not in met})

    search(cover)
    return found if found >= limit or steps <= most_steps else None


def _search(puzzle: np.ndarray, limit: int) -> tuple[int, int, np.ndarray]:
    # Imported here because it loads the compiler, which takes half a second.
    from dataset.sudoku.kernels import solve_board

    size = grid_size(puzzle.size)
    if find_conflict(puzzle) is not None:
        return 0, 0, puzzle
    clues = (1 << puzzle.reshape(-1).astype(np.int64)) >> 1
    solutions, backtracks, answer = solve_board(clues, layout_of(size), limit)
    return solutions, backtracks, DIGIT_OF_BIT[answer].reshape(size, size).astype(np.int8)
