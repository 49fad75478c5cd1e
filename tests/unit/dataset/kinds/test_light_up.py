"""Light Up by hand."""

import numpy as np

from dataset.kinds.light_up import LIGHT_UP


def test_bulbs_light_rows_and_columns_up_to_a_wall() -> None:
    question = LIGHT_UP.parse("...#.\n##.#.\n.1...\n..#.#\n.....").question
    bulb = question.copy()
    bulb[0, 1] = 2
    dark = LIGHT_UP.broken(bulb) & (bulb == 1)
    assert not dark[0, :3].any()
    assert dark[0, 4]
    assert dark[2, 0]


def test_dark_cells_bulbs_in_sight_and_numbers_are_marked() -> None:
    board = LIGHT_UP.parse("*...*\n.....\n..1..\n.....\n.....").question
    wrong = LIGHT_UP.broken(board)
    assert wrong[0, 0]
    assert wrong[0, 4]
    assert wrong[2, 2]  # No bulb is beside the 1.
    assert wrong[1, 1]
    assert not wrong[3, 0]


def test_a_number_with_more_bulbs_than_neighbours_has_no_solution() -> None:
    assert LIGHT_UP.solution(LIGHT_UP.parse("3....\n.....\n.....\n.....\n.....").question) is None
    solution = LIGHT_UP.solution(LIGHT_UP.parse("2....\n.....\n.....\n.....\n.....").question)
    assert solution is not None
    assert np.argwhere(solution == 2).tolist()[:2] == [[0, 1], [1, 0]]
