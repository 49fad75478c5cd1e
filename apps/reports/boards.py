"""Drawn boards: a puzzle with what a model answers, how sure it is, and where it is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from apps.reports.drawing import Picture, mixed
from dataset.kinds.board import BoardLook
from evaluation.puzzles import Puzzle

PAPER, INK, FAINT, LINES = "#ffffff", "#16202c", "#8a96a3", "#c5ccd4"
RING = "#fefefe"  # Around wrong cells of coloured boards; not the paper: it stays light.

ANSWER, WRONG, NEW, GUESS = "#1659c7", "#c81e1e", "#e58a00", "#7a2fc2"
GIVEN_FILL, WRONG_FILL, NEW_FILL, GUESS_FILL = "#edf0f4", "#ffd9d6", "#fff0c7", "#e9dcfb"

_SIDE = 440  # Pixels of a board, about.
_GAP, _TITLE = 24, 24


@dataclass(frozen=True)
class Board:
    """A puzzle with an answer.

    Attributes:
        puzzle: what was asked.
        answer: its grid, as `evaluation.puzzles` has it.
        certainty: probability of each cell's token, float [size, size]; None: not known.
        changed: cells that the last step changed, bool [size, size]; None: not known.
        candidates: bool [cells, V], the tokens that a cell may still hold, of a model that deduces.
        guessed: the cell that was guessed, counted row by row; -1: none.
        marks: whether cells that cannot stay are marked; not where nothing was answered yet.
        right: the right answer's grid; where it is given, marked is what differs from it.
    """

    puzzle: Puzzle
    answer: np.ndarray
    certainty: np.ndarray | None = None
    changed: np.ndarray | None = None
    candidates: np.ndarray | None = None
    guessed: int = -1
    marks: bool = True
    right: np.ndarray | None = None

    @property
    def look(self) -> BoardLook:
        return self.puzzle.kind.board(len(self.puzzle.question))

    @property
    def wrong(self) -> np.ndarray:
        """Cells of the answer that cannot stay, bool [size, size]; open ones are not wrong yet."""
        asked = self.puzzle.question, self.answer, self.puzzle.target
        wrong = self.puzzle.kind.wrong(*asked)
        # Of mazes several answers may be right.
        if self.right is not None and not self.puzzle.kind.judge(*asked).solved:
            wrong = self.answer != self.right
        if not self.marks:
            return np.zeros_like(wrong)
        if self.candidates is None:
            return wrong
        is_open = self.candidates.sum(-1).reshape(wrong.shape) > 1
        return wrong & ~is_open


def asked(puzzle: Puzzle) -> Board:
    """Return the board of a puzzle that nobody has answered."""
    return Board(puzzle, puzzle.question, marks=False)


def board_of_candidates(
    puzzle: Puzzle,
    candidates: np.ndarray,
    guessed: int = -1,
    before: np.ndarray | None = None,
    right: np.ndarray | None = None,
) -> Board:
    """Return a board of candidates, bool [cells, V]: a cell with one has its token, an open one the
    puzzle's own; `before` are those of a step before.
    """
    decided = candidates.sum(-1) == 1
    tokens = np.where(decided, candidates.argmax(-1), puzzle.tokens)
    answer = puzzle.kind.to_grid(tokens)
    changed = None
    if before is not None:
        changed = (candidates != before).any(-1).reshape(answer.shape)
    return Board(puzzle, answer, None, changed, candidates, guessed, right=right)


class Panel(NamedTuple):
    """A grid of tokens [h, w] as people look at it, its title, and of each of its cells:

    Attributes:
        shares: how strongly it is drawn, 0 to 1.
        marked: whether it is wrong.
        given, changed, guessed: whether the puzzle gives it, the last step changed it, and it was
            guessed.
        candidates: bool [h, w, V]; None: not known.
    """

    title: str
    tokens: np.ndarray
    shares: np.ndarray
    marked: np.ndarray
    given: np.ndarray
    changed: np.ndarray
    guessed: np.ndarray
    candidates: np.ndarray | None = None


def panels_of(board: Board) -> list[Panel]:
    """Return input, answer and, of a canvas whose right answer is known, that; of a puzzle that
    nobody has answered the input alone. Titles are for canvases only.
    """
    puzzle, look, no = board.puzzle, board.look, np.zeros(board.answer.shape, bool)

    def seen(grid: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return puzzle.kind.seen(puzzle, grid, values)

    def panel(title: str, grid: np.ndarray) -> Panel:
        tokens, nothing = seen(grid), seen(grid, no)
        given = seen(grid, puzzle.tokens.reshape(no.shape) != look.open)
        title = title if look.canvas else ""
        return Panel(title, tokens, np.ones(tokens.shape), nothing, given, nothing, nothing)

    panels = [panel("input", puzzle.question)]
    if not board.marks:
        return panels
    grid, guessed = board.answer, no.copy()
    answer = panel("answer", grid)._replace(marked=seen(grid, board.wrong))
    if board.certainty is not None:
        answer = answer._replace(shares=0.3 + 0.7 * seen(grid, board.certainty.astype(np.float64)))
    if board.changed is not None:
        answer = answer._replace(changed=seen(grid, board.changed))
    if board.candidates is not None:
        guessed.flat[board.guessed] = board.guessed >= 0
        left = seen(grid, board.candidates.reshape(*no.shape, -1))
        answer = answer._replace(guessed=seen(grid, guessed), candidates=left)
    if look.canvas and puzzle.target is not None:
        right = panel("right answer", puzzle.target)
        if right.tokens.shape != answer.tokens.shape:
            answer = answer._replace(marked=np.ones(answer.tokens.shape, bool))
        return [*panels, answer, right]
    return [*panels, answer]


def legend(board: Board) -> list[tuple[str, str]]:
    """Return what the colours of a board with an answer mean."""
    look = board.look
    surer = [] if board.certainty is None else [(FAINT, "paler: less sure")]
    if look.cells == "coloured":
        surer = [(FAINT, "smaller: less sure")] if surer else []
        known = board.puzzle.target is not None
        return [(RING, "ringed: not the right colour")] * known + surer
    wrong = "cannot stay" if board.right is None else "not as in the right answer"
    if look.cells == "filled":
        tokens = [(one.fill, one.name) for one in look.tokens if one.once or one.drawn]
        return [*tokens, (NEW, "changed in this step"), (WRONG, f"framed: {wrong}"), *surer]
    found = [(GIVEN_FILL, "given"), (NEW_FILL, "changed in this step"), (WRONG_FILL, wrong)]
    if board.candidates is not None:
        found += [(GUESS_FILL, "guessed"), (FAINT, "small: candidates")]
    return found + surer


def draw(board: Board) -> Picture:
    """Draw a board; of canvases input, answer and the right answer, if known, side by side, in
    places that depend on the puzzle alone, so that no step moves them: an answer that is larger
    than its place has smaller cells.
    """
    puzzle, look, panels = board.puzzle, board.look, panels_of(board)
    if look.canvas:
        expected = puzzle.question if puzzle.target is None else puzzle.target
        places = [panel.tokens.shape for panel in panels_of(Board(puzzle, expected))]
        return draw_panels(look, panels, places=places)
    panel = panels[-1]
    if once := [each.token for each in look.tokens if each.once]:
        given = panels[0].tokens
        panel = panel._replace(tokens=np.where(np.isin(given, once), given, panel.tokens))
    size = len(panel.tokens)
    cell, margin = max(6, _SIDE // size), 2 if look.cells == "written" else 0
    side = cell * size + 2 * margin
    picture = Picture(side, side)
    picture.rectangle(0, 0, side, side, PAPER)
    _draw_cells(picture, look, panel, margin, margin, cell)
    if look.cells != "written":
        picture.frame(0, 0, side, side, 1, FAINT)
    return picture


def draw_panels(
    look: BoardLook,
    panels: Sequence[Panel],
    most_cells: int = 0,
    places: Sequence[tuple[int, ...]] = (),
) -> Picture:
    """Draw grids side by side, each cell as large as fits `most_cells` in a row; 0: as many as the
    largest has of the `places`, which are of the size of the grids unless they are given.
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
        _draw_cells(picture, look, panel, x, _TITLE, side)
        x += width + _GAP
    return picture


def _draw_cells(
    picture: Picture, look: BoardLook, panel: Panel, left: float, top: float, cell: int
) -> None:
    """Draw the cells of a grid, each so large, what is written in them, and what marks them."""
    height, width = panel.tokens.shape
    is_coloured = look.cells == "coloured"
    gap, fills = int(is_coloured), []
    if is_coloured:
        # Between the cells there are lines, on which a small one needs paper.
        picture.rectangle(left, top, width * cell, height * cell, LINES)
        fills = [(-1, PAPER, *at, 1.0) for at in np.argwhere(panel.shares < 1).tolist()]
    for row, column in np.ndindex(height, width):
        fill, share = _fill(look, panel, row, column), 1.0
        order = 0
        if is_coloured:
            # The less sure, the smaller: mixed with paper one colour would look like another.
            order, share = int(panel.tokens[row, column]), float(panel.shares[row, column])
        elif fill.lower() == PAPER:
            continue
        fills.append((order, fill, row, column, share))
    for _, fill, row, column, share in sorted(fills):
        side = share * (cell - gap)
        inset = (cell - gap - side) / 2
        picture.rectangle(left + column * cell + inset, top + row * cell + inset, side, side, fill)
    if look.cells == "written":
        for row, column in np.ndindex(height, width):
            _write(
                picture, look, panel, (row, column), left + column * cell, top + row * cell, cell
            )
        _draw_boxes(picture, look.box or (height, width), panel.tokens.shape, left, top, cell)
        return
    # Light in dark: one of the two is seen on every colour.
    line = max(1, cell // (10 if is_coloured else 7))
    frames = [(2 * line, INK), (line, RING)] if is_coloured else [(line, WRONG)]
    for row, column in np.argwhere(panel.marked).tolist():
        for line, fill in frames:
            place, side = (left + column * cell, top + row * cell), cell - gap
            picture.frame(*place, side, side, line, fill)


def _fill(look: BoardLook, panel: Panel, row: int, column: int) -> str:
    """Return the colour of a cell: that of its token, or of what happened to it."""
    at = row, column
    one = look.token(int(panel.tokens[at]))
    if look.cells == "written":
        if panel.guessed[at]:
            return GUESS_FILL
        if panel.marked[at] and one.token != look.open:
            return WRONG_FILL
        return NEW_FILL if panel.changed[at] else GIVEN_FILL if panel.given[at] else PAPER
    if look.cells == "filled" and one.drawn:
        return mixed(NEW if panel.changed[at] else one.fill, PAPER, float(panel.shares[at]))
    return one.fill or FAINT


def _write(
    picture: Picture,
    look: BoardLook,
    panel: Panel,
    at: tuple[int, int],
    x: float,
    y: float,
    cell: int,
) -> None:
    """Write a cell's token, where it has one, or its candidates, small."""
    token, middle = int(panel.tokens[at]), (x + cell / 2, y + cell / 2)
    left = None if panel.candidates is None else np.flatnonzero(panel.candidates[at])
    if token != look.open and (left is None or len(left) < 2):
        given = bool(panel.given[at])
        colour = INK if given else GUESS if panel.guessed[at] else ANSWER
        colour = WRONG if panel.marked[at] else colour
        share = 1.0 if given else float(panel.shares[at])
        shown = mixed(colour, _fill(look, panel, *at), share)
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


def _draw_boxes(
    picture: Picture,
    box: tuple[int, int],
    shape: tuple[int, ...],
    left: float,
    top: float,
    cell: int,
) -> None:
    (box_rows, box_columns), (rows, columns) = box, shape
    width, height = columns * cell, rows * cell
    for row in range(rows + 1):
        picture.rectangle(left, top + row * cell, width, 1, LINES)
    for column in range(columns + 1):
        picture.rectangle(left + column * cell, top, 1, height, LINES)
    for row in range(0, rows + 1, box_rows):
        picture.rectangle(left - 1, top + row * cell - 1, width + 2, 2, INK)
    for column in range(0, columns + 1, box_columns):
        picture.rectangle(left + column * cell - 1, top - 1, 2, height + 2, INK)
