"""Views that are drawn for each row at each step."""

import numpy as np
import pytest

from dataset.dihedral import dihedral_view
from dataset.kinds.sudoku import SudokuViews
from dataset.sudoku import rules


def words(number: int) -> np.ndarray:
    return np.random.Philox(key=5).random_raw(2 * number).reshape(2, number)


def solution(size: int) -> np.ndarray:
    grid, _ = rules.solve(np.zeros((size, size), int))
    assert grid is not None
    return rules.grid_to_tokens(grid)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_turned_sudoku_is_one(size: int) -> None:
    tokens = solution(size)
    cells, renamed = SudokuViews(size).turns(words(50))
    seen = set()
    for row, names in zip(cells, renamed, strict=True):
        assert sorted(row) == list(range(size**2))
        assert names[:2].tolist() == [0, 1]
        turned = names[tokens[row]]
        assert rules.are_valid_solutions(turned[None] - 1, size).all()
        seen.add(turned.tobytes())
    assert len(seen) > 15


def test_cells_are_turned_and_mirrored() -> None:
    cells, _ = SudokuViews(6).turns(words(200))
    grid = np.arange(36).reshape(6, 6)
    upright = {dihedral_view(grid, view).tobytes() for view in (0, 2, 4, 5)}
    assert {row.reshape(6, 6).astype(grid.dtype).tobytes() for row in cells} == upright
