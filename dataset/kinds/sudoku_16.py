"""The kind `sudoku_16`: Sudokus of 16 x 16 cells, with the digits 1 to 9 and A to G. It is made and
solved by clauses, and its grids hold tokens as those of Latin squares do. A puzzle takes seconds.
"""

from dataclasses import replace

import numpy as np

from dataset.kinds.base import BoardLook, Views
from dataset.kinds.digits import OPEN
from dataset.kinds.latin_square import LatinSquareKind, LatinViews
from dataset.kinds.making import Clauses, Draws

_BOX = {4: 2, 9: 3, 16: 4}
"""Rows, and columns, of a box."""


class BoxedKind(LatinSquareKind):
    """Latin squares in which further groups of cells have each digit once: boxes, at least."""

    goal = "a valid Sudoku that keeps the clues"

    def groups(self, size: int) -> list[np.ndarray]:
        """Return the groups of cells beside rows and columns, each int64 [size]."""
        box = _BOX[size]
        cells = np.arange(size**2).reshape(box, box, box, box)
        return [*cells.swapaxes(1, 2).reshape(size, size)]

    def board(self, size: int) -> BoardLook:
        return replace(super().board(size), box=(_BOX[size], _BOX[size]) if size in _BOX else None)

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        grid = super().to_grid(tokens)
        if len(grid) not in self.sizes:
            sizes = ", ".join(map(str, self.sizes))
            raise ValueError(f"{len(grid)} rows; accepted for {self.name}: {sizes}")
        return grid

    def rules(self, question: np.ndarray) -> Clauses:
        rules, tokens = super().rules(question), range(OPEN + 1, OPEN + 1 + len(question))
        for group in self.groups(len(question)):
            rules.permuted(group, tokens)
        return rules

    def broken(self, answer: np.ndarray) -> np.ndarray:
        wrong, cells = super().broken(answer), answer.reshape(-1)
        for group in self.groups(len(answer)):
            values, counts = np.unique(cells[group], return_counts=True)
            wrong.reshape(-1)[group] |= np.isin(cells[group], values[counts > 1])
        return wrong


class Sudoku16Kind(BoxedKind):
    """Sudokus of 16 x 16 cells with one solution."""

    name = "Sudoku 16"
    sizes = (16,)

    def views(self, size: int) -> Views:
        return BoxViews(size)


class BoxViews(LatinViews):
    """Permutations of digits, of bands and stacks and of the lines in them, and transposition."""

    def order(self, draws: Draws) -> np.ndarray:
        lines = np.arange(self.size).reshape(-1, _BOX[self.size])
        bands = draws.order(len(lines))
        return np.concatenate([lines[band][draws.order(len(lines))] for band in bands])


SUDOKU_16 = Sudoku16Kind()
