"""Sudokus of 16 x 16 cells and with diagonals, by hand."""

import numpy as np
import pytest

from dataset.kinds.base import Kind, kind_named
from dataset.kinds.making import Draws
from dataset.kinds.sudoku_16 import SUDOKU_16
from dataset.kinds.sudoku_x import SUDOKU_X
from models.biases.sudoku.config import require_sudoku
from models.config import DataFacts
from runtime.errors import ConfigError

WITH_DIAGONALS = "1234432121433412"
WITHOUT_DIAGONALS = "1234341221434321"


def test_both_diagonals_have_each_digit_once() -> None:
    right, other = (SUDOKU_X.parse(text).question for text in (WITH_DIAGONALS, WITHOUT_DIAGONALS))
    assert not SUDOKU_X.broken(right).any()
    # 1, 4, 4, 1 and 4, 1, 1, 4.
    crossed = np.eye(4, dtype=bool) | np.eye(4, dtype=bool)[::-1]
    assert SUDOKU_X.broken(other).tolist() == crossed.tolist()


def test_diagonals_decide_what_lines_and_boxes_leave_open() -> None:
    question = SUDOKU_X.parse("1..4....2..3....").question
    found = ["".join(map(str, one.reshape(-1) - 1)) for one in SUDOKU_X.solutions(question)]
    assert WITH_DIAGONALS in found
    assert WITHOUT_DIAGONALS not in found
    assert all(not SUDOKU_X.broken(SUDOKU_X.parse(text).question).any() for text in found)


def test_sixteen_digits_are_written_with_letters_and_boxes_count() -> None:
    rows, columns = np.indices((16, 16))
    right = (4 * (rows % 4) + rows // 4 + columns) % 16
    text = "\n".join("".join("123456789ABCDEFG"[cell] for cell in row) for row in right)
    assert not SUDOKU_16.broken(SUDOKU_16.parse(text).question).any()
    shifted = (rows + columns) % 16  # It has no digit twice in a line, but in boxes.
    assert SUDOKU_16.broken(shifted + 2).sum() == 16 * 14  # In each box two are single.
    with pytest.raises(ValueError, match="cell 3 is 'H'"):
        SUDOKU_16.parse("12H" + "." * 253)


@pytest.mark.parametrize(("kind", "size"), [("sudoku_x", 4), ("sudoku_x", 9)])
def test_a_drawn_puzzle_has_one_solution_in_its_views(kind: str, size: int) -> None:
    one: Kind = kind_named(kind)
    made = one.draw(size, Draws(1, 2, size))
    assert made is not None
    boards = [np.tile(board.astype(np.uint8).reshape(-1), (4, 1)) for board in made]
    views = one.views(size)
    assert views is not None
    turned = views.apply(np.arange(4), *boards)
    assert len({board.tobytes() for board in turned[0]}) > 1
    for asked, right in zip(*turned, strict=True):
        (found,) = one.solutions(one.to_grid(asked))
        assert found.reshape(-1).tolist() == right.tolist()


def test_other_sizes_and_models_without_diagonals_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows; accepted for Sudoku X: 4, 9, 16"):
        SUDOKU_X.parse("." * 25)
    require_sudoku(DataFacts(18, 256, 1, kind="sudoku_16"), "it")
    with pytest.raises(ConfigError, match="9 x 9 cells"):
        require_sudoku(DataFacts(18, 256, 1, kind="sudoku_16"), "it", most_cells=81)
    with pytest.raises(ConfigError, match="16 x 16 cells"):
        require_sudoku(DataFacts(11, 81, 1, kind="sudoku_x"), "it")


def test_views_of_sixteen_keep_the_rules() -> None:
    rows, columns = np.indices((16, 16))
    right = ((4 * (rows % 4) + rows // 4 + columns) % 16 + 2).astype(np.uint8).reshape(1, -1)
    turned = SUDOKU_16.views(16).apply(np.arange(20), right.repeat(20, 0))[0]
    assert len({board.tobytes() for board in turned}) == 20
    assert not any(SUDOKU_16.broken(board.reshape(16, 16)).any() for board in turned)
