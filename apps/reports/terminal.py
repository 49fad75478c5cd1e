"""Boards as text, in colour where the terminal has it."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np

from apps.reports.boards import Board, arc_panels
from dataset.format.schema import ARC_PALETTE
from dataset.maze import rules as maze
from dataset.sudoku.rules import BOX_SHAPES
from evaluation.puzzles import ARC, MAZE, SUDOKU, Kind

Block = tuple[str, list[str]]
"""A title, which may be empty, and lines of equal length."""

_ESCAPES = re.compile("\x1b\\[[0-9;]*m")
_BOLD, _BLUE, _RED, _DIM = "1", "34", "1;31", "2"


def as_text(board: Board, *, colour: bool) -> str:
    """Return question and answer side by side; wrong cells have `!` before them, or are red."""
    return side_by_side(_BLOCKS[board.puzzle.kind](board, colour))


def grid_lines(grid: np.ndarray, marked: np.ndarray) -> list[str]:
    """Draw a Sudoku with its boxes, '.' where empty and '!' before the cells that are marked."""
    pairs = zip(marked.flat, grid.flat, strict=True)
    cells = [f"{'!' if is_marked else ' '}{digit or '.'}" for is_marked, digit in pairs]
    return _boxed(cells, len(grid))


def side_by_side(blocks: Sequence[Block]) -> str:
    """Write blocks next to each other, each under its title."""
    padded = []
    has_titles = any(title for title, _ in blocks)
    for title, lines in blocks:
        lines = [title, *lines] if has_titles else lines
        width = max(map(visible, lines), default=0)
        padded.append(([line + " " * (width - visible(line)) for line in lines], " " * width))
    blank = [paper for _, paper in padded]
    rows = zip_longest(*(lines for lines, _ in padded))
    filled = (
        "    ".join(each if each is not None else blank[i] for i, each in enumerate(row))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in filled)


def visible(line: str) -> int:
    """Return how many columns a line takes."""
    return len(_ESCAPES.sub("", line))


def arc_lines(colours: np.ndarray, marked: np.ndarray, *, colour: bool) -> list[str]:
    """Draw a grid of ARC colours: digits, `.` for 0; or two columns of its colour for each cell."""
    lines = []
    for row, flags in zip(colours.tolist(), marked.tolist(), strict=True):
        cells = zip(row, flags, strict=True)
        if colour:
            lines.append("".join(_tile(number, is_marked) for number, is_marked in cells))
        else:
            lines.append(
                "".join(f"{'!' if flag else ' '}{number or '.'}" for number, flag in cells)
            )
    return lines or ["(empty)"]


def _tile(number: int, is_marked: bool) -> str:
    red, green, blue = bytes.fromhex(ARC_PALETTE[number][1:])
    ink = "97" if red + green + blue < 380 else "30"
    return f"\x1b[48;2;{red};{green};{blue};{ink}m{'><' if is_marked else '  '}\x1b[0m"


def _sudoku(board: Board, colour: bool) -> list[Block]:
    question, answer, wrong = board.puzzle.question, board.answer, board.wrong
    if not colour:
        nothing = np.zeros(question.shape, bool)
        return [("", grid_lines(question, nothing)), ("", grid_lines(answer, wrong))]
    given = [_painted(f" {digit or '.'}", _BOLD if digit else _DIM) for digit in question.flat]
    cells = []
    for place in np.ndindex(question.shape):
        style = _RED if wrong[place] else _BOLD if question[place] else _BLUE
        cells.append(_painted(f" {answer[place] or '.'}", style))
    return [("", _boxed(each, len(question), lines=True)) for each in (given, cells)]


def _boxed(cells: Sequence[str], size: int, *, lines: bool = False) -> list[str]:
    """Draw the frame of the boxes around cells of two columns each; with lines, or in ASCII."""
    box_rows, box_columns = BOX_SHAPES[size]
    dash, bar = ("─", "│") if lines else ("-", "|")
    part, boxes = dash * (2 * box_columns + 1), size // box_columns

    def rule(corners: str) -> str:
        left, middle, right = corners if lines else "+++"
        return left + middle.join([part] * boxes) + right

    drawn = []
    for row in range(size):
        if row % box_rows == 0:
            drawn.append(rule("├┼┤" if row else "┌┬┐"))
        own = cells[row * size : (row + 1) * size]
        parts = ("".join(own[left : left + box_columns]) for left in range(0, size, box_columns))
        drawn.append(f"{bar}{f' {bar}'.join(parts)} {bar}")
    return [*drawn, rule("└┴┘")]


def _maze(board: Board, colour: bool) -> list[Block]:
    question, answer, wrong = board.puzzle.question, board.answer, board.wrong
    nothing = np.zeros(question.shape, bool)
    return [
        ("", list(_maze_lines(question, nothing, colour))),
        ("", list(_maze_lines(answer, wrong, colour))),
    ]


def _maze_lines(grid: np.ndarray, marked: np.ndarray, colour: bool) -> Iterator[str]:
    styles = {maze.WALL: "48;5;244", maze.START: "42;30", maze.GOAL: "41;97", maze.PATH: "44;97"}
    for row, flags in zip(grid, marked, strict=True):
        text = maze.tokens_to_text(row)
        if colour:
            yield "".join(
                _painted("> " if flag else "  ", "43;30" if flag else styles.get(int(token), "0"))
                for token, flag in zip(row, flags, strict=True)
            )
        else:
            yield "".join("!" if flag else c for c, flag in zip(text, flags, strict=True))


def _arc(board: Board, colour: bool) -> list[Block]:
    panels = arc_panels(board)
    return [
        (panel.title, arc_lines(panel.colours, panel.marked, colour=colour)) for panel in panels
    ]


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"


_BLOCKS: dict[Kind, Callable[[Board, bool], list[Block]]] = {
    SUDOKU: _sudoku,
    MAZE: _maze,
    ARC: _arc,
}
