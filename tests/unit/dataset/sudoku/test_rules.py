"""Sudoku rules, text, tokens and solver, compared with known puzzles and counts."""

import numpy as np
import pytest

from dataset import compiled
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku import rules
from dataset.sudoku.rules import count_solutions, parse_puzzle, solve

# A puzzle that needs no guess, and one of the hardest known.
EASY = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
EASY_ANSWER = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
HARD = "..53.....8......2..7..1.5..4....53...1..7...6..32...8..6.5....9..4....3......97.."
HARD_ANSWER = "145327698839654127672918543496185372218473956753296481367542819984761235521839764"
SEVENTEEN_CLUES = (
    "000000010400000000020000000000050407008000300001090000300400200050100000000806000"
)
SIX_BY_SIX = "1.....\n.2....\n..3...\n...4..\n....5.\n.....6"


def test_boxes_of_six_are_two_rows_by_three_columns():
    box = rules.layout_of(6).cell_units[:, 2].reshape(6, 6) - 12
    assert box.tolist() == [[band] * 3 + [band + 1] * 3 for band in (0, 0, 2, 2, 4, 4)]


def test_parse_puzzle_reads_lines_and_frames():
    rows = [EASY[start : start + 9] for start in range(0, 81, 9)]
    framed = "\n".join(f"| {row[:3]} | {row[3:6]} | {row[6:]} |\n+---+---+---+" for row in rows)
    grid = parse_puzzle(framed)
    assert grid.shape == (9, 9)
    assert grid.dtype == np.int8
    assert grid.tolist() == parse_puzzle(EASY.replace(".", "0")).tolist()
    assert grid[0].tolist() == [5, 3, 0, 0, 7, 0, 0, 0, 0]
    assert parse_puzzle(SIX_BY_SIX).diagonal().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EASY[:-1], "80 cells"),
        ("", "0 cells"),
        (EASY.replace("7", "x", 1), "cell 5 is 'x'"),
        (EASY.replace("7", "٧", 1), "cell 5 is '٧'"),
        (SIX_BY_SIX.replace("6", "7"), "cell 36 is '7'.*1 to 6"),
        ("1..1" + 12 * ".", "digit 1 stands twice in row 1"),
        (2 * "3.......", "digit 3 stands twice in column 1"),
        ("2....2.." + 8 * ".", "digit 2 stands twice in box 1"),
    ],
)
def test_parse_puzzle_says_what_is_wrong(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_puzzle(text)


def test_tokens_and_back():
    grid = parse_puzzle(HARD)
    tokens = SUDOKU.to_tokens(grid)
    assert tokens.dtype == np.uint8
    assert tokens[:4].tolist() == [1, 1, 6, 4]
    assert SUDOKU.to_grid(tokens).tolist() == grid.tolist()
    assert SUDOKU.to_grid(np.array([0, 1, 2, 5] * 4))[0].tolist() == [0, 0, 1, 4]  # 0 is padding


@pytest.mark.parametrize(("token", "cells"), [(6, 16), (-1, 16), (8, 36), (11, 81)])
def test_tokens_out_of_range_are_refused(token: int, cells: int):
    tokens = np.ones(cells, dtype=np.int32)
    tokens[3] = token
    with pytest.raises(ValueError, match=f"{token}"):
        SUDOKU.to_grid(tokens)


def test_valid_solutions():
    answer = parse_puzzle(EASY_ANSWER)
    swapped, one_empty, too_high = answer.copy(), answer.copy(), answer.copy()
    swapped[0, [0, 1]] = swapped[0, [1, 0]]
    one_empty[8, 8], too_high[0, 0] = 0, 100
    latin = (np.arange(9)[:, None] + np.arange(9)) % 9 + 1  # rows and columns right, boxes wrong
    grids = np.stack([answer, swapped, one_empty, too_high, latin, np.zeros((9, 9))])
    valid = rules.are_valid_solutions(grids.reshape(-1, 81).astype(np.int16), 9)
    assert valid.tolist() == [True, False, False, False, False, False]


@pytest.mark.parametrize(("question", "answer"), [(EASY, EASY_ANSWER), (HARD, HARD_ANSWER)])
def test_known_puzzles_are_solved(question: str, answer: str):
    grid, backtracks = solve(parse_puzzle(question))
    assert grid is not None
    assert grid.tolist() == parse_puzzle(answer).tolist()
    assert (backtracks > 0) == (question == HARD)  # the easy one needs no guess
    assert count_solutions(parse_puzzle(question)) == 1


def test_known_numbers_of_solutions():
    assert count_solutions(np.zeros((4, 4), dtype=np.int8), limit=1000) == 288
    # There are 28,200,960 grids of size 6, and 720 first rows.
    first_row = np.zeros((6, 6), dtype=np.int8)
    first_row[0] = range(1, 7)
    assert count_solutions(first_row, limit=100_000) == 28_200_960 // 720
    assert count_solutions(parse_puzzle(SEVENTEEN_CLUES)) == 1
    fewer = parse_puzzle(SEVENTEEN_CLUES)
    fewer[0, 7] = 0
    assert count_solutions(fewer, limit=7) == 7


def test_counting_without_the_compiler_finds_the_same():
    fewer = parse_puzzle(SEVENTEEN_CLUES)
    fewer[0, 7] = 0
    contradiction = parse_puzzle(EASY)
    contradiction[0, 2] = 1  # Another digit than the solution's 4.
    for question in (parse_puzzle(EASY), parse_puzzle(HARD), fewer, contradiction):
        assert rules.count_plainly(question) == count_solutions(question)
    assert rules.count_plainly(np.zeros((4, 4), dtype=np.int8), limit=1000) == 288
    assert rules.count_plainly(parse_puzzle(HARD), most_steps=100) is None


def test_without_a_folder_for_its_cache_the_compiler_goes_without(monkeypatch: pytest.MonkeyPatch):
    calls = []

    def njit(*, nogil, cache=False):
        calls.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(compiled.numba, "njit", njit)
    assert compiled.compiled(len) is len
    assert calls == [True, False]
