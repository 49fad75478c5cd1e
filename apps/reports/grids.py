"""Puzzles as pictures in a page: tokens become inline SVG, drawn with the page's own colours."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_PALETTE
from dataset.maze import rules as maze
from dataset.sudoku.rules import BOX_SHAPES, EMPTY_TOKEN

_MAZE_CLASSES = {maze.WALL: "wall", maze.PATH: "path"}
_MAZE_ENDS = {maze.START: "start", maze.GOAL: "goal"}
_MAX_SIDE = 64
# Behind the ten of ARC, for puzzles of another kind.
_MORE_COLOURS = ("#9AA5B1", "#5B2C6F", "#117A65", "#7E5109", "#78281F", "#1B4F72")


def square(tokens: Any) -> np.ndarray | None:
    """Return a list of tokens as a square grid, int64 [h, w]; None where it is none."""
    try:
        cells = np.array(tokens, np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    side = math.isqrt(cells.size)
    if cells.ndim != 1 or side * side != cells.size or not 1 <= side <= _MAX_SIDE:
        return None
    return cells.reshape(side, side)


def colour_grid(rows: Any) -> np.ndarray | None:
    """Return a grid of ARC colours as tokens, int64 [h, w]; None where it is none."""
    try:
        cells = np.array(rows, np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    fits = cells.ndim == 2 and cells.size and max(cells.shape) <= _MAX_SIDE
    return cells + ARC_FIRST_COLOUR_TOKEN if fits else None


def cropped(grid: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Leave out the last rows and columns of a canvas [h, w] where nothing is used, bool [h, w]."""
    height, width = (int(np.flatnonzero(used.any(axis))[-1:].sum()) + 1 for axis in (1, 0))
    return grid[:height, :width]


def svg(
    kind: str | None,
    grid: np.ndarray,
    *,
    label: str,
    given: np.ndarray | None = None,
    wrong: np.ndarray | None = None,
    width_share: float = 1.0,
) -> str:
    """Return a grid of tokens as SVG.

    Args:
        kind: "sudoku", "maze" or "arc"; of anything else tokens are colours.
        grid: integers [h, w].
        label: what it is, for people who do not see it; escaped already.
        given: bool [h, w], cells that the puzzle gives.
        wrong: bool [h, w], cells to mark.
        width_share: of its place in the page, 0 to 1.
    """
    (height, width), ends = grid.shape, ""
    if kind == "sudoku" and height in BOX_SHAPES:
        body = _sudoku(grid, given)
    elif kind == "maze":
        body = _kinds_of_cells(grid, _MAZE_CLASSES)
        # Above the marks: they stay whole.
        ends = _kinds_of_cells(grid, _MAZE_ENDS) + _letters(grid)
    else:
        body = _colours(grid, ARC_FIRST_COLOUR_TOKEN if kind == "arc" else 0)
    marked = "" if wrong is None else _cells(wrong, 'class="wrong"')
    if kind not in ("sudoku", "maze"):
        body += _lines(width, height)
        # Light in dark: on every colour of ARC one of the two is seen, and neither is one of them.
        marked = "" if wrong is None else _cells(wrong, 'class="edge"') + marked
    narrow = "" if width_share == 1 else f' style="width:{100 * width_share:.0f}%"'
    name = kind if kind in ("sudoku", "maze", "arc") else "tokens"
    return (
        f'<svg class="grid {name}" viewBox="-0.1 -0.1 {width + 0.2} {height + 0.2}" role="img" '
        f'aria-label="{label}"{narrow}><rect class="ground" width="{width}" height="{height}"/>'
        f"{marked if kind == 'sudoku' else ''}{body}{'' if kind == 'sudoku' else marked}{ends}"
        f'<rect class="frame" width="{width}" height="{height}"/></svg>'
    )


def _sudoku(grid: np.ndarray, given: np.ndarray | None) -> str:
    side = len(grid)
    box_height, box_width = BOX_SHAPES[side]
    thin = "".join(f"M{i} 0V{side}M0 {i}H{side}" for i in range(1, side))
    thick = "".join(f"M{i} 0V{side}" for i in range(box_width, side, box_width))
    thick += "".join(f"M0 {i}H{side}" for i in range(box_height, side, box_height))
    texts = []
    for (row, column), token in np.ndenumerate(grid):
        if EMPTY_TOKEN < token <= side + EMPTY_TOKEN:
            bold = ' class="given"' if given is not None and given[row, column] else ""
            digit = token - EMPTY_TOKEN
            texts.append(f'<text x="{column + 0.5}" y="{row + 0.72}"{bold}>{digit}</text>')
    return f'{"".join(texts)}<path class="thin" d="{thin}"/><path class="thick" d="{thick}"/>'


def _kinds_of_cells(grid: np.ndarray, classes: Mapping[int, str]) -> str:
    return "".join(_cells(grid == token, f'class="{name}"') for token, name in classes.items())


def _letters(grid: np.ndarray) -> str:
    return "".join(
        f'<text x="{column + 0.5}" y="{row + 0.78}">{maze.CHARACTERS[token - maze.WALL]}</text>'
        for (row, column), token in np.ndenumerate(grid)
        if token in _MAZE_ENDS
    )


def _colours(grid: np.ndarray, first: int) -> str:
    palette = ARC_PALETTE + _MORE_COLOURS
    tokens = [int(token) for token in np.unique(grid) if token >= first]
    return "".join(
        _cells(grid == token, f'fill="{palette[(token - first) % len(palette)]}"')
        for token in tokens
    )


def _lines(width: int, height: int) -> str:
    lines = "".join(f"M{x} 0V{height}" for x in range(1, width))
    lines += "".join(f"M0 {y}H{width}" for y in range(1, height))
    return f'<path class="cells" d="{lines}"/>' if lines else ""


def _cells(where: np.ndarray, look: str) -> str:
    """Return one path over all cells that are true, bool [h, w], run by run."""
    runs = []
    for row, cells in enumerate(where):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], cells, [False])).astype(np.int8)))
        for start, end in _pairs(edges.tolist()):
            runs.append(f"M{start} {row}h{end - start}v1h-{end - start}z")
    return f'<path {look} d="{"".join(runs)}"/>' if runs else ""


def _pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(edges[::2], edges[1::2], strict=True))
