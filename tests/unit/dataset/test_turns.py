"""Views that are drawn for each row at each step."""

import numpy as np
import pytest

from dataset.dihedral import NUM_VIEWS, dihedral_view
from dataset.kinds.base import DihedralViews
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
    cells, renamed = SudokuViews(size).turns(words(50), size + 2)
    seen = set()
    for row, names in zip(cells, renamed, strict=True):
        assert sorted(row) == list(range(size**2))
        assert names[:2].tolist() == [0, 1]
        turned = names[tokens[row]]
        assert rules.are_valid_solutions(turned[None] - 1, size).all()
        seen.add(turned.tobytes())
    assert len(seen) > 15


def test_cells_are_turned_and_mirrored() -> None:
    cells, _ = SudokuViews(6).turns(words(200), 8)
    grid = np.arange(36).reshape(6, 6)
    upright = {dihedral_view(grid, view).tobytes() for view in (0, 2, 4, 5)}
    assert {row.reshape(6, 6).astype(grid.dtype).tobytes() for row in cells} == upright


@pytest.mark.parametrize("size", [4, 5])
def test_a_maze_is_turned_and_mirrored_and_keeps_its_tokens(size: int) -> None:
    cells, tokens = DihedralViews(size).turns(words(200), 6)
    grid = np.arange(size**2).reshape(size, size)
    views = {dihedral_view(grid, view).tobytes() for view in range(NUM_VIEWS)}
    assert {row.reshape(size, size).astype(grid.dtype).tobytes() for row in cells} == views
    assert (tokens == np.arange(6)).all()
