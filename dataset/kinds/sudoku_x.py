"""The kind `sudoku_x`: Sudokus whose two diagonals have each digit once, too."""

import numpy as np

from dataset.kinds.base import DihedralViews, Views
from dataset.kinds.sudoku_16 import BoxedKind


class SudokuXKind(BoxedKind):
    """Sudokus with diagonals and one solution."""

    name = "Sudoku X"
    sizes = (4, 9, 16)
    goal = "a valid Sudoku with valid diagonals that keeps the clues"

    def groups(self, size: int) -> list[np.ndarray]:
        cells = np.arange(size**2).reshape(size, size)
        return [*super().groups(size), cells.diagonal(), cells[:, ::-1].diagonal()]

    def views(self, size: int) -> Views:
        return DihedralViews(size)


SUDOKU_X = SudokuXKind()
