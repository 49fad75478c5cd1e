"""The kind `light_up` (Akari): bulbs light all white cells; a number on a wall counts the bulbs
beside it.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from dataset.kinds.base import BoardLook, DihedralViews, Kind, TokenLook, Views
from dataset.kinds.making import Clauses, Draws, Number

WHITE, BULB, WALL = 1, 2, 3
_LAST = WALL + 5  # Walls with the numbers 0 to 4 are the tokens after WALL.


class LightUpKind(Kind):
    """Light Up puzzles with one solution."""

    name = "Light Up"
    sizes = range(5, 11)
    goal = "bulbs that light all white cells and no other bulb, as many as the numbers say"

    def board(self, size: int) -> BoardLook:
        white = TokenLook(WHITE, "white", ".", "#FFFFFF", style="0", keys=(".", " "))
        bulb = TokenLook(BULB, "bulb", "*", "#F5B041", "*", "43;30", ("*", "b"), drawn=True)
        walls = (
            TokenLook(WALL + n, f"wall {text}", text, "#2C3E50", text[n == 0 :], "40;97", (text,))
            for n, text in enumerate("#01234")
        )
        hint = "Arrow keys move; # and 0 to 4 are walls, * a bulb; paste rows as text."
        return BoardLook((white, bulb, *walls), cells="filled", open=WHITE, pen=WALL, hint=hint)

    def rules(self, question: np.ndarray) -> Clauses:
        rules, cells = Clauses(self.vocab_size(len(question))), question.reshape(-1)
        sees = sight(question)
        for cell in np.flatnonzero(cells < WALL):
            rules.choose(cell, (WHITE, BULB))
            rules.either(*(rules.holds(other, BULB) for other in np.flatnonzero(sees[cell])))
        for pair in np.argwhere(np.triu(sees, 1)):
            rules.at_most(1, [rules.holds(cell, BULB) for cell in pair])
        for wall in np.flatnonzero(cells > WALL):
            beside = [rules.holds(cell, BULB) for cell in _beside(question, wall)]
            rules.exactly(cells[wall] - WALL - 1, beside)
        return rules

    def broken(self, answer: np.ndarray) -> np.ndarray:
        """Mark dark cells, bulbs that light each other, and walls with a wrong number."""
        bulbs = (answer == BULB).reshape(-1)
        lights = (sight(answer) @ bulbs.astype(int)).reshape(answer.shape)  # its own included
        dark = (answer < WALL) & (lights == 0)
        wrong_number = (answer > WALL) & (answer - WALL - 1 != _bulbs_beside(answer))
        unknown = (answer < WHITE) | (answer > _LAST)
        return dark | ((answer == BULB) & (lights > 1)) | wrong_number | unknown

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        return super().wrong(question, answer, target) | _new_walls(question, answer)

    def holds(self, questions: np.ndarray, answers: np.ndarray) -> Sequence[np.ndarray]:
        valid, kept = super().holds(questions, answers)
        return valid & ~_new_walls(questions, answers).any(axis=1), kept

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray] | None:
        """Draw walls on 15 to 30 % of the cells, bulbs where it is dark, and numbers on half of the
        walls or more.
        """
        share = draws.between(0.15, 0.3)
        is_wall = draws.shares(size**2).reshape(size, size) < share
        question = np.where(is_wall, WALL, WHITE)
        sees, bulbs = sight(question), np.zeros(size**2, bool)
        for cell in draws.order(size**2):
            bulbs[cell] = sees[cell].any() and not bulbs[sees[cell]].any()
        answer = np.where(bulbs.reshape(size, size), BULB, question)
        share = draws.between(0.5, 1.0)
        numbered = is_wall & (draws.shares(size**2).reshape(size, size) < share)
        numbers = WALL + 1 + _bulbs_beside(answer)
        question, answer = (np.where(numbered, numbers, board) for board in (question, answer))
        found = [*islice(self.solutions(question), 2)]
        return (question, answer) if len(found) == 1 else None

    def views(self, size: int) -> Views:
        return DihedralViews(size)


def sight(board: np.ndarray) -> np.ndarray:
    """Return which white cells light each other and themselves, bool [cells, cells]."""
    is_wall, offsets = board >= WALL, np.arange(len(board)) * (len(board) + 1)
    # The cells between two walls have the same number.
    across, down = is_wall.cumsum(1) + offsets[:, None], is_wall.cumsum(0) + offsets
    same = [np.equal.outer(runs.reshape(-1), runs.reshape(-1)) for runs in (across, down)]
    white = ~is_wall.reshape(-1)
    return (same[0] | same[1]) & white & white[:, None]


def _new_walls(question: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Mark the white cells of a question that an answer turns into walls."""
    return (question == WHITE) & (answer >= WALL)


def _beside(board: np.ndarray, cell: Number) -> np.ndarray:
    """Return the white cells beside a cell."""
    row, column = divmod(int(cell), len(board))
    steps = abs(np.arange(len(board))[:, None] - row) + abs(np.arange(len(board)) - column)
    return np.flatnonzero((steps == 1) & (board < WALL))


def _bulbs_beside(board: np.ndarray) -> np.ndarray:
    """Return the number of bulbs beside each cell."""
    bulbs = np.pad(board == BULB, 1).astype(int)
    return bulbs[2:, 1:-1] + bulbs[:-2, 1:-1] + bulbs[1:-1, 2:] + bulbs[1:-1, :-2]


LIGHT_UP = LightUpKind()
