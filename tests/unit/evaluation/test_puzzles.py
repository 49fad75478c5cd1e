import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, parse_identifier
from dataset.arc.tasks import encode_canvas
from dataset.kinds.arc import ARC, arc_puzzles, cropped, read_arc_task
from dataset.kinds.base import Kind
from dataset.kinds.colouring import COLOURING
from dataset.kinds.maze import MAZE
from dataset.kinds.sudoku import SUDOKU
from dataset.maze import rules as maze
from evaluation.puzzles import kind_of, parse_names, parse_puzzle, puzzles_of
from models.config import DataFacts
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError

ROOM = """
S   #
## ##
    G
#####
#####"""
WAY = """
Soo #
##o##
  ooG
#####
#####"""


def grid(text: str) -> np.ndarray:
    rows = text.strip("\n").splitlines()
    return maze.text_to_tokens(["".join(rows)]).reshape(len(rows), -1).astype(np.int8)


@pytest.mark.parametrize(
    ("facts", "evaluators", "kind"),
    [
        (DataFacts(11, 81, 1), (), SUDOKU),
        (DataFacts(6, 16, 1, kind="maze"), (), MAZE),
        (DataFacts(6, 16, 1), ("sudoku",), SUDOKU),
        (DataFacts(6, 16, 1), (), None),
        (DataFacts(6, 16, 1), ("maze",), MAZE),
        (DataFacts(6, 900, 1), (), MAZE),
        (DataFacts(12, 900, 9), (), ARC),
        (DataFacts(8, 121, 9), ("arc",), ARC),
    ],
)
def test_the_facts_tell_the_kind(
    facts: DataFacts, evaluators: tuple[str, ...], kind: Kind | None
) -> None:
    assert kind_of(facts, evaluators) is kind


def test_facts_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="7 tokens and 81 cells are no Sudoku, maze or ARC"):
        kind_of(DataFacts(7, 81, 1))


def test_a_maze_is_read_in_rows_or_in_one_line() -> None:
    in_rows = MAZE.parse(ROOM)
    assert np.array_equal(in_rows.question, grid(ROOM))
    one_line = "".join(ROOM.strip("\n").splitlines())
    assert np.array_equal(MAZE.parse(one_line).question, in_rows.question)
    assert np.array_equal(MAZE.parse(one_line.replace(" ", ".")).question, in_rows.question)
    # An editor has removed the spaces at line ends.
    assert np.array_equal(MAZE.parse("S\n G").question, grid("S \n G"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("S G#x#   ", "cell 5 is 'x'"),
        ("SoG#", "1 S and 1 G; accepted: .* and no path"),
        ("S S ", "2 S and 0 G"),
        ("SG", "2 cells do not form a square"),
        ("", "0 cells do not form a square"),
        ("S 5\n  G\n   ", "cell 3 is '5'"),
    ],
)
def test_what_is_no_maze_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        MAZE.parse(text)


CUT, THROUGH = grid(WAY), grid(WAY)
CUT[1, 2] = maze.FREE
THROUGH[1, 0] = maze.PATH  # A wall.
OPEN, LONG = grid("S  \n   \nG  "), grid("Soo\n  o\nGoo")
CLUE = SUDOKU.parse("1...............").question
SOLVED = np.asarray(SUDOKU.solution(CLUE))
BROKEN = SOLVED.copy()
BROKEN[0, 0] = SOLVED[0, 0] % 4 + 1
RIGHT = ARC.to_grid(encode_canvas(np.array([[1, 2], [3, 4], [5, 6]], np.uint8)))
OFF = RIGHT.copy()
OFF[1, 1] = 2


@pytest.mark.parametrize(
    ("kind", "question", "answer", "target", "solved", "words"),
    [
        (MAZE, grid(ROOM), grid(WAY), None, True, "a shortest path from S to G, 6 moves"),
        (MAZE, grid(ROOM), CUT, None, False, "not a path from S to G: 2 cells cannot stay"),
        (MAZE, OPEN, LONG, None, False, "a path from S to G of 6 moves; the shortest has 2"),
        (SUDOKU, CLUE, SOLVED, None, True, "a valid Sudoku that keeps the clues"),
        (SUDOKU, CLUE, BROKEN, None, False, "not a solution"),
        (SUDOKU, CLUE, SOLVED % 4 + 1, None, False, "not a solution: 1 cell cannot stay"),
        (ARC, RIGHT, RIGHT, RIGHT, True, "a grid of 3 x 2 cells, the right one"),
        (ARC, RIGHT, RIGHT, None, None, "a grid of 3 x 2 cells"),
        (ARC, RIGHT, OFF, RIGHT, False, "3 x 2 cells, not the right one: it differs in 1 cell"),
    ],
)
def test_answers_are_judged(
    kind: Kind, question: Any, answer: Any, target: Any, solved: bool | None, words: str
) -> None:
    verdict = kind.judge(question, answer, target)
    assert verdict.solved is solved
    assert words in verdict.words


def test_what_cannot_stay_is_marked() -> None:
    assert np.array_equal(MAZE.solution(grid(ROOM)), grid(WAY))
    assert not MAZE.wrong(grid(ROOM), grid(WAY), None).any()
    assert np.argwhere(MAZE.wrong(grid(ROOM), CUT, None)).tolist() == [[0, 2], [2, 2]]
    assert MAZE.wrong(grid(ROOM), THROUGH, None)[1, 0]
    assert np.argwhere(ARC.wrong(RIGHT, OFF, RIGHT)).tolist() == [[1, 1]]
    assert not ARC.wrong(RIGHT, OFF, None).any()


def test_a_grid_is_found_where_the_question_lies() -> None:
    colours = np.array([[7, 0, 1]], np.uint8)
    canvas = ARC.to_grid(encode_canvas(colours))
    moved = np.roll(canvas, (3, 5), axis=(0, 1))
    assert np.array_equal(cropped(moved, moved), colours)
    assert cropped(canvas, np.zeros_like(canvas)).size == 0


def test_cells_of_arc_change_in_the_grids_alone() -> None:
    small, wide = (np.array(rows, np.uint8) for rows in ([[1, 2]], [[1, 3, 4], [5, 5, 5]]))
    before, after = (np.roll(ARC.to_grid(encode_canvas(each)), 2, axis=0) for each in (small, wide))
    after[20:] = 7  # Nobody asks what stands there.
    changed = np.argwhere(ARC.changed(before, before, after)).tolist()
    assert changed == [[2, 1], [2, 2], [3, 0], [3, 1], [3, 2]]
    assert np.array_equal(ARC.changed(before, after, before), ARC.changed(before, before, after))
    assert not ARC.changed(before, after, after).any()


def test_a_task_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "abc.json"
    pair = {"input": [[1]], "output": [[2]]}
    path.write_text(json.dumps({"train": [pair], "test": [pair, {"input": [[3, 3]]}]}))
    task = read_arc_task(path)
    first, second = arc_puzzles(task, ["<blank>", "other", "abc"])
    assert (first.identifier, first.name, second.target) == (2, "abc", None)
    assert cropped(second.question, second.question).tolist() == [[3, 3]]
    assert [puzzle.identifier for puzzle in arc_puzzles(task, None)] == [0, 0]
    with pytest.raises(DatasetError, match=r"abc\.json: the model has not seen task abc"):
        arc_puzzles(task, ["<blank>", "other"])


def test_a_task_is_known_by_its_own_name(tmp_path: Path) -> None:
    """A set built with --fit numbers its colours anew."""
    path, name = tmp_path / "abc.json", "abc|||t1|||0213456789"
    pair = {"input": [[1, 0]], "output": [[2], [0]]}
    path.write_text(json.dumps({"train": [pair], "test": [pair]}))
    names = ["<blank>", "abcd", name, "abc|||t0|||0213456789"]
    (puzzle,) = arc_puzzles(read_arc_task(path), names)
    assert (puzzle.identifier, puzzle.name) == (2, name)
    given = augment_grid(np.array([[1, 0]], np.uint8), *parse_identifier(name)[1:])
    assert np.array_equal(cropped(puzzle.question, puzzle.question), given)
    assert puzzle.target is not None
    for side, grid in (("input", puzzle.question), ("output", puzzle.target)):
        assert (ARC.seen(puzzle, grid) - 2).tolist() == pair[side]
    assert ARC.judge(puzzle.question, puzzle.target, puzzle.target).solved


def test_the_puzzles_of_a_data_set(sudoku_data: Path, tasks_data: Path) -> None:
    dataset = PuzzleDataset([sudoku_data], "test")
    inputs, labels = (np.load(sudoku_data / "test" / f"all__{n}.npy") for n in ("inputs", "labels"))
    puzzles = list(puzzles_of(dataset, SUDOKU))
    assert np.array_equal([puzzle.tokens for puzzle in puzzles], inputs)
    assert np.array_equal([SUDOKU.to_tokens(puzzle.target) for puzzle in puzzles], labels)
    (third,) = puzzles_of(dataset, SUDOKU, slice(2, 3))
    assert np.array_equal(third.question, puzzles[2].question)
    with pytest.raises(DatasetError, match="not Sudoku puzzles: 9 cells do not form a Sudoku"):
        list(puzzles_of(PuzzleDataset([tasks_data], "test"), SUDOKU))


def test_names_are_a_list_of_texts() -> None:
    with pytest.raises(DatasetError, match="expected a list of names"):
        parse_names(["a", 1], "identifiers.json")


def test_the_text_tells_an_unknown_kind() -> None:
    texts = (ROOM, "1234" + 12 * ".", "?#..#\n#?#..\n.#?#.\n..#?#\n#..#?")
    assert [parse_puzzle(text, None).kind for text in texts] == [MAZE, SUDOKU, COLOURING]
