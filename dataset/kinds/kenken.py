"""The kind `kenken`: a Latin square divided into cages; each has a number that its digits make.

A cell of the square takes 3 x 3 cells of the board: its digit is in the middle; `#` on a side is
the wall to another cage or around the square; the corners, read as text, spell the clue of a cage
in one of its cells. `12x` means a product, `7+` a sum, `1-` a difference of two digits, `2/` their
quotient, and `4=` a digit.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from dataset.dihedral import NUM_VIEWS, view_cells
from dataset.kinds.base import BoardLook, DihedralViews, Kind, Puzzle, TokenLook, Views
from dataset.kinds.digits import OPEN, line_rules, repeated_in_lines
from dataset.kinds.making import Clauses, Draws, filled

_TEXT = "?.1234567890 +-x/=#"
"""The character of each token; digit d is the token OPEN + d."""
NOTHING, WALL = OPEN + 11, OPEN + 17
_MADE: dict[str, Callable[[Sequence[int]], float]] = {"+": sum, "x": prod, "=": max}
_MADE |= {"-": lambda d: max(d) - min(d), "/": lambda d: max(d) / min(d)}
_CORNERS = np.array([0, 2, 6, 8])
_SIDES = ((1, (-1, 0)), (3, (0, -1)), (5, (0, 1)), (7, (1, 0)))  # place in a block, step


class Cage(NamedTuple):
    """Cells of the square, counted row by row, the operation of its clue, and the number."""

    cells: list[int]
    operation: str
    number: int

    def holds(self, digits: tuple[int, ...]) -> bool:
        """Return whether these digits of its cells make its number."""
        cells = {"=": 1, "-": 2, "/": 2}.get(self.operation, len(digits))
        return len(digits) == cells and _MADE[self.operation](digits) == self.number


class KenKenKind(Kind):
    """KenKens with one solution."""

    name = "KenKen"
    sizes = range(4, 7)
    goal = "a Latin square whose cages make their numbers"

    def rows(self, size: int) -> int:
        return 3 * size

    def board(self, size: int) -> BoardLook:
        texts = enumerate(_TEXT[1:], start=1)
        looks = (TokenLook(n, text.replace(".", "open"), text, keys=(text,)) for n, text in texts)
        hint = "Paste rows as text: three for each row of the square (docs/data.md)."
        empty = tuple(_board_of([], size // 3).reshape(-1).tolist())
        return BoardLook(tuple(looks), "written", OPEN, empty, box=(3, 3), hint=hint)

    def parse(self, text: str) -> Puzzle:
        """Parse a KenKen; raise ValueError if its walls and clues do not make cages."""
        puzzle = super().parse(text)
        cages_of(puzzle.question)
        middles = puzzle.question[1::3, 1::3]
        for row, column in np.argwhere(middles > OPEN + len(middles)) + 1:
            raise ValueError(f"row {row}, column {column}: not . or a digit up to {len(middles)}")
        return puzzle

    def rules(self, question: np.ndarray) -> Clauses:
        size = len(question) // 3
        rules = line_rules(size, len(_TEXT), step=3, first=1)
        places = np.arange(question.size).reshape(question.shape)[1::3, 1::3].reshape(-1)
        for cage in cages_of(question):
            for digits in product(range(1, size + 1), repeat=len(cage.cells)):
                if not cage.holds(digits):
                    pairs = zip(places[cage.cells], digits, strict=True)
                    rules.either(*(-rules.holds(place, OPEN + digit) for place, digit in pairs))
        return rules

    def broken(self, answer: np.ndarray) -> np.ndarray:
        wrong, digits = np.zeros(answer.shape, bool), answer[1::3, 1::3]
        try:
            cages = cages_of(answer)
        except ValueError:
            return ~wrong
        bad, values = repeated_in_lines(digits), digits.reshape(-1).astype(int) - OPEN
        for cage in cages:
            if values[cage.cells].min() > 0 and not cage.holds(tuple(values[cage.cells].tolist())):
                bad.reshape(-1)[cage.cells] = True
        wrong[1::3, 1::3] = bad
        return wrong

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Draw a Latin square and cages; divide some if the cages allow other solutions."""
        found = line_rules(size, len(_TEXT), step=3, first=1).drawn(draws)
        digits = np.array([token - OPEN for _, token in sorted(found.items())])
        cages = _drawn_cages(size, digits, draws)
        shown, _ = self.rules(board := _board_of(cages, size)).puzzle(board, found, size**2, draws)
        needed = shown[1::3, 1::3].reshape(-1) != OPEN
        for cage in [cage for cage in cages if needed[cage.cells].any()]:
            cages.remove(cage)
            cages += [Cage([cell], "=", int(digits[cell])) for cell in cage.cells]
        return (board := _board_of(cages, size)), filled(board, found)

    def views(self, size: int) -> Views:
        return KenKenViews(size)


def cages_of(board: np.ndarray) -> list[Cage]:
    """Return the cages of a board, tokens [3N, 3N]; raise ValueError if it has no proper ones."""
    if len(board) % 3:
        raise ValueError(f"{len(board)} rows; accepted: three for each row of the square")
    size, blocks = len(board) // 3, _blocks(board)
    is_wall = (sides := blocks[:, [place for place, _ in _SIDES]]) == WALL
    corners = np.minimum(blocks[:, _CORNERS], WALL)
    texts = ["".join(row).strip() for row in np.array([*_TEXT])[corners]]
    cages, seen = list[Cage](), set[int]()
    for start in range(size**2):
        if start in seen:
            continue
        where = f"row {start // size + 1}, column {start % size + 1}"
        cells = [start]
        for cell in cells:  # It grows.
            for side, other in enumerate(_neighbours(cell, size)):
                if sides[cell, side] not in (NOTHING, WALL):
                    raise ValueError(f"the cage of {where}: a side is neither # nor empty")
                if is_wall[cell, side] != (other is None or is_wall[other, 3 - side]):
                    raise ValueError(f"the cage of {where}: a wall has one side only")
                if not is_wall[cell, side] and other not in cells:
                    cells.append(int(other or 0))
        seen.update(cells)
        clues = [texts[cell] for cell in cells if texts[cell]]
        clue = clues[0] if len(clues) == 1 else ""
        if not clue[:-1].isdigit() or clue[-1] not in _MADE or len(cells) > 4:
            raise ValueError(f"the cage of {where}: {len(cells)} cells with the clues {clues}")
        cages.append(Cage(sorted(cells), clue[-1], int(clue[:-1])))
    return cages


def _blocks(board: np.ndarray) -> np.ndarray:
    """Return the cells of a board [3N, 3N] by cell of the square, [N * N, 9]."""
    size = len(board) // 3
    return board.reshape(size, 3, size, 3).swapaxes(1, 2).reshape(size**2, 9)


def _joined(blocks: np.ndarray, size: int) -> np.ndarray:
    """Return the board of blocks [N * N, 9]."""
    return blocks.reshape(size, size, 3, 3).swapaxes(1, 2).reshape(3 * size, 3 * size)


def _neighbours(cell: int, size: int) -> list[int | None]:
    """Return the cells above, left, right and below; None off the square."""
    row, column = divmod(cell, size)
    steps = ((row + down, column + right) for _, (down, right) in _SIDES)
    return [y * size + x if 0 <= y < size and 0 <= x < size else None for y, x in steps]


def _drawn_cages(size: int, digits: np.ndarray, draws: Draws) -> list[Cage]:
    free, cages = {*range(size**2)}, list[Cage]()
    for start in draws.order(size**2).tolist():
        if start not in free:
            continue
        cells = [start]
        for _ in range(1 + draws.below(2)):
            beside = [o for c in cells for o in _neighbours(c, size) if o in free - {*cells}]
            cells += [beside[draws.below(len(beside))]] if beside else []
        free -= {*cells}
        values = digits[cells].tolist()
        accepted = {1: "=", 2: "+x-" if _MADE["/"](values) % 1 else "+x-/", 3: "+x"}[len(cells)]
        operation = accepted[draws.below(len(accepted))]
        cages.append(Cage(sorted(cells), operation, int(_MADE[operation](values))))
    return cages


def _board_of(cages: list[Cage], size: int) -> np.ndarray:
    """Return the board of a puzzle, [3N, 3N]. The first cell of a cage has its clue."""
    blocks = np.full((size**2, 9), NOTHING)
    blocks[:, 4] = OPEN
    for cage in cages:
        for cell in cage.cells:
            for (place, _), other in zip(_SIDES, _neighbours(cell, size), strict=True):
                if other not in cage.cells:
                    blocks[cell, place] = WALL
        clue = f"{cage.number}{cage.operation}".ljust(4)
        blocks[cage.cells[0], _CORNERS] = [_TEXT.index(letter) for letter in clue]
    return _joined(blocks, size)


class KenKenViews(DihedralViews):
    """The eight ways to turn or mirror the square; clues stay as they are read."""

    def __init__(self, rows: int) -> None:
        cells, inside = _blocks(np.arange(rows**2).reshape(rows, rows)), view_cells(3).copy()
        inside[:, _CORNERS] = _CORNERS
        turns = zip(view_cells(rows // 3), inside, strict=True)
        joined = [_joined(cells[turn][:, into], rows // 3) for turn, into in turns]
        self._cells = np.stack(joined).reshape(NUM_VIEWS, -1)


KENKEN = KenKenKind()
