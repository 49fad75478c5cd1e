"""The kind `queens`: complete N queens on an N x N board so that none attacks another."""

import numpy as np

from dataset.kinds.base import BoardLook, DihedralViews, Kind, TokenLook, Views
from dataset.kinds.making import Clauses, Draws, filled

FREE, QUEEN = 1, 2


class QueensKind(Kind):
    """Completions of N queens; most puzzles have several solutions, and each is right."""

    name = "Queens"
    sizes = range(6, 11)
    goal = "queens that do not attack each other, with the given ones"
    rating = "solutions"
    many_answers = True

    def board(self, size: int) -> BoardLook:
        free = TokenLook(FREE, "free", ".", "#FFFFFF", style="0", keys=(".", " "))
        queen = TokenLook(QUEEN, "queen", "Q", "#5B2C6F", "Q", "45;97", ("Q", "q"), drawn=True)
        hint = "Arrow keys move; Q sets a queen, . takes it away; paste rows as text."
        return BoardLook((free, queen), cells="filled", open=FREE, pen=QUEEN, hint=hint)

    def rules(self, question: np.ndarray) -> Clauses:
        rules = Clauses(self.vocab_size(len(question)))
        for cell in range(question.size):
            rules.choose(cell, (FREE, QUEEN))
        rows, columns, diagonals = _lines(len(question))
        for line in (*rows, *columns):
            rules.exactly(1, [rules.holds(cell, QUEEN) for cell in line])
        for line in diagonals:
            rules.at_most(1, [rules.holds(cell, QUEEN) for cell in line])
        return rules

    def broken(self, answer: np.ndarray) -> np.ndarray:
        """Mark queens that attack each other, and rows and columns without a queen."""
        wrong, queens = np.zeros(answer.size, bool), answer.reshape(-1) == QUEEN
        rows, columns, diagonals = _lines(len(answer))
        for line in (*rows, *columns, *diagonals):
            wrong[line] |= queens[line] & (queens[line].sum() > 1)
        for line in (*rows, *columns):
            wrong[line] |= not queens[line].any()
        return wrong.reshape(answer.shape) | ~np.isin(answer, (FREE, QUEEN))

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Draw a solution and show one to `size // 2 - 1` of its queens."""
        board = np.full((size, size), FREE)
        answer = filled(board, self.rules(board).drawn(draws))
        shown = draws.order(size)[: 1 + draws.below(size // 2 - 1)]  # rows, each with one queen
        board[shown] = answer[shown]
        return board, answer

    def views(self, size: int) -> Views:
        return DihedralViews(size)


def _lines(size: int) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return the cells of all rows, all columns, and all diagonals of two cells or more."""
    cells = np.arange(size**2).reshape(size, size)
    offsets = range(2 - size, size - 1)
    diagonals = [each.diagonal(offset) for each in (cells, cells[:, ::-1]) for offset in offsets]
    return [*cells], [*cells.T], diagonals


QUEENS = QueensKind()
