"""Puzzles as pictures in a page: tokens become inline SVG, drawn with the page's own colours."""

import math
from typing import Any

import numpy as np

from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN
from dataset.kinds import KINDS
from dataset.kinds.board import BoardLook, plain_colours

_MAX_SIDE = 64


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


def look_of(kind: str | None, grid: np.ndarray) -> BoardLook:
    """Return the look of a kind, named as in files; of any other, tokens are colours."""
    if kind and kind in KINDS:
        return KINDS.load(kind).board(grid.shape[-1])
    return plain_colours(256)


def svg(
    look: BoardLook,
    grid: np.ndarray,
    *,
    label: str,
    given: np.ndarray | None = None,
    wrong: np.ndarray | None = None,
    width_share: float = 1.0,
) -> str:
    """Return a grid of tokens as SVG.

    Args:
        grid: integers [h, w].
        label: what it is, for people who do not see it; escaped already.
        given: bool [h, w], cells that the puzzle gives.
        wrong: bool [h, w], cells to mark.
        width_share: of its place in the page, 0 to 1.
    """
    height, width = grid.shape
    marked = "" if wrong is None else _cells(wrong, 'class="wrong"')
    if look.cells == "written":
        thick = _lines("thick", height, width, look.box) if look.box else ""
        layers = [marked, _texts(look, grid, given), _lines("thin", height, width), thick]
    elif look.cells == "filled":
        # What stands once lies above the marks: it stays whole.
        ends = _fills(look, grid, once=True) + _letters(look, grid)
        layers = [_fills(look, grid), marked, ends]
    else:
        # Light in dark: on every colour one of the two is seen.
        edge = "" if wrong is None else _cells(wrong, 'class="edge"')
        layers = [_fills(look, grid), _lines("cells", height, width), edge, marked]
    narrow = "" if width_share == 1 else f' style="width:{100 * width_share:.0f}%"'
    return (
        f'<svg class="grid {look.cells}" viewBox="-0.1 -0.1 {width + 0.2} {height + 0.2}" '
        f'role="img" aria-label="{label}"{narrow}>'
        f'<rect class="ground" width="{width}" height="{height}"/>{"".join(layers)}'
        f'<rect class="frame" width="{width}" height="{height}"/></svg>'
    )


def _texts(look: BoardLook, grid: np.ndarray, given: np.ndarray | None) -> str:
    texts = []
    for (row, column), token in np.ndenumerate(grid):
        if token != look.open and token in look:
            bold = ' class="given"' if given is not None and given[row, column] else ""
            digit = look.token(int(token)).text
            texts.append(f'<text x="{column + 0.5}" y="{row + 0.72}"{bold}>{digit}</text>')
    return "".join(texts)


def _fills(look: BoardLook, grid: np.ndarray, once: bool = False) -> str:
    """Return the cells of each token, in its colour, which the page's own may replace by name."""
    named, found = look.cells == "filled", set(np.unique(grid).tolist())
    return "".join(
        _cells(grid == one.token, f'class="{one.name}" ' * named + f'fill="{one.fill}"')
        for one in look.tokens
        if one.token in found and one.once == once and not (named and one.token == look.open)
    )


def _letters(look: BoardLook, grid: np.ndarray) -> str:
    letters = {one.token: one.letter for one in look.tokens if one.letter}
    return "".join(
        f'<text x="{column + 0.5}" y="{row + 0.78}">{letters[token]}</text>'
        for (row, column), token in np.ndenumerate(grid)
        if token in letters
    )


def _lines(name: str, height: int, width: int, box: tuple[int, int] = (1, 1)) -> str:
    lines = "".join(f"M{x} 0V{height}" for x in range(box[1], width, box[1]))
    lines += "".join(f"M0 {y}H{width}" for y in range(box[0], height, box[0]))
    return f'<path class="{name}" d="{lines}"/>' if lines else ""


def _cells(where: np.ndarray, look: str) -> str:
    """Return one path over all cells that are true, bool [h, w], run by run."""
    runs = []
    for row, cells in enumerate(where):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], cells, [False])).astype(np.int8)))
        for start, end in edges.reshape(-1, 2).tolist():
            runs.append(f"M{start} {row}h{end - start}v1h-{end - start}z")
    return f'<path {look} d="{"".join(runs)}"/>' if runs else ""
