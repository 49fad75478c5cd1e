"""The kind `latin_square`: each digit once in each row and column; some cells are open."""

import numpy as np

from dataset.kinds.base import BoardLook, Kind, Views
from dataset.kinds.digits import OPEN, digit_tokens, line_rules, repeated_in_lines
from dataset.kinds.making import Clauses, Draws

_STREAM = 0x6C6174696E


class LatinSquareKind(Kind):
    """Latin squares with one solution."""

    name = "Latin square"
    sizes = range(4, 10)
    goal = "a Latin square that keeps the clues"

    def board(self, size: int) -> BoardLook:
        hint = "Arrow keys move, digits fill, Backspace clears; paste a whole puzzle as text."
        return BoardLook(tuple(digit_tokens(size)), cells="written", open=OPEN, hint=hint)

    def rules(self, question: np.ndarray) -> Clauses:
        return line_rules(len(question), self.vocab_size(len(question)))

    def broken(self, answer: np.ndarray) -> np.ndarray:
        return repeated_in_lines(answer)

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Draw a random square, and open 55 to 75 % of its cells, if one solution allows it."""
        board = np.full((size, size), OPEN)
        rules, most_open = self.rules(board), round(draws.between(0.55, 0.75) * board.size)
        return rules.puzzle(board, rules.drawn(draws), most_open, draws)

    def views(self, size: int) -> Views:
        return LatinViews(size)


class LatinViews(Views):
    """Permutations of rows, columns and digits, and transposition; each number stands for one that
    is drawn at random.
    """

    number = 2**40

    def __init__(self, size: int) -> None:
        self.size = size

    def order(self, draws: Draws) -> np.ndarray:
        """Draw an order of the rows, or of the columns."""
        return draws.order(self.size)

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        size, unchanged = self.size, np.arange(self.size)
        cells, tokens = [], []
        for view in views.tolist():
            draws = Draws(0, _STREAM, view)
            rows, columns = (self.order(draws) if view else unchanged for _ in range(2))
            digits = draws.order(size) if view else unchanged
            grid = np.arange(size**2).reshape(size, size)[rows][:, columns]
            cells.append((grid.T if view and draws.below(2) else grid).reshape(-1))
            tokens.append(np.concatenate([[0, OPEN], OPEN + 1 + digits]))
        return np.stack(cells), np.stack(tokens).astype(np.uint8)


LATIN_SQUARE = LatinSquareKind()
