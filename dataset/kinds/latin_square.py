"""The kind `latin_square`: each digit once in each row and column; some cells are open."""

import numpy as np

from dataset.kinds.base import BoardLook, DrawnViews, Kind, Views
from dataset.kinds.digits import OPEN, digit_tokens, line_rules, repeated_in_lines
from dataset.kinds.making import Clauses, Draws


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


class LatinViews(DrawnViews):
    """Permutations of rows, columns and digits, and transposition."""

    stream = 0x6C6174696E

    def __init__(self, size: int) -> None:
        self.size = size

    def order(self, draws: Draws) -> np.ndarray:
        """Draw an order of the rows, or of the columns."""
        return draws.order(self.size)

    def drawn(self, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        rows, columns, digits = self.order(draws), self.order(draws), draws.order(self.size)
        grid = np.arange(self.size**2).reshape(self.size, self.size)[rows][:, columns]
        cells = (grid.T if draws.below(2) else grid).reshape(-1)
        return cells, np.concatenate([[0, OPEN], OPEN + 1 + digits])


LATIN_SQUARE = LatinSquareKind()
