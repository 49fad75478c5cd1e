"""Light Up by hand."""

import numpy as np

from dataset.kinds.light_up import LIGHT_UP, WALL, WHITE


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


def test_an_answer_that_turns_white_cells_into_walls_is_wrong() -> None:
    question = LIGHT_UP.parse("2....\n.....\n.....\n.....\n.....").question
    solution = LIGHT_UP.solution(question)
    assert solution is not None
    walled = np.where(solution == WHITE, WALL, solution)
    assert not LIGHT_UP.broken(walled).any()
    assert (LIGHT_UP.wrong(question, walled, None) == (solution == WHITE)).all()
    answers = np.stack([solution.reshape(-1), walled.reshape(-1)])
    valid, kept = LIGHT_UP.holds(np.stack([question.reshape(-1)] * 2), answers)
    assert (valid.tolist(), kept.tolist()) == ([True, False], [True, True])
