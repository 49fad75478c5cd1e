"""Drawn boards: a puzzle with what a model answers, how sure it is, and where it is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from apps.reports.drawing import Picture, mixed
from dataset.arc.augmentation import IDENTITY, parse_identifier, undo_grid
from dataset.dihedral import INVERSE_VIEWS, dihedral_view
from dataset.format.schema import ARC_PALETTE
from dataset.maze import rules as maze
from dataset.sudoku.rules import BOX_SHAPES, EMPTY_TOKEN
from evaluation.puzzles import ARC, MAZE, SUDOKU, Kind, Puzzle, cropped

PAPER, INK, FAINT, LINES = "#ffffff", "#16202c", "#8a96a3", "#c5ccd4"
RING = "#fefefe"  # Around wrong cells of ARC; none of its colours, nor the paper: it stays light.

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


def draw(board: Board) -> Picture:
    """Draw a board; an ARC test input, its answer and the right one, if known, side by side."""
    return _DRAWN[board.puzzle.kind](board)


def legend(board: Board) -> list[tuple[str, str]]:
    """Return what the colours of a board with an answer mean."""
    kind = board.puzzle.kind
    surer = [] if board.certainty is None else [(FAINT, "paler: less sure")]
    if kind is ARC:
        surer = [(FAINT, "smaller: less sure")] if surer else []
        known = board.puzzle.target is not None
        return [(RING, "ringed: not the right colour")] * known + surer
    wrong = "cannot stay" if board.right is None else "not as in the right answer"
    if kind is MAZE:
        ends = [(maze.PALETTE[2], "start"), (maze.PALETTE[3], "goal"), (maze.PALETTE[4], "path")]
        return [*ends, (NEW, "changed in this step"), (WRONG, f"framed: {wrong}"), *surer]
    found = [(GIVEN_FILL, "given"), (NEW_FILL, "changed in this step"), (WRONG_FILL, wrong)]
    if board.candidates is not None:
        found += [(GUESS_FILL, "guessed"), (FAINT, "small: candidates")]
    return found + surer


def _share(board: Board, row: int, column: int) -> float:
    """Return how strongly a cell is drawn: the surer, the more."""
    return 1.0 if board.certainty is None else 0.3 + 0.7 * float(board.certainty[row, column])


def _draw_sudoku(board: Board) -> Picture:
    question, answer, wrong = board.puzzle.question, board.answer, board.wrong
    size = len(question)
    cell = _SIDE // size
    side = cell * size + 4
    picture = Picture(side, side)
    picture.rectangle(0, 0, side, side, PAPER)
    for row, column in np.ndindex(question.shape):
        x, y = 2 + column * cell, 2 + row * cell
        is_new = board.changed is not None and bool(board.changed[row, column])
        given, digit = int(question[row, column]), int(answer[row, column])
        is_guess = board.guessed == row * size + column
        fill = GIVEN_FILL if given else PAPER
        if is_guess:
            fill = GUESS_FILL
        elif wrong[row, column] and digit:
            fill = WRONG_FILL
        elif is_new:
            fill = NEW_FILL
        picture.rectangle(x, y, cell, cell, fill)
        left = _left(board, row * size + column)
        if digit and not (left and len(left) > 1):
            colour = INK if digit == given else GUESS if is_guess else ANSWER
            colour = WRONG if wrong[row, column] else colour
            shown = mixed(colour, fill, 1.0 if given else _share(board, row, column))
            at = x + cell / 2, y + cell / 2
            picture.words(*at, str(digit), 0.58 * cell, shown, bold=bool(given))
        elif left is not None:
            _draw_candidates(picture, x, y, cell, size, left)
            if not left:
                picture.words(x + cell / 2, y + cell / 2, "x", 0.5 * cell, WRONG, bold=True)
    _draw_boxes(picture, size, cell)
    return picture


def _left(board: Board, cell: int) -> list[int] | None:
    """Return the digits that a cell may still hold; None: no candidates are known."""
    if board.candidates is None:
        return None
    return [int(token) - EMPTY_TOKEN for token in np.flatnonzero(board.candidates[cell])]


def _draw_candidates(
    picture: Picture, x: float, y: float, cell: int, size: int, digits: list[int]
) -> None:
    box_rows, box_columns = BOX_SHAPES[size]
    for digit in digits:
        row, column = divmod(digit - 1, box_columns)
        at = x + (column + 0.5) * cell / box_columns, y + (row + 0.5) * cell / box_rows
        picture.words(*at, str(digit), 0.24 * cell, FAINT)


def _draw_boxes(picture: Picture, size: int, cell: int) -> None:
    box_rows, box_columns = BOX_SHAPES[size]
    length = size * cell
    for number in range(size + 1):
        at = 2 + number * cell
        picture.rectangle(2, at, length, 1, LINES)
        picture.rectangle(at, 2, 1, length, LINES)
    for number in range(size + 1):
        at = 2 + number * cell
        if number % box_rows == 0:
            picture.rectangle(1, at - 1, length + 2, 2, INK)
        if number % box_columns == 0:
            picture.rectangle(at - 1, 1, 2, length + 2, INK)


def _draw_maze(board: Board) -> Picture:
    question, answer, wrong = board.puzzle.question, board.answer, board.wrong
    size = len(question)
    cell = max(6, _SIDE // size)
    picture = Picture(size * cell, size * cell)
    picture.rectangle(0, 0, size * cell, size * cell, PAPER)

    # Whatever is answered there, start and goal stay where the puzzle has them.
    is_end = (question == maze.START) | (question == maze.GOAL)
    tokens = np.where(is_end, question, answer)

    def fill_of(row: int, column: int) -> str:
        token = int(tokens[row, column])
        colour = maze.PALETTE[token - maze.WALL] if token >= maze.WALL else FAINT
        if token != maze.PATH:
            return colour
        is_new = board.changed is not None and bool(board.changed[row, column])
        return mixed(NEW if is_new else colour, PAPER, _share(board, row, column))

    cells = [(fill_of(row, column), row, column) for row, column in np.ndindex(question.shape)]
    for fill, row, column in sorted(cells):
        if fill.lower() != PAPER:
            picture.rectangle(column * cell, row * cell, cell, cell, fill)
    for row, column in np.argwhere(wrong).tolist():
        line = max(1, cell // 7)
        picture.frame(column * cell, row * cell, cell, cell, line, WRONG)
    picture.frame(0, 0, size * cell, size * cell, 1, FAINT)
    return picture


def _draw_arc(board: Board) -> Picture:
    """Draw grids in places that depend on the puzzle alone, so that no step moves them: an answer
    that is larger than its place has smaller cells.
    """
    puzzle = board.puzzle
    expected = puzzle.question if puzzle.target is None else puzzle.target
    places = [panel.colours.shape for panel in arc_panels(Board(puzzle, expected))]
    return _draw_in_places(arc_panels(board), places, 0)


def draw_panels(panels: "Sequence[Panel]", most_cells: int = 0) -> Picture:
    """Draw grids of colours side by side, each cell as large as fits `most_cells` in a row; 0: as
    many as the largest grid has.
    """
    return _draw_in_places(panels, [panel.colours.shape for panel in panels], most_cells)


def _draw_in_places(
    panels: "Sequence[Panel]", shapes: Sequence[tuple[int, ...]], most_cells: int
) -> Picture:
    cell = max(6, min(36, 400 // (most_cells or max(1, *map(max, shapes)))))
    widths = [max(90, cell * width) for _, width in shapes]
    height = max(cell, *(cell * height for height, _ in shapes))
    picture = Picture(sum(widths) + _GAP * (len(shapes) + 1), height + 2 * _TITLE)
    picture.rectangle(0, 0, picture.width, picture.height, PAPER)
    x = float(_GAP)
    for panel, width in zip(panels, widths, strict=False):
        picture.words(x, _TITLE / 2, panel.title, 14, INK, anchor="start")
        if not panel.colours.size:
            picture.words(x, 1.5 * _TITLE, "no grid", 13, FAINT, anchor="start")
        rows, columns = (max(1, side) for side in panel.colours.shape)
        _draw_colours(picture, panel, x, max(2, min(cell, height // rows, width // columns)))
        x += width + _GAP
    return picture


class Panel(NamedTuple):
    """A grid of colours, uint8 [h, w], its title, and of each cell how large it is drawn (0 to 1)
    and whether it is marked.
    """

    title: str
    colours: np.ndarray
    shares: np.ndarray
    marked: np.ndarray


def _draw_colours(picture: Picture, panel: "Panel", x: float, cell: int) -> None:
    height, width = panel.colours.shape
    picture.rectangle(x, _TITLE, width * cell, height * cell, LINES)

    def fill(row: int, column: int, share: float, colour: str) -> None:
        side = share * (cell - 1)
        inset = (cell - 1 - side) / 2
        place = x + column * cell + inset, _TITLE + row * cell + inset
        picture.rectangle(*place, side, side, colour)

    # The less sure, the smaller: mixed with the paper one of ARC's colours would look like another.
    for row, column in np.argwhere(panel.shares < 1).tolist():
        fill(row, column, 1, PAPER)
    for colour in np.unique(panel.colours):
        for row, column in np.argwhere(panel.colours == colour).tolist():
            fill(row, column, float(panel.shares[row, column]), ARC_PALETTE[colour])
    # Light in dark: one of the two is seen on every colour.
    line = max(1, cell // 10)
    for row, column in np.argwhere(panel.marked).tolist():
        place, side = (x + column * cell, _TITLE + row * cell), cell - 1
        picture.frame(*place, side, side, 2 * line, INK)
        picture.frame(*place, side, side, line, RING)


def arc_panels(board: Board) -> list[Panel]:
    """Return input, answer and, if known, the right answer, with the augmentation undone; of a
    puzzle that nobody has answered the input alone.
    """
    puzzle = board.puzzle
    view, colours = 0, IDENTITY
    if puzzle.name:
        _, view, colours = parse_identifier(puzzle.name)
    question, answer = (cropped(puzzle.question, each) for each in (puzzle.question, board.answer))
    shares, marked = np.ones(answer.shape), np.zeros(answer.shape, bool)
    if board.certainty is not None:
        (top, left) = (int((puzzle.question > 0).any(axis).argmax()) for axis in (1, 0))
        height, width = answer.shape
        shares = 0.3 + 0.7 * board.certainty[top : top + height, left : left + width]
    panels = [("input", question), ("answer", answer)]
    if puzzle.target is not None:
        target = cropped(puzzle.question, puzzle.target)
        panels.append(("right answer", target))
        marked = target != answer if target.shape == answer.shape else ~marked
    plain = {title: (np.ones(grid.shape), np.zeros(grid.shape, bool)) for title, grid in panels}
    if not board.marks:
        panels = panels[:1]
    cells = plain | {"answer": (shares, marked)}
    return [
        Panel(
            title,
            undo_grid(grid, view, colours),
            *(dihedral_view(values, INVERSE_VIEWS[view]) for values in cells[title]),
        )
        for title, grid in panels
    ]


_DRAWN: dict[Kind, Callable[[Board], Picture]] = {
    SUDOKU: _draw_sudoku,
    MAZE: _draw_maze,
    ARC: _draw_arc,
}
