import numpy as np

from apps.reports.boards import Board
from apps.reports.terminal import as_text, side_by_side, visible
from dataset.arc.tasks import encode_canvas
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from dataset.kinds.maze import MAZE
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import parse_puzzle

SOLUTION = parse_puzzle("1234341221434321")
QUESTION = np.where(np.eye(4, dtype=bool), SOLUTION, 0).astype(np.int8)


def plain(text: str) -> list[int]:
    return [visible(line) for line in text.splitlines()]


def test_colours_say_what_marks_say_elsewhere() -> None:
    answer = SOLUTION.copy()
    answer[3, 0] = 3
    board = Board(Puzzle(SUDOKU, QUESTION), answer)
    without, with_colours = as_text(board, colour=False), as_text(board, colour=True)
    assert without.count("!") == 3
    assert "\x1b" not in without
    assert with_colours.count("\x1b[1;31m") == 3
    assert "!" not in with_colours
    assert "┌─────┬─────┐" in with_colours
    assert plain(with_colours) == plain(without)


def test_mazes_and_arc_grids_have_a_plain_and_a_coloured_form() -> None:
    puzzle = MAZE.parse("S  #   #       G")
    answer = puzzle.question.copy()
    answer[0, 1] = 5
    text = as_text(Board(puzzle, answer), colour=False)
    assert text.splitlines()[0] == "S  #    S! #"
    assert "\x1b[43;30m>" in as_text(Board(puzzle, answer), colour=True)

    grid = np.array([[1, 0], [3, 4]], np.uint8)
    canvas, other = (ARC.to_grid(encode_canvas(each)) for each in (grid, grid.T))
    board = Board(Puzzle(ARC, canvas, canvas, 1, "abc"), other)
    lines = as_text(board, colour=False).splitlines()
    assert lines[0].split("  ")[0] == "input"
    assert lines[1].split() == ["1", ".", "1!3", "1", "."]
    assert lines[2].split() == ["3", "4", "!.", "4", "3", "4"]
    coloured = as_text(board, colour=True)
    assert coloured.count("><") == 2
    assert "48;2;46;204;64" in coloured  # Colour 3.


def test_blocks_of_several_heights_stand_side_by_side() -> None:
    text = side_by_side([("a", ["1", "22"]), ("title", ["x"]), ("", ["y", "y", "y"])])
    assert text.splitlines() == [
        "a     title",
        "1     x        y",
        "22             y",
        "               y",
    ]
