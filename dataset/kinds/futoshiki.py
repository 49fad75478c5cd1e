"""The kind `futoshiki`: a Latin square with signs between cells that say which digit is smaller.

A puzzle of size N has 2N - 1 rows: digits in every second cell of every second row, and between two
of them a sign or nothing. The sign `<` points to the smaller digit; so do `>`, `^` and `v`.
"""

import numpy as np

from dataset.dihedral import dihedral_view, view_cells
from dataset.kinds.base import BoardLook, Kind, Puzzle, TokenLook, Views
from dataset.kinds.digits import OPEN, digit_tokens, line_rules, repeated_in_lines
from dataset.kinds.making import Clauses, Draws, filled

SIGNS = "<>^v"
"""Their tokens follow those of the digits and of a cell with nothing."""
_DIGIT, _BESIDE, _BELOW = 0, 1, 2  # places; 3 is for nothing
_STEPS = np.array([(0, -1), (0, 1), (-1, 0), (1, 0)])  # towards the smaller digit


class FutoshikiKind(Kind):
    """Futoshikis with one solution."""

    name = "Futoshiki"
    sizes = range(4, 8)
    goal = "a Latin square that keeps the signs and the clues"

    def rows(self, size: int) -> int:
        return 2 * size - 1

    def board(self, size: int) -> BoardLook:
        tokens = digit_tokens((size + 1) // 2)
        nothing = 1 + len(tokens)
        tokens.append(TokenLook(nothing, "nothing", " ", keys=(" ",)))
        tokens += [
            TokenLook(nothing + 1 + n, sign, sign, keys=(sign,)) for n, sign in enumerate(SIGNS)
        ]
        hint = "Arrow keys move, digits fill, < > ^ v are signs; paste rows as text."
        empty = np.where(_places(size) == _DIGIT, OPEN, nothing).reshape(-1).tolist()
        return BoardLook(tuple(tokens), "written", OPEN, tuple(empty), hint=hint)

    def parse(self, text: str) -> Puzzle:
        """Parse a Futoshiki; raise ValueError if a cell holds what its place does not allow."""
        puzzle = super().parse(text)
        rows = len(puzzle.question)
        nothing = OPEN + 1 + (rows + 1) // 2
        group = np.searchsorted([nothing, nothing + 1, nothing + 3], puzzle.question, side="right")
        fits = (group == np.array([0, 2, 3, 1])[_places(rows)]) | (
            (group == 1) & (_places(rows) > _DIGIT)
        )
        if rows % 2 == 0 or not fits.all():
            row, cell = np.argwhere(~fits)[0] + 1 if not fits.all() else (rows, rows)
            raise ValueError(
                f"row {row}, cell {cell} does not fit; accepted: digits in every second cell of"
                " every second row, < and > between two of a row, ^ and v between two of a column"
            )
        return puzzle

    def rules(self, question: np.ndarray) -> Clauses:
        size = (len(question) + 1) // 2
        cells = np.arange(question.size).reshape(question.shape)
        rules = line_rules(size, self.vocab_size(len(question)), step=2)
        for row, column, (down, right) in signs_of(question):
            smaller, larger = (
                int(cells[row + down, column + right]),
                int(cells[row - down, column - right]),
            )
            for a in range(1, size + 1):
                for b in range(1, a + 1):
                    rules.either(-rules.holds(smaller, OPEN + a), -rules.holds(larger, OPEN + b))
        return rules

    def broken(self, answer: np.ndarray) -> np.ndarray:
        wrong = np.zeros(answer.shape, bool)
        wrong[::2, ::2] = repeated_in_lines(answer[::2, ::2])
        for row, column, (down, right) in signs_of(answer):
            smaller, larger = (row + down, column + right), (row - down, column - right)
            if answer[smaller] >= answer[larger]:
                wrong[smaller] = wrong[larger] = True
        return wrong

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Draw a Latin square; show 20 to 60 % of its signs, and as few digits as those need."""
        rows = self.rows(size)
        nothing = OPEN + 1 + size
        board = np.full((rows, rows), nothing)
        board[::2, ::2] = OPEN
        found = self.rules(board).drawn(draws)
        answer = filled(board, found)
        places, share = _places(rows), draws.between(0.2, 0.6)
        shown = draws.shares(board.size).reshape(board.shape) < share
        for row, column in np.argwhere(shown & ((places == _BESIDE) | (places == _BELOW))):
            down, right = row % 2, column % 2
            falls = answer[row + down, column + right] < answer[row - down, column - right]
            board[row, column] = nothing + 1 + 2 * down + falls
        return self.rules(board).puzzle(board, found, size**2, draws)

    def views(self, size: int) -> Views:
        return FutoshikiViews(size)


def signs_of(board: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
    """Return (row, column, step) of each sign; the step leads to the smaller digit's cell."""
    first, places = OPEN + 2 + (len(board) + 1) // 2, _places(len(board))
    lies, stands = (
        (places == _BESIDE) & (board < first + 2),
        (places == _BELOW) & (board >= first + 2),
    )
    between = (lies | stands) & (board >= first) & (board < first + len(SIGNS))
    return [
        (row, column, _STEPS[board[row, column] - first]) for row, column in np.argwhere(between)
    ]


def _places(rows: int) -> np.ndarray:
    """Return what each cell is for: a digit, the sign between two of a row or of a column, or
    nothing.
    """
    odd = np.arange(rows) % 2
    return 2 * odd[:, None] + odd


class FutoshikiViews(Views):
    """The eight ways to turn or mirror the board, each with digits as they are or reversed."""

    number = 16

    def __init__(self, size: int) -> None:
        digits, turned = (size + 1) // 2, view_cells(size)
        tokens = np.tile(np.arange(OPEN + 2 + digits + len(SIGNS), dtype=np.uint8), (16, 1))
        reversed_digits = OPEN + digits - np.arange(digits)
        around = np.full((3, 3), -1)
        for number, (down, right) in enumerate(_STEPS):
            around[1 + down, 1 + right] = number
        for view in range(8):
            moved = dihedral_view(around, view)
            to = np.array([moved.reshape(-1).tolist().index(number) for number in range(4)])
            places = {tuple(step): number for number, step in enumerate(_STEPS.tolist())}
            signs = np.array([places[cell // 3 - 1, cell % 3 - 1] for cell in to.tolist()])
            first = OPEN + 2 + digits
            tokens[[view, view + 8], first:] = [first + signs, first + (signs ^ 1)]
            tokens[view + 8, OPEN + 1 : OPEN + 1 + digits] = reversed_digits
        self._cells, self._tokens = np.concatenate([turned, turned]), tokens

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return self._cells[views], self._tokens[views]


FUTOSHIKI = FutoshikiKind()
