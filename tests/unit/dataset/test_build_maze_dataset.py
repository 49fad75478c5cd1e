"""The maze builder; the parts shared with the Sudoku builder are in test_puzzle_build."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from dataset.build_maze_dataset import MazeBuild
from dataset.dihedral import dihedral_view, view_keys
from dataset.kinds.maze import MAZE
from dataset.maze import generator
from dataset.maze.pieces import cut_pieces
from dataset.maze.rules import (
    FREE,
    GOAL,
    PATH,
    START,
    WALL,
    check_paths,
    closer_neighbours,
    moves_to_goal,
    path_actions,
    solve,
    text_to_tokens,
)

Patch = pytest.MonkeyPatch
ErrorLine = Callable[[], str]


def text_of(tokens: np.ndarray) -> str:
    return MAZE.board(0).text(tokens.reshape(1, -1))


@pytest.fixture
def questions(maze: Any) -> list[str]:
    """The training mazes and the test maze."""
    return [row.split(",")[1] for row in (*maze.train, *maze.test)]


def row(question: str) -> str:
    answer = text_of(solve(text_to_tokens([question]))[0][0])
    return f"made,{question},{answer},{answer.count('o') + 2}"


def test_a_folder_becomes_the_published_format(maze: Any, questions: list[str]):
    assert maze() == 0
    metadata, train = maze.arrays()
    assert json.loads((maze.output / "train/dataset.json").read_text()) == {
        **maze.facts(groups=3, puzzles=3),
        "fields": {"actions": {"num_classes": 5}},
    }
    assert train.inputs.shape == train.labels.shape == (3, metadata.seq_len)
    assert train.inputs[0].tolist() == [3, 2, 2, 2, 1, 2, 1, 2, 1, 2, 1, 2, 2, 2, 2, 4]
    assert train.labels[0].tolist() == [3, 5, 2, 2, 1, 5, 1, 2, 1, 5, 1, 2, 2, 5, 5, 4]
    assert [text_of(inputs) for inputs in train.inputs] == questions[:3]
    assert train.fields["actions"].dtype == np.uint8
    assert train.fields["actions"][0].tolist() == [3, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 3, 0]
    assert train.puzzle_identifiers.tolist() == [0] * 3
    assert train.group_indices.tolist() == train.puzzle_indices.tolist() == [0, 1, 2, 3]
    assert json.loads((maze.output / "identifiers.json").read_text()) == ["<blank>"]
    _, test = maze.arrays("test")
    assert [text_of(labels) for labels in test.labels] == [maze.test[0].split(",")[2]]


def test_views_turn_inputs_and_labels_together_and_train_only(maze: Any, questions: list[str]):
    assert maze("--aug") == 0
    metadata, train = maze.arrays()
    assert (metadata.total_groups, metadata.total_puzzles) == (3, 24)
    assert train.group_indices.tolist() == [0, 8, 16, 24]
    assert train.puzzle_indices.tolist() == list(range(25))
    assert check_paths(train.inputs, train.labels)[1].all()
    for number, question in enumerate(questions[:3]):
        group = slice(8 * number, 8 * number + 8)
        assert text_of(train.inputs[8 * number]) == question
        assert len({inputs.tobytes() for inputs in train.inputs[group]}) == 8
        assert len(set(view_keys(np.asarray(train.inputs[group])))) == 1
        for view in range(8):
            turned = dihedral_view(train.labels[8 * number].reshape(4, 4), view)
            assert train.labels[8 * number + view].tolist() == turned.reshape(-1).tolist()
        assert (path_actions(train.labels[group]) == train.fields["actions"][group]).all()
    assert maze.arrays("test")[1].num_examples == 1


def test_pixels_are_the_answers_colours_and_change_no_other_array(maze: Any):
    assert maze("--aug") == 0
    plain = maze.contents()
    assert maze("--aug", "--pixels") == 0
    coloured = maze.contents()
    pixels = {"pixels": {"num_classes": 256, "channels": 3}}
    declared = json.loads(coloured["train/dataset.json"])["fields"]
    assert declared == {"actions": {"num_classes": 5}} | pixels
    colours = np.array(["000000", "000000", "FFFFFF", "2ECC40", "FF4136", "0074D9"])
    table = np.array([list(bytes.fromhex(colour)) for colour in colours])
    for split, number in (("train", 24), ("test", 1)):
        _, arrays = maze.arrays(split)
        assert arrays.fields["pixels"].shape == (number, 16, 3)
        assert (arrays.fields["pixels"] == table[arrays.labels]).all()
    assert "--pixels" in json.loads(coloured["manifest.json"])["command"]
    differing = {name for name in coloured if plain.get(name) != coloured[name]}
    names = ("train/dataset.json", "test/dataset.json", "train/all__pixels.npy")
    assert differing == {"manifest.json", "test/all__pixels.npy", *names}


def test_closer_neighbours_are_those_of_each_view(maze: Any):
    assert maze("--aug", "--closer") == 0
    for split, number in (("train", 24), ("test", 1)):
        _, arrays = maze.arrays(split)
        assert arrays.fields["closer"].shape == (number, 16)
        assert (arrays.fields["closer"] == closer_neighbours(moves_to_goal(arrays.inputs))).all()


def test_pieces_are_cut_out_of_the_mazes_and_have_shortest_paths(maze: Any, questions: list[str]):
    assert maze("--cut=3", "--min-length=2") == 0
    metadata, train = maze.arrays()
    assert metadata.seq_len == 9
    walls = text_to_tokens(questions[:3]).reshape(3, 4, 4) == WALL
    places = sliding_window_view(walls, (3, 3), axis=(1, 2)).reshape(-1, 9).tolist()
    assert 0 < train.num_examples <= 3  # A piece may have no path of two moves.
    assert all((maze == WALL).tolist() in places for maze in train.inputs)
    assert (solve(train.inputs)[0] == train.labels).all()
    assert (train.labels == PATH).any(axis=1).all()


def test_pieces_depend_on_the_seed_and_use_all_places():
    empty = np.full((40, 100), FREE, np.uint8)
    empty.reshape(40, 10, 10)[:, :, 0] = WALL
    pieces = cut_pieces(empty, 5, 1, seed=0)
    assert len(pieces.questions) == 160
    assert (pieces.ratings == (pieces.answers == PATH).sum(axis=1) + 2).all()
    at_wall = (pieces.questions.reshape(-1, 5, 5)[:, :, 0] == WALL).all(axis=1)
    assert 10 < at_wall.sum() < 50  # One place in six.
    ends = [np.bincount((pieces.questions == end).argmax(axis=1)) for end in (START, GOAL)]
    assert all((counts > 0).sum() > 20 for counts in ends)
    again, other = cut_pieces(empty, 5, 1, seed=0), cut_pieces(empty, 5, 1, seed=1)
    assert (again.questions == pieces.questions).all()
    assert (other.questions != pieces.questions).any()


def test_pieces_that_cannot_be_cut_are_named(maze: Any, error_line: ErrorLine):
    assert maze("--cut=2", "--min-length=4") == 3
    assert "train.csv: no piece has a path of 4 moves" in error_line()
    for flags, problem in (
        (["--cut=5"], "--cut 5 is more than --size 4"),
        (["--cut=3", "--selection-size=1"], "--cut and --selection-size do not go together"),
        (["--min-length=3"], "--min-length is for --source generate and for --cut"),
    ):
        with pytest.raises(SystemExit):
            maze(*flags)
        assert problem in error_line()


def test_no_maze_is_cut_for_both_splits(
    maze: Any, error_line: ErrorLine, capsys: pytest.CaptureFixture[str]
):
    turned = "made,#G #   S# #    #,#G # ooS# #    #,"  # The test maze.
    maze.write([turned])
    assert maze("--cut=3", "--min-length=2") == 3
    assert "train.csv: all mazes are in test.csv, too" in error_line()
    written = []
    for rows in (maze.train, [turned, *maze.train]):
        maze.write(rows)
        assert maze("--cut=3", "--min-length=2") == 0
        written.append(maze.arrays()[1].inputs.tolist())
    assert written[0] == written[1]
    counts = json.loads((maze.output / "manifest.json").read_text())["counts"]
    assert (counts["train"]["mazes"], counts["train"]["mazes_dropped_as_in_test"]) == (4, 1)
    assert counts["test"]["mazes"] == 1
    dropped = "; 1 training mazes dropped because they are test mazes too"
    assert dropped in capsys.readouterr().out


def test_generated_sets(maze: Any):
    flags = ["--min-length=12", "--subsample-size=20", "--test-size=10", "--aug"]
    maze.size = 8
    assert maze(*flags, source="generate") == 0
    metadata, train = maze.arrays()
    assert (metadata.vocab_size, metadata.seq_len, train.num_examples) == (6, 64, 160)
    _, test = maze.arrays("test")
    for arrays in (train, test):
        assert (arrays.labels == 5).sum(axis=1).min() >= 11
        assert check_paths(arrays.inputs, arrays.labels)[1].all()
    keys = view_keys(np.concatenate([train.inputs[::8], test.inputs]))
    assert len(set(keys)) == 30
    manifest = json.loads((maze.output / "manifest.json").read_text())
    assert "--min-length=12" in manifest["command"]
    assert manifest["counts"]["train"]["attempts"] >= 20


def test_mazes_that_do_not_exist_are_a_configuration_error(
    maze: Any, error_line: ErrorLine, monkeypatch: Patch
):
    monkeypatch.setattr(generator, "_MAX_ATTEMPTS", 20_000)
    maze.size = 6
    assert maze("--min-length=26", "--test-size=1", source="generate") == 2
    assert "no new 6x6 maze with a shortest path of 26 moves or more" in error_line()
    maze.size = 2
    assert maze("--min-length=2", "--subsample-size=100", source="generate") == 2
    assert error_line().startswith("error: no new 2x2 maze")
    assert list(maze.output.parent.iterdir()) == []


GOOD = "S   # # # #    G"
ANSWER = "So  #o# #o#  ooG"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("made,S  G,SooG,4", "question has 4 characters; accepted: 16 (--size 4)"),
        (f"made,{GOOD.replace('#', '.')},{ANSWER},7", "question: it must consist of '#', ' ', one"),
        (f"made,{ANSWER},{ANSWER},7", "question: it must consist of"),
        (f"made,{GOOD},{ANSWER.replace('o', 'x')},7", "answer: it must be the question with one"),
        (f"made,{GOOD},{ANSWER.replace('#', ' ')},7", "answer: it must be the question"),
        (f"made,{GOOD},{ANSWER},6", "rating: it must be the number of cells on the path, or empty"),
        ("made,S G             ,S G ooo         ,5", "answer: its path is not a shortest one"),
    ],
)
def test_bad_rows_are_named(bad: str, reason: str, maze: Any, error_line: ErrorLine):
    maze.refuses_the_third_row(bad, reason, error_line)


def test_the_generator_defaults_are_the_published_kind():
    options = MazeBuild.parse(["--source=generate", "--output-dir=x"]).options
    assert (options.size, options.min_length) == (30, 109)
    assert MazeBuild.parse(["--no-aug"]).views == 1
