"""Boards as text for the terminal, with or without colour."""

import re
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from apps.reports.boards import Board, Panel, panels_of
from apps.reports.drawing import is_dark
from dataset.kinds.base import BoardLook

_ESCAPES = re.compile("\x1b\\[[0-9;]*m")
_BOLD, _BLUE, _RED, _DIM, _MARKED = "1", "34", "1;31", "2", "43;30"


def as_text(board: Board, *, colour: bool) -> str:
    """Return question and answer side by side; wrong cells are red, or have a `!`."""
    panels = panels_of(board)
    has_titles = any(panel.title for panel in panels)
    columns = [[p.title] * has_titles + grid_lines(board.look, p, colour) for p in panels]
    widths = [max(map(_width, lines)) for lines in columns]
    rows = zip_longest(*columns, fillvalue="")
    return "\n".join(
        "    ".join(c + " " * (w - _width(c)) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _width(line: str) -> int:
    """Return the number of terminal columns of a line."""
    return len(_ESCAPES.sub("", line))


def grid_lines(look: BoardLook, panel: Panel, colour: bool = False) -> list[str]:
    """Return the rows of a grid as text; marked cells are coloured, or have a `!`."""
    cells = np.stack([panel.tokens, panel.marked, panel.given], axis=-1).tolist()
    rows = [[_cell(look, *cell, colour=colour) for cell in row] for row in cells]
    if look.box:
        return _boxed(rows, look.box, lines=colour)
    return ["".join(row) for row in rows] or ["(empty)"]


def _cell(look: BoardLook, token: int, is_marked: int, is_given: int, *, colour: bool) -> str:
    """Return the text of a cell: two columns, one on a filled board without colour."""
    one = look.token(token)
    if not colour:
        mark = "!" if is_marked else " "
        if look.cells == "filled":
            return mark if is_marked else one.text
        return f"{mark}{one.text}"
    if look.cells == "written":
        style = _RED if is_marked else _BOLD if is_given else _BLUE
        style = _DIM if token == look.open and not is_marked else style
        return _painted(f" {one.text}", style)
    if look.cells == "filled" and is_marked:
        return _painted(f">{one.letter or ' '}", _MARKED)
    text = "><" if is_marked else f"{one.letter or ' '} "
    return _painted(text, one.style or _style(one.fill))


def _style(fill: str) -> str:
    """Return the codes of an escape sequence for a cell's colour; "": the terminal's own."""
    if not fill:
        return "0"
    red, green, blue = bytes.fromhex(fill[1:])
    return f"48;2;{red};{green};{blue};{97 if is_dark(fill) else 30}"


def _boxed(cells: Sequence[Sequence[str]], box: tuple[int, int], *, lines: bool) -> list[str]:
    """Return the rows of cells, each two columns wide, with frames around the boxes. `lines` draws
    them with box characters instead of ASCII.
    """
    box_rows, box_columns = box
    dash, bar = ("─", "│") if lines else ("-", "|")
    part, size = dash * (2 * box_columns + 1), len(cells[0])

    def rule(corners: str) -> str:
        left, middle, right = corners if lines else "+++"
        return left + middle.join([part] * (size // box_columns)) + right

    drawn = []
    for row, own in enumerate(cells):
        if row % box_rows == 0:
            drawn.append(rule("├┼┤" if row else "┌┬┐"))
        parts = ("".join(own[left : left + box_columns]) for left in range(0, size, box_columns))
        drawn.append(f"{bar}{f' {bar}'.join(parts)} {bar}")
    return [*drawn, rule("└┴┘")]


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"
