"""Futoshikis by hand."""

import numpy as np
import pytest

from dataset.kinds.futoshiki import FUTOSHIKI

# The signs of the first row and the first column allow only 1 2 3 4.
SIGNS = ".<.<.<.\n^      \n. . . .\n^      \n. .>. .\n^      \n. . . 3\n"


def test_signs_decide_a_row_and_a_column() -> None:
    question = FUTOSHIKI.parse(SIGNS).question
    solution = FUTOSHIKI.solution(question)
    assert solution is not None
    assert (solution[0, ::2] - 1).tolist() == [1, 2, 3, 4]
    assert (solution[::2, 0] - 1).tolist() == [1, 2, 3, 4]
    assert (solution[4, ::2] - 1).tolist() == [3, 4, 1, 2]
    assert FUTOSHIKI.judge(question, solution, None).solved


def test_a_broken_sign_marks_both_cells() -> None:
    answer = FUTOSHIKI.parse(
        "1>2 3 4\n       \n2 1 4 3\n      v\n3 4 1 2\n       \n4 3 2 1"
    ).question
    assert np.argwhere(FUTOSHIKI.broken(answer)).tolist() == [[0, 0], [0, 2]]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (SIGNS.replace("^", "<"), "row 2, cell 1"),
        (SIGNS.replace(".<.<.<.", ".^.<.<."), "row 1, cell 2"),
        (SIGNS.replace("<.<.<.", "2.<.<."), "row 1, cell 2"),
        (SIGNS.replace(". . . 3", ". . . <"), "row 7, cell 7"),
        ("....\n....\n....\n....", "row 1, cell 2"),
    ],
)
def test_what_stands_in_the_wrong_place_is_named(text: str, place: str) -> None:
    with pytest.raises(ValueError, match=f"{place} does not fit; accepted: digits in every second"):
        FUTOSHIKI.parse(text)
