"""The kind `sudoku_x`: Sudokus whose two diagonals have each digit once, too."""

import numpy as np

from dataset.dihedral import view_cells
from dataset.kinds.base import Views
from dataset.kinds.digits import OPEN
from dataset.kinds.making import Draws
from dataset.kinds.sudoku_16 import BoxedKind

_STREAM = 0x78


class SudokuXKind(BoxedKind):
    """Sudokus with diagonals and one solution."""

    name = "Sudoku X"
    sizes = (4, 6, 9, 16)
    goal = "a valid Sudoku with valid diagonals that keeps the clues"

    def groups(self, size: int) -> list[np.ndarray]:
        cells = np.arange(size**2).reshape(size, size)
        return [*super().groups(size), cells.diagonal(), cells[:, ::-1].diagonal()]

    def views(self, size: int) -> Views:
        return DiagonalViews(size)


class DiagonalViews(Views):
    """Permutations of digits and the eight ways to turn or mirror the board (four for 6 x 6, which
    keep the boxes); each number stands for one that is drawn at random.
    """

    number = 2**40

    def __init__(self, size: int) -> None:
        kept = [0, 2, 4, 5] if size == 6 else range(8)
        self._size, self._cells = size, view_cells(size)[[*kept]]

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        tokens = np.tile(np.arange(OPEN + 1 + self._size, dtype=np.uint8), (len(views), 1))
        turns = []
        for number, view in enumerate(views.tolist()):
            draws = Draws(0, _STREAM, view)
            turns.append(draws.below(len(self._cells)) if view else 0)
            if view:
                tokens[number, OPEN + 1 :] = OPEN + 1 + draws.order(self._size)
        return self._cells[turns], tokens


SUDOKU_X = SudokuXKind()
