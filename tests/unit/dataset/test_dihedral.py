"""The eight views of grids and boards."""

import numpy as np
import pytest

from dataset.dihedral import INVERSE_VIEWS, all_views, dihedral_view, view_keys

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
