"""Boards as pictures: a puzzle with a model's answer, its certainty, and its wrong cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from apps.reports.drawing import Picture, is_dark, mixed
from dataset.kinds.base import BoardLook, Puzzle

PAPER, INK, FAINT, LINES = "#ffffff", "#16202c", "#8a96a3", "#c5ccd4"
RING = "#fefefe"  # Around wrong cells of coloured boards; stays light in dark mode.

ANSWER, WRONG, NEW, GUESS = "#1659c7", "#c81e1e", "#e58a00", "#7a2fc2"
GIVEN_FILL, WRONG_FILL, NEW_FILL, GUESS_FILL = "#edf0f4", "#ffd9d6", "#fff0c7", "#e9dcfb"

_SIDE = 440  # Approximate side of a board in pixels.
_GAP, _TITLE = 24, 24


@dataclass(frozen=True)
class Board:
    """A puzzle with an answer.

    Attributes:
        answer: a grid of the puzzle's kind (`Kind.to_grid`).
        certainty: probability of each cell's token, float [size, size]; None: not known.
        changed: cells that the last step changed, bool [size, size]; None: not known.
        candidates: the tokens that each cell may still hold, bool [cells, V]; None: not known.
        guessed: index of the guessed cell, counted row by row; -1: none.
        reached: cells that a wave has reached, bool [size, size]; None: not known.
        marks: whether wrong cells are marked; False for an unanswered puzzle.
    """

    puzzle: Puzzle
    answer: np.ndarray
    certainty: np.ndarray | None = None
    changed: np.ndarray | None = None
    candidates: np.ndarray | None = None
    guessed: int = -1
    reached: np.ndarray | None = None
    marks: bool = True

    @property
    def look(self) -> BoardLook:
        return self.puzzle.kind.board(len(self.puzzle.question))

    @property
    def wrong(self) -> np.ndarray:
        """Wrong cells of the answer, bool [size, size]; undecided cells are not wrong."""
        wrong = self.puzzle.kind.wrong(self.puzzle.question, self.answer, self.puzzle.target)
        if not self.marks:
            return np.zeros_like(wrong)
        if self.candidates is None:
            return wrong
        is_open = self.candidates.sum(-1).reshape(wrong.shape) > 1
        return wrong & ~is_open


def asked(puzzle: Puzzle) -> Board:
    """Return the board of an unanswered puzzle."""
    return Board(puzzle, puzzle.question, marks=False)


def board_of_step(
    puzzle: Puzzle,
    before: np.ndarray,
    answer: np.ndarray,
    certainty: np.ndarray | None,
    reached: np.ndarray | None = None,
) -> Board:
    """Return the board of an answer after an ACT step; `before` is the answer before it."""
    changed = puzzle.kind.changed(puzzle.question, before, answer)
    return Board(puzzle, answer, certainty, changed, reached=reached)


def board_of_candidates(
    puzzle: Puzzle, candidates: np.ndarray, guessed: int = -1, before: np.ndarray | None = None
) -> Board:
    """Return a board of candidates, bool [cells, V]. A cell with one candidate shows it, any other
    cell the puzzle's token. `before` are the candidates before the step.
    """
    decided = candidates.sum(-1) == 1
    tokens = np.where(decided, candidates.argmax(-1), puzzle.tokens)
    answer = puzzle.kind.to_grid(tokens)
    changed = None
    if before is not None:
        changed = (candidates != before).any(-1).reshape(answer.shape)
    return Board(puzzle, answer, None, changed, candidates, guessed)


class Panel(NamedTuple):
    """One grid of tokens to draw; all arrays but `candidates` are [h, w].

    Attributes:
        shares: strength of each cell's colour, 0 to 1.
        marked: wrong cells.
        given, changed, guessed, reached: cells that the puzzle gives, that the last step changed,
            that a search guessed, that a wave has reached.
        candidates: bool [h, w, V]; None: not known.
    """

    title: str
    tokens: np.ndarray
    shares: np.ndarray
    marked: np.ndarray
    given: np.ndarray
    changed: np.ndarray
    guessed: np.ndarray
    reached: np.ndarray
    candidates: np.ndarray | None = None


def panel_of(tokens: np.ndarray, title: str = "", **cells: np.ndarray | None) -> Panel:
    """Return a panel; `cells` are fields of Panel, and those that are None get defaults."""
    flags = dict.fromkeys(
        ("marked", "given", "changed", "guessed", "reached"), np.zeros(tokens.shape, bool)
    )
    known = {name: value for name, value in cells.items() if value is not None}
    return Panel(title, tokens, **{"shares": np.ones(tokens.shape), **flags, **known})


def panels_of(board: Board) -> list[Panel]:
    """Return the panels of a board: the input, the answer if there is one, and for canvases the
    right answer if it is known. Only canvases have titles.
    """
    puzzle, look, shape = board.puzzle, board.look, board.answer.shape
    given = puzzle.tokens.reshape(shape) != look.open

    def panel(title: str, grid: np.ndarray, **cells: np.ndarray | None) -> Panel:
        known = {name: value for name, value in cells.items() if value is not None}
        seen = {n: puzzle.kind.seen(puzzle, grid, v) for n, v in {"given": given, **known}.items()}
        return panel_of(puzzle.kind.seen(puzzle, grid), title * look.canvas, **seen)

    panels = [panel("input", puzzle.question)]
    if not board.marks:
        return panels
    certainty, left = board.certainty, board.candidates
    answer = panel(
        "answer",
        board.answer,
        marked=board.wrong,
        changed=board.changed,
        reached=board.reached,
        shares=None if certainty is None else 0.3 + 0.7 * certainty.astype(np.float64),
        guessed=np.arange(given.size).reshape(shape) == board.guessed,
        candidates=None if left is None else left.reshape(*shape, -1),
    )
    if not look.canvas or puzzle.target is None:
        return [*panels, answer]
    right = panel("right answer", puzzle.target)
    if right.tokens.shape != answer.tokens.shape:
        answer = answer._replace(marked=np.ones(answer.tokens.shape, bool))
    return [*panels, answer, right]


def draw(board: Board) -> Picture:
    """Draw the answer of a board; for canvases, all panels side by side. The puzzle alone decides
    their places, so that no step moves them; an answer too large for its place gets smaller cells.
    """
    puzzle, look, panels = board.puzzle, board.look, panels_of(board)
    if look.canvas:
        expected = puzzle.question if puzzle.target is None else puzzle.target
        places = [panel.tokens.shape for panel in panels_of(Board(puzzle, expected))]
        return draw_panels(look, panels, places=places)
    panel = panels[-1]
    panel = panel._replace(tokens=with_unique_tokens(look, panels[0].tokens, panel.tokens))
    size = len(panel.tokens)
    cell, margin = max(6, _SIDE // size), 2 if look.cells == "written" else 0
    side = cell * size + 2 * margin
    picture = Picture(side, side)
    picture.rectangle(0, 0, side, side, PAPER)
    picture.place(draw_cells(look, panel, cell), margin, margin)
    if look.cells != "written":
        picture.frame(0, 0, side, side, 1, FAINT)
    return picture


def with_unique_tokens(look: BoardLook, question: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Return an answer that keeps the puzzle's unique tokens (start and goal of a maze)."""
    once = [each.token for each in look.tokens if each.once]
    return np.where(np.isin(question, once), question, answer) if once else answer


def draw_panels(
    look: BoardLook,
    panels: Sequence[Panel],
    most_cells: int = 0,
    places: Sequence[tuple[int, ...]] = (),
) -> Picture:
    """Draw panels side by side.

    Args:
        most_cells: make the cells so small that this many fit in a row; 0: the largest place fits.
        places: the size of each panel's place in cells; empty: the size of its grid.
    """
    shapes = places or [panel.tokens.shape for panel in panels]
    cell = max(6, min(36, 400 // (most_cells or max(1, *map(max, shapes)))))
    widths = [max(90, cell * width) for _, width in shapes]
    height = max(cell, *(cell * height for height, _ in shapes))
    picture = Picture(sum(widths) + _GAP * (len(shapes) + 1), height + 2 * _TITLE)
    picture.rectangle(0, 0, picture.width, picture.height, PAPER)
    x = float(_GAP)
    for panel, width in zip(panels, widths, strict=False):
        picture.words(x, _TITLE / 2, panel.title, 14, INK, anchor="start")
        if not panel.tokens.size:
            picture.words(x, 1.5 * _TITLE, "no grid", 13, FAINT, anchor="start")
        rows, columns = (max(1, side) for side in panel.tokens.shape)
        side = max(2, min(cell, height // rows, width // columns))
        picture.place(draw_cells(look, panel, side), x, _TITLE)
        x += width + _GAP
    return picture


def draw_cells(look: BoardLook, panel: Panel, cell: int) -> Picture:
    """Draw the cells of a grid with their text and marks; `cell` is the side of one in pixels."""
    height, width = panel.tokens.shape
    picture = Picture(width * cell, height * cell)
    is_coloured = look.cells == "coloured"
    gap, fills = int(is_coloured), []
    if is_coloured:
        # Cells that are drawn smaller need paper below, because the gaps have the colour of lines.
        picture.rectangle(0, 0, width * cell, height * cell, LINES)
        fills = [(-1, PAPER, *at, 1.0) for at in np.argwhere(panel.shares < 1).tolist()]
    for at in np.ndindex(height, width):
        fill = _fill(look, panel, at)
        if is_coloured:
            # A less certain cell is smaller: mixed with paper its colour could look like another.
            fills.append((int(panel.tokens[at]), fill, *at, float(panel.shares[at])))
        elif fill.lower() != PAPER:
            fills.append((0, fill, *at, 1.0))
    for _, fill, row, column, share in sorted(fills):
        side = share * (cell - gap)
        inset = (cell - gap - side) / 2
        picture.rectangle(column * cell + inset, row * cell + inset, side, side, fill)
    if look.cells == "written":
        for at in np.ndindex(height, width):
            _write(picture, look, panel, at, cell)
        _draw_boxes(picture, look.box or (height, width), cell)
        return picture
    # A light frame in a dark one: one of them is visible on every colour.
    line = max(1, cell // (10 if is_coloured else 7))
    frames = [(2 * line, INK), (line, RING)] if is_coloured else [(line, WRONG)]
    for row, column in np.argwhere(panel.marked).tolist():
        for line, fill in frames:
            picture.frame(column * cell, row * cell, cell - gap, cell - gap, line, fill)
    for (row, column), token in np.ndenumerate(panel.tokens):
        if letter := look.token(int(token)).letter:
            middle = (column + 0.5) * cell, (row + 0.5) * cell
            ink = RING if is_dark(_fill(look, panel, (row, column))) else INK
            picture.words(*middle, letter, 0.7 * cell, ink, bold=True)
    return picture


def _fill(look: BoardLook, panel: Panel, at: tuple[int, ...]) -> str:
    """Return the colour of a cell: its token's, unless it was guessed, is wrong, or changed."""
    one = look.token(int(panel.tokens[at]))
    if look.cells == "written":
        if panel.guessed[at]:
            return GUESS_FILL
        if panel.marked[at] and one.token != look.open:
            return WRONG_FILL
        return NEW_FILL if panel.changed[at] else GIVEN_FILL if panel.given[at] else PAPER
    if look.cells == "filled" and one.drawn:
        return mixed(NEW if panel.changed[at] else one.fill, PAPER, float(panel.shares[at]))
    if panel.reached[at] and panel.tokens[at] == look.open:
        return NEW_FILL
    return one.fill or FAINT


def _write(picture: Picture, look: BoardLook, panel: Panel, at: tuple[int, ...], cell: int) -> None:
    """Write the token of a cell, or its candidates in small type."""
    token, (y, x) = int(panel.tokens[at]), (place * cell for place in at)
    middle = x + cell / 2, y + cell / 2
    left = None if panel.candidates is None else np.flatnonzero(panel.candidates[at])
    if token != look.open and (left is None or len(left) < 2):
        given = bool(panel.given[at])
        colour = INK if given else GUESS if panel.guessed[at] else ANSWER
        colour = WRONG if panel.marked[at] else colour
        share = 1.0 if given else float(panel.shares[at])
        shown = mixed(colour, _fill(look, panel, at), share)
        picture.words(*middle, look.token(token).text, 0.58 * cell, shown, bold=given)
    elif left is not None:
        box_rows, box_columns = look.box or (1, len(look.tokens))
        for place, one in enumerate(look.tokens):
            if one.token in left:
                row, column = divmod(place, box_columns)
                spot = x + (column + 0.5) * cell / box_columns, y + (row + 0.5) * cell / box_rows
                picture.words(*spot, one.text, 0.24 * cell, FAINT)
        if not len(left):
            picture.words(*middle, "x", 0.5 * cell, WRONG, bold=True)


def _draw_boxes(picture: Picture, box: tuple[int, int], cell: int) -> None:
    width, height = picture.width, picture.height
    for (rows, columns), line, fill in (((1, 1), 1, LINES), (box, 2, INK)):
        out = line - 1  # Pixels that the line extends beyond the grid.
        for y in range(0, height + 1, rows * cell):
            picture.rectangle(-out, y - out, width + 2 * out, line, fill)
        for x in range(0, width + 1, columns * cell):
            picture.rectangle(x - out, -out, line, height + 2 * out, fill)
