"""The eight views of grids and boards, and random turns of Sudokus."""

import numpy as np
import pytest

from dataset.dihedral import INVERSE_VIEWS, all_views, dihedral_view, view_keys
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku import rules
from dataset.sudoku.symmetries import SudokuSymmetries

GRID = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (0, [[1, 2, 3], [4, 5, 6]]),
        (1, [[3, 6], [2, 5], [1, 4]]),
        (2, [[6, 5, 4], [3, 2, 1]]),
        (3, [[4, 1], [5, 2], [6, 3]]),
        (4, [[3, 2, 1], [6, 5, 4]]),
        (5, [[4, 5, 6], [1, 2, 3]]),
        (6, [[1, 4], [2, 5], [3, 6]]),
        (7, [[6, 3], [5, 2], [4, 1]]),
    ],
)
def test_views_are_the_published_ones_and_can_be_undone(view: int, expected: list[list[int]]):
    seen = dihedral_view(GRID, view)
    assert seen.tolist() == expected
    assert dihedral_view(seen, INVERSE_VIEWS[view]).tolist() == GRID.tolist()
    assert dihedral_view(np.stack([GRID, GRID]), view).tolist() == [expected, expected]


def test_views_of_a_board_stay_together():
    boards = np.arange(1, 19, dtype=np.uint8).reshape(2, 9)
    views = all_views(boards)
    assert views.shape == (16, 9)
    assert views[[0, 8]].tolist() == boards.tolist()
    assert views[8 + 6].tolist() == boards[1].reshape(3, 3).T.reshape(-1).tolist()
    first, second = view_keys(boards)
    assert view_keys(views) == [first] * 8 + [second] * 8
    assert first != second


def words(number: int) -> np.ndarray:
    return np.random.Philox(key=5).random_raw(2 * number).reshape(2, number)


def solution(size: int) -> np.ndarray:
    grid, _ = rules.solve(np.zeros((size, size), int))
    assert grid is not None
    return SUDOKU.to_tokens(grid)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_turned_sudoku_is_one(size: int) -> None:
    tokens = solution(size)
    cells, renamed = SudokuSymmetries(size).turns(words(50))
    seen = set()
    for row, names in zip(cells, renamed, strict=True):
        assert sorted(row) == list(range(size**2))
        assert names[:2].tolist() == [0, 1]
        turned = names[tokens[row]]
        assert rules.are_valid_solutions(turned[None] - 1, size).all()
        seen.add(turned.tobytes())
    assert len(seen) > 15


def test_cells_are_turned_and_mirrored() -> None:
    cells, _ = SudokuSymmetries(6).turns(words(200))
    grid = np.arange(36).reshape(6, 6)
    upright = {dihedral_view(grid, view).tobytes() for view in (0, 2, 4, 5)}
    assert {row.reshape(6, 6).astype(grid.dtype).tobytes() for row in cells} == upright
