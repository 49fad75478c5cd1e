"""KenKens by hand."""

import numpy as np
import pytest

from dataset.kinds.kenken import KENKEN, cages_of
from dataset.kinds.making import Draws


def board_of(cages: str, clues: dict[str, str], size: int = 4) -> str:
    """Draw a puzzle from one letter for each cell's cage, row by row, and the clue of each cage."""
    letter = np.array([*cages]).reshape(size, size)
    around = np.pad(letter, 1, constant_values=" ")
    rows, told = [[" "] * 3 * size for _ in range(3 * size)], set[str]()
    for row, column in np.ndindex(size, size):
        y, x, own = 3 * row + 1, 3 * column + 1, str(letter[row, column])
        rows[y][x] = "."
        for down, right in ((-1, 0), (0, -1), (0, 1), (1, 0)):
            if around[1 + row + down, 1 + column + right] != own:
                rows[y + down][x + right] = "#"
        if own not in told:
            told.add(own)
            for place, sign in zip(((-1, -1), (-1, 1), (1, -1), (1, 1)), clues[own], strict=False):
                rows[y + place[0]][x + place[1]] = sign
    return "\n".join("".join(row) for row in rows)


# 1 2 3 4    a a b b
# 3 4 1 2    c d d b
# 2 1 4 3    c e f f
# 4 3 2 1    g e h h
CAGES = "aabbcddbceffgehh"
CLUES = {"a": "2/", "b": "24x", "c": "5+", "d": "3-", "e": "4+", "f": "12x", "g": "4=", "h": "1-"}
ANSWER = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]


def answered(text: str, digits: list[list[int]]) -> np.ndarray:
    board = KENKEN.parse(text).question.copy()
    board[1::3, 1::3] = np.array(digits) + 1
    return board


def test_cages_are_read_with_their_clues() -> None:
    cages = cages_of(KENKEN.parse(board_of(CAGES, CLUES)).question)
    assert [(*cage,) for cage in cages] == [
        ([0, 1], "/", 2),
        ([2, 3, 7], "x", 24),
        ([4, 8], "+", 5),
        ([5, 6], "-", 3),
        ([9, 13], "+", 4),
        ([10, 11], "x", 12),
        ([12], "=", 4),
        ([14, 15], "-", 1),
    ]


def test_an_answer_must_make_all_numbers() -> None:
    text = board_of(CAGES, CLUES)
    question, right = KENKEN.parse(text).question, answered(text, ANSWER)
    assert KENKEN.judge(question, right, None).solved
    assert any(np.array_equal(one, right) for one in KENKEN.solutions(question))
    swapped = answered(text, [ANSWER[1], ANSWER[0], *ANSWER[2:]])
    marked = KENKEN.broken(swapped)[1::3, 1::3]
    # 3 4 1 2 above 1 2 3 4: a, b, c and d are broken now.
    assert marked.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_a_puzzle_is_rated_by_the_digits_that_its_cages_leave_open() -> None:
    letters = "abcdefghijklmnop"
    single = {one: f"{digit}=" for one, digit in zip(letters, np.ravel(ANSWER), strict=True)}
    assert KENKEN.rating_of(KENKEN.parse(board_of(letters, single)).question) == 0
    assert 0 < KENKEN.rating_of(KENKEN.parse(board_of(CAGES, CLUES)).question) < 16


def test_all_solutions_keep_the_rules_and_no_other_square_does() -> None:
    text = board_of(CAGES, CLUES)
    solutions = {one.tobytes() for one in KENKEN.solutions(KENKEN.parse(text).question)}
    first = np.array(ANSWER)
    tried = 0
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 1, 0], [0, 1, 3, 2]):
        for digits in ([1, 2, 3, 4], [2, 1, 4, 3], [4, 3, 2, 1]):
            board = answered(text, np.array(digits)[first[order] - 1].tolist())
            assert (board.tobytes() in solutions) == (not KENKEN.broken(board).any())
            tried += 1
    assert tried == 15


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (board_of(CAGES, CLUES | {"a": ""}), r"row 1, column 1: 2 cells with the clues \[\]"),
        (board_of(CAGES, CLUES | {"d": "3?"}), "cell .* is '\\?'"),
        (board_of(CAGES, CLUES | {"d": "33"}), r"row 2, column 2: 2 cells with the clues \['33'\]"),
        (board_of(CAGES, CLUES).replace("#", " ", 1), "row 1, column 1: a wall has one side only"),
        (board_of("a" * 16, {"a": "40+"}), "16 cells"),
        (board_of(CAGES, CLUES)[:14] + "7" + board_of(CAGES, CLUES)[15:], "row 1, column 1: not"),
        (board_of(CAGES, CLUES).replace("#", "2", 1), "row 1, column 1: a side is neither # nor"),
        ("....\n....\n....\n....", "4 rows; accepted: three for each row of the square"),
    ],
)
def test_what_makes_no_cages_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        KENKEN.parse(text)


@pytest.mark.parametrize("size", KENKEN.sizes)
def test_a_drawn_puzzle_has_one_solution_in_all_views(size: int) -> None:
    question, answer = (board.astype(np.uint8) for board in KENKEN.draw(size, Draws(1, 2, size)))
    numbers = np.arange(8)
    boards = [np.tile(board.reshape(-1), (8, 1)) for board in (question, answer)]
    for asked, right in zip(*KENKEN.views(3 * size).apply(numbers, *boards), strict=True):
        (found,) = KENKEN.solutions(KENKEN.to_grid(asked))
        assert found.reshape(-1).tolist() == right.tolist()
    sizes = [len(cage.cells) for cage in cages_of(question)]
    assert max(sizes) <= 3
    assert 2 in sizes
