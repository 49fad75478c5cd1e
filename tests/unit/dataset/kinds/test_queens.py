"""Queens: known numbers of solutions."""

import numpy as np
import pytest

from dataset.kinds.queens import FREE, QUEEN, QUEENS


@pytest.mark.parametrize(("size", "number"), [(6, 4), (7, 40), (8, 92)])
def test_the_known_numbers_of_solutions(size: int, number: int) -> None:
    question = np.full((size, size), FREE)
    assert QUEENS.rating_of(question) == number  # OEIS A000170.


def test_attacks_and_empty_lines_are_marked() -> None:
    board = QUEENS.parse(".Q....\n...Q..\n.....Q\nQ.....\n..Q...\n....Q.").question
    assert not QUEENS.broken(board).any()
    board[5] = FREE
    board[5, 5] = QUEEN  # In column 6 beside the queen of row 3; column 5 has none.
    wrong = QUEENS.broken(board)
    assert wrong[5, 5]
    assert wrong[2, 5]
    assert wrong[:, 4].all()
    assert not wrong[0, 1]
