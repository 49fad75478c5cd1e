"""Latin squares: known numbers, and squares by hand."""

import numpy as np

from dataset.kinds.latin_square import LATIN_SQUARE


def test_there_are_576_latin_squares_of_order_4() -> None:
    rules = LATIN_SQUARE.rules(np.ones((4, 4), int))
    assert len([*rules.solutions([])]) == 576  # OEIS A002860.


def test_cells_that_break_the_rule_are_marked() -> None:
    question = LATIN_SQUARE.parse("1...\n.2..\n..3.\n...4").question
    right = LATIN_SQUARE.parse("1342\n4213\n2431\n3124").question
    assert LATIN_SQUARE.judge(question, right, None).solved
    wrong = right.copy()
    wrong[0, 1] = wrong[0, 2]  # 4 twice in row 1, and in column 2
    assert np.argwhere(LATIN_SQUARE.broken(wrong)).tolist() == [[0, 1], [0, 2], [2, 1]]
    other = LATIN_SQUARE.parse("2341\n1234\n4123\n3412").question  # right, but not with these clues
    assert not LATIN_SQUARE.broken(other).any()
    verdict = LATIN_SQUARE.judge(question, other, None)
    assert verdict.solved is False
    assert "3 cells cannot stay" in verdict.words
