"""Maze tokens, shortest paths and the check of drawn paths, compared with drawings."""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from dataset.kinds.maze import MAZE as KIND
from dataset.maze import rules
from dataset.maze.rules import check_paths, path_actions, solve, text_to_tokens


def text_of(tokens: np.ndarray) -> str:
    return KIND.board(0).text(tokens.reshape(1, -1))


def tokens(*drawings: str) -> np.ndarray:
    """Return drawings, with lines separated by `/`, as tokens, uint8 [N, cells]."""
    return text_to_tokens([drawing.replace("/", "") for drawing in drawings])


def verdict(maze: str, drawing: str) -> tuple[bool, bool]:
    valid, shortest = check_paths(tokens(maze), tokens(drawing))
    return bool(valid[0]), bool(shortest[0])


def test_tokens_are_the_published_ones():
    assert tokens("# SGo").tolist() == [[1, 2, 3, 4, 5]]
    for text in (".", "O", "s", "é", "\udcff", "\0", "\n"):
        assert tokens(text).tolist() == [[0]]


def test_tokens_of_no_grid_are_refused():
    for cells, message in (
        ([1, 2, 3], "3 cells do not form a square grid"),
        ([1], "1 cells do not form a square grid"),
        ([1, 2, 3, 6], "tokens from 1 to 6; accepted: 0 to 5"),
        ([1, 2, -1, 4], "tokens from -1 to 4; accepted: 0 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            KIND.to_grid(np.array(cells))


def test_what_is_a_maze():
    drawings = ["SG #", "  GS", "SGG ", "SSG ", "SG o", "SG ?", "S   ", "   G"]
    assert rules.are_mazes(tokens(*drawings)).tolist() == [True, True] + [False] * 6


@pytest.mark.parametrize(
    ("maze", "answer", "moves"),
    [
        ("S  /   /  G", "S  o  ooG", 4),  # down first
        ("G  /   /  S", "G  o  ooS", 4),  # left before up
        ("  S/   /G  ", "  S  oGoo", 4),
        ("  G/   /S  ", "  G  oSoo", 4),  # right before up
        ("SG/  ", "SG  ", 1),
        ("S#/#G", "S##G", -1),
        ("##S/G##/   ", "##SG##   ", -1),  # moves do not wrap around the edge
        ("  S/###/G  ", "  S###G  ", -1),
        (" # /S#G/ # ", " # S#G # ", -1),
    ],
)
def test_of_equal_paths_it_is_the_one_down_first(maze: str, answer: str, moves: int):
    labels, found = solve(tokens(maze))
    assert (text_of(labels[0]), found.tolist()) == (answer, [moves])


# Drawn paths

MAZE = "S   /    / ## /   G"


@pytest.mark.parametrize(
    ("drawing", "expected"),
    [
        ("S   /o   /o## /oooG", (True, True)),
        ("Sooo/   o/ ##o/   G", (True, True)),
        ("Soo /   o/ ##o/   G", (False, False)),  # torn
        ("S   /    / ## /   G", (False, False)),  # nothing drawn
        ("S   /o   /o## /oo G", (False, False)),  # one cell short
        ("So  /o   /o## /oooG", (False, False)),  # a branch of one cell
        ("S  o/o   /o## /oooG", (False, False)),  # a cell elsewhere
        ("Sooo/o  o/o##o/oooG", (False, False)),  # both ways
        ("Sooo/oooo/o##o/oooG", (False, False)),  # everywhere
        ("S   /o   /o#o /oooG", (False, False)),  # through a wall, beside a good path
        ("So  / o  / o# / ooG", (False, False)),  # through a wall
        ("S   /o   /o## /oooo", (False, False)),  # over G
        ("S   /o   /o## /oooG".replace("#", " "), (False, False)),  # walls gone
        ("S   /o   /o## /oooG".replace(" ", "#"), (False, False)),  # walls elsewhere
        ("S  S/o   /o## /oooG", (False, False)),  # a second S
        ("S  ?/o   /o## /oooG", (False, False)),  # padding
    ],
)
def test_drawings(drawing: str, expected: tuple[bool, bool]):
    assert verdict(MAZE, drawing) == expected


def test_a_detour_is_valid_and_any_integers_will_do():
    maze, detour = tokens("S G  " + " " * 20), tokens("S G  /o o  /ooo  " + " " * 10)
    for inputs, preds in ((maze, detour), (np.asfortranarray(maze.astype(np.int64)), detour + 0)):
        assert [int(found[0]) for found in rules.measure_paths(inputs, preds)[:2]] == [6, 2]
        assert [bool(found[0]) for found in check_paths(inputs, preds)] == [True, False]
        assert solve(inputs)[0].dtype == path_actions(preds).dtype == np.uint8
    empty = np.zeros((0, 16), dtype=np.uint8)
    assert [len(found) for found in (*check_paths(empty, empty), path_actions(empty))] == [0, 0, 0]


@pytest.mark.parametrize("token", [-1, 0, 6, 261, 2**40 + 5])
def test_predictions_out_of_range_are_not_valid(token: int):
    preds = tokens("S   /o   /o## /oooG").astype(np.int64)
    preds[0, 4] = token
    assert check_paths(tokens(MAZE), preds)[0].tolist() == [False]


def test_actions_are_the_moves_along_the_path():
    drawings = ["So#/#o /Go ", "ooG/o# /S# ", "GoS/   /   "]
    assert path_actions(tokens(*drawings)).tolist() == [
        [3, 1, 0, 0, 1, 0, 0, 2, 0],
        [3, 3, 0, 4, 0, 0, 4, 0, 0],
        [0, 2, 2, 0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("drawing", "reason"),
    [
        ("S G/   /   ", "label 1 draws no path"),
        ("SoG/o  /   ", "label 1 draws no path"),
        ("SoG/   /o  ", "label 1 draws no path"),
        ("SoG/   /  S", "input 1 is not a maze"),
    ],
)
def test_actions_need_a_path(drawing: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        path_actions(tokens("SoG/   /   ", drawing))


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (
            tokens(MAZE, "S" * 16),
            "input 1 is not a maze; accepted tokens: 1 and 2, and 3 and 4 once",
        ),
        (tokens("S   /o   /o## /oooG"), "input 0 is not a maze"),
        (tokens(MAZE)[:, :15], "15 cells do not form a square grid"),
    ],
)
def test_inputs_that_are_no_mazes_are_named(inputs: np.ndarray, reason: str):
    with pytest.raises(ValueError, match=reason):
        solve(inputs)
    with pytest.raises(ValueError, match=reason):
        check_paths(inputs, inputs)


@pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set")
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_published_answers_are_the_solvers(split: str):
    path = Path(os.environ["PUZZLE_DATA_DIR"]) / "maze-30x30-hard-1k" / f"{split}.csv.gz"
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    questions = text_to_tokens([row["question"] for row in rows])
    answers = text_to_tokens([row["answer"] for row in rows])
    labels, moves = solve(questions)
    assert len(rows) == 1000
    assert (labels == answers).all()
    assert (moves + 1).tolist() == [int(row["rating"]) for row in rows]
    valid, shortest = check_paths(questions, answers)
    assert valid.all()
    assert shortest.all()
    assert not check_paths(questions, questions)[0].any()
    actions = path_actions(answers)
    closer = rules.closer_neighbours(rules.moves_to_goal(questions)).astype(int)
    first = np.log2(np.maximum(closer & -closer, 1)).astype(int) + 1  # of down, left, right, up
    assert (first == actions)[actions > 0].all()


def test_closer_neighbours_are_those_one_move_nearer_to_the_goal() -> None:
    questions = tokens("S  /   /  G", "G #/ ##/# S")
    found = rules.closer_neighbours(rules.moves_to_goal(questions))
    # 1 down, 2 left, 4 right, 8 up; walls, G and lost cells have none.
    assert found.dtype == np.uint8
    assert found.reshape(2, 3, 3).tolist() == [
        [[5, 5, 1], [5, 5, 1], [4, 4, 0]],
        [[0, 2, 0], [8, 0, 0], [0, 0, 0]],
    ]


def test_tokens_and_closer_neighbours_can_be_known_when_their_waves_have_passed() -> None:
    questions = tokens("S  /   /  G", "G #/ ##/# S")
    moves = rules.moves_to_goal(questions)
    found = rules.arrivals(moves[:1], solve(questions[:1])[0])
    # Moves to G: 4 3 2, 3 2 1, 2 1 0; the path goes down first. In pairs, rounded up.
    assert found.dtype == np.uint8
    assert found[..., 0].reshape(3, 3).tolist() == [[2, 2, 1], [3, 1, 1], [3, 4, 0]]
    assert found[..., 1].reshape(3, 3).tolist() == [[2, 2, 1], [2, 1, 1], [1, 1, 0]]
    lost = rules.arrivals(moves[1:], questions[1:])
    for times in (0, 1):
        assert lost[..., times].reshape(3, 3).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
