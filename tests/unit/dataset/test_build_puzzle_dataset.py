"""The builder for all kinds with a generator."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dataset.build_puzzle_dataset import main
from dataset.kinds.base import Kind, kind_named
from evaluation.evaluators.base import AnsweredRows, build_evaluators
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError

HEADER = "source,question,answer,rating\n"
SMALL = ["--subsample-size=6", "--test-size=3"]


def built(folder: Path, *flags: str) -> tuple[np.ndarray, np.ndarray]:
    """Build and return inputs and labels of the training set."""
    assert main([*SMALL, *flags, f"--output-dir={folder}"]) == 0
    inputs, labels = (np.load(folder / f"train/all__{name}.npy") for name in ("inputs", "labels"))
    return inputs, labels


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    flags = ["--kind=latin_square", "--size=5", "--num-aug=2", "--selection-size=2"]
    inputs, labels = built(tmp_path / "one", *flags)
    built(tmp_path / "two", *flags)
    manifests = [(tmp_path / name / "manifest.json").read_text() for name in ("one", "two")]
    assert manifests[0] == manifests[1]
    command = json.loads(manifests[0])["command"]
    assert command[0] == "build_puzzle_dataset.py"
    assert {"--kind=latin_square", "--size=5", "--num-aug=2"} <= {*command}
    metadata = json.loads((tmp_path / "one/train/dataset.json").read_text())
    assert (metadata["kind"], metadata["seq_len"], metadata["vocab_size"]) == (
        "latin_square",
        25,
        7,
    )
    kind = kind_named("latin_square")
    assert inputs.shape == (18, 25)
    assert kind.holds(inputs, labels)[0].all()
    # Images open the same number of cells.
    opened = (inputs == 1).sum(axis=1).reshape(6, 3)
    assert (opened == opened[:, :1]).all()
    assert (inputs[::3] != inputs[1::3]).any(axis=1).all()


def test_each_example_has_another_answer_while_there_are_more(tmp_path: Path) -> None:
    inputs, labels = built(tmp_path / "queens", "--kind=queens", "--size=8", "--answers=4")
    ratings = np.load(tmp_path / "queens/train/all__ratings.npy")
    kind = kind_named("queens")
    assert kind.holds(inputs, labels)[0].all()
    for puzzle, rating in enumerate(ratings.tolist()):
        rows = slice(4 * puzzle, 4 * puzzle + 4)
        assert len(np.unique(inputs[rows], axis=0)) == 1
        assert len(np.unique(labels[rows], axis=0)) == min(4, rating)


def test_a_folder_of_typed_puzzles_is_read_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    good = "me,1....2....3....4,1342421324313124,\n"
    (source / "test.csv").write_text(HEADER + "me,1234....34124321,1234214334124321,7\n")
    command = ["--kind=latin_square", "--size=4", f"--source={source}"]
    for row, problem in (
        (good.replace("....2", "...?2"), "row 2: question: its characters must be of '.0_1234'"),
        (good.replace("1342", "2341"), "row 2: answer: it changes the question"),
        (good.replace("1342", "1332"), "row 2: answer: it is not a Latin square that keeps the"),
        (good.replace("1....", "1..."), "question has 15 characters; accepted: 16 (--size 4)"),
    ):
        (source / "train.csv").write_text(HEADER + row)
        assert main([*command, f"--output-dir={tmp_path / 'out'}"]) == 3
        assert problem in capsys.readouterr().err
    (source / "train.csv").write_text(HEADER + good)
    assert main([*command, f"--output-dir={tmp_path / 'out'}"]) == 0
    ratings = [np.load(tmp_path / f"out/{split}/all__ratings.npy") for split in ("train", "test")]
    kind = kind_named("latin_square")
    question = kind.parse("1....2....3....4").question
    assert ratings[0].tolist() == [kind.rating_of(question)]
    assert ratings[1].tolist() == [7]


def test_a_short_row_is_told_the_size_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(f"{HEADER}me,{80 * ' '},{81 * ' '},\n")
    command = ["--kind=futoshiki", "--size=5", f"--source={tmp_path}"]
    assert main([*command, f"--output-dir={tmp_path / 'out'}"]) == 3
    assert "has 80 characters; accepted: 81 (--size 5)" in capsys.readouterr().err


def kenken_texts() -> tuple[str, str]:
    """Return the question and the answer of a KenKen of 4 x 4 cells."""
    kind = kind_named("kenken")
    puzzle = kind.example(12, 0)
    assert puzzle is not None
    solution = kind.solution(puzzle.question)
    assert solution is not None
    text = kind.board(12).text
    return text(puzzle.question), text(solution)


def test_a_puzzle_that_has_no_rules_is_named_with_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = kenken_texts()[0].replace("#", " ", 1)
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(f"{HEADER}me,{text},{text},\n")
    command = ["--kind=kenken", "--size=4", f"--source={tmp_path}"]
    assert main([*command, f"--output-dir={tmp_path / 'out'}"]) == 3
    assert "row 2: answer: it is not a Latin square whose cages" in capsys.readouterr().err


def test_questions_must_be_right_as_typed_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question, solution = kenken_texts()
    open_side = question.replace("#", ".", 1)
    half = "?....#?.....?.....?.....?"  # An edge in the lower half of the board alone.
    for kind, size, question, answer, problem in (
        ("kenken", 4, open_side, solution, "the cage of row 1, column 1: a side is"),
        ("colouring", 5, half, half.replace("?", "A", 1).replace("?", "B"), "row 1, cell 2 does"),
    ):
        for split in ("train", "test"):
            (tmp_path / f"{split}.csv").write_text(f"{HEADER}me,{question},{answer},1\n")
        flags = [f"--kind={kind}", f"--size={size}", f"--source={tmp_path}"]
        assert main([*flags, f"--output-dir={tmp_path / 'out'}"]) == 3
        assert f"train.csv: row 2: question: {problem}" in capsys.readouterr().err


def write_graphs(folder: Path) -> None:
    """Write graphs of five nodes, none joined: in the first node A, in the test set all others with
    one coloured node.
    """
    rows = []
    for place in range(5):
        for colour in "ABC":
            question = ".....".join(colour if node == place else "?" for node in range(5))
            answer = question.replace("?", "A")
            rows.append(f"me,{question},{answer},\n")
    (folder / "train.csv").write_text(HEADER + rows[0])
    (folder / "test.csv").write_text(HEADER + "".join(rows[1:]))


def test_no_image_of_a_training_puzzle_is_a_test_puzzle(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    flags = ["--kind=colouring", "--size=5", "--num-aug=31", f"--source={tmp_path}"]
    assert main([*flags, f"--output-dir={tmp_path / 'out'}"]) == 0
    trained, tested = (
        [bytes(row) for row in np.load(tmp_path / f"out/{split}/all__inputs.npy")]
        for split in ("train", "test")
    )
    assert (len(trained), len(tested)) == (32, 14)
    assert not {*trained} & {*tested}


def test_only_so_many_answers_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graphs(tmp_path)
    for limit in ("build_puzzle_dataset._MOST_ANSWERS", "kinds.base._MOST_COUNTED"):
        monkeypatch.setattr(f"dataset.{limit}", 5)
    solutions = Kind.solutions

    def first_five(kind: Kind, question: np.ndarray) -> Iterator[np.ndarray]:
        for number, grid in enumerate(solutions(kind, question)):
            assert number < 5
            yield grid

    monkeypatch.setattr(Kind, "solutions", first_five)
    flags = ["--kind=colouring", "--size=5", "--answers=4", f"--source={tmp_path}"]
    assert main([*flags, f"--output-dir={tmp_path / 'out'}"]) == 0
    inputs, labels = (
        np.load(tmp_path / f"out/train/all__{name}.npy") for name in ("inputs", "labels")
    )
    assert len(np.unique(labels, axis=0)) == 4
    assert kind_named("colouring").holds(inputs, labels)[0].all()
    assert labels[0].reshape(5, 5).diagonal().tolist() == [2] * 5  # The given one.


def test_easy_puzzles_of_a_folder_are_left_out(tmp_path: Path) -> None:
    square = "1234214334124321"
    opened = [f"me,{square[:n]}.{square[n + 1 :]},{square}" for n in range(15)]
    (tmp_path / "train.csv").write_text(f"{HEADER}{opened[0]},20\n")
    tested = "".join(f"{opened[rating]},{rating}\n" for rating in range(1, 15))
    (tmp_path / "test.csv").write_text(HEADER + tested)
    flags = ["--kind=latin_square", "--size=4", "--min-rating=9", f"--source={tmp_path}"]
    assert main([*flags, f"--output-dir={tmp_path / 'out'}"]) == 0
    ratings = [np.load(tmp_path / f"out/{split}/all__ratings.npy") for split in ("train", "test")]
    assert [one.tolist() for one in ratings] == [[20], [9, 10, 11, 12, 13, 14]]
    counts = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
    assert counts["test"]["dropped_as_too_easy"] == 8


def test_a_rating_that_counts_answers_must_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_graphs(tmp_path)
    text = (tmp_path / "train.csv").read_text()
    command = ["--kind=colouring", "--size=5", f"--source={tmp_path}"]
    for rating, code in ((80, 3), (3**4, 0)):
        (tmp_path / "train.csv").write_text(text.replace(",\n", f",{rating}\n"))
        assert main([*command, f"--output-dir={tmp_path / 'out'}"]) == code
    told = "train.csv: row 2: rating: it must be the number of right answers, 10,000 at most, or"
    assert told in capsys.readouterr().err
    ratings = [np.load(tmp_path / f"out/{split}/all__ratings.npy") for split in ("train", "test")]
    assert [one.tolist() for one in ratings] == [[81], 14 * [81]]


def test_a_missing_plugin_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # The current folder is added to it.
    assert main(["--plugins=no.such", "--kind=x", f"--output-dir={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: plugins=[no.such]")
    assert len(error.splitlines()) == 1


def test_ratings_count_answers_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = kind_named("colouring").parse("?...\n.?..\n..?.\n...?").question
    assert kind_named("colouring").rating_of(graph) == 3**4
    monkeypatch.setattr("dataset.kinds.base._MOST_COUNTED", 50)
    assert kind_named("colouring").rating_of(graph) == 50


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--kind queen", "--kind queen; accepted: latin_square, sudoku_16, sudoku_x, futoshiki"),
        ("--kind maze", "--kind maze; accepted: latin_square"),
        ("--kind queens", "--size is needed; accepted: 6, 7, 8, 9, 10"),
        ("--kind queens --size 4", "--size 4; accepted for queens: 6, 7, 8, 9, 10"),
        ("--kind futoshiki --size 5 --answers 2", "--answers 2: each Futoshiki has one answer"),
        ("--kind queens --size 8 --answers 300", "'300'; accepted: an integer, 1 to 256"),
        ("--kind queens --size 8 --source hf", "no such data set is published; use --source"),
    ],
)
def test_mistakes_are_one_line(
    flags: str, problem: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*flags.split(), f"--output-dir={tmp_path / 'out'}"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert problem in error
    assert len(error.splitlines()) == 1


def test_the_help_names_the_kinds_that_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = []
    for flags, named in (
        (["--help"], r"kind of puzzles: one of ([\w, ]+), or a plug"),
        (["--kind=x", "--output-dir=x"], r"--kind x; accepted: ([\w, ]+) \("),
    ):
        with pytest.raises(SystemExit):
            main(flags)
        printed = capsys.readouterr()
        found = re.search(named, " ".join((printed.out + printed.err).split()))
        assert found is not None
        kinds.append(found[1].split(", "))
    assert kinds[0] == kinds[1]


def test_the_rules_judge_answers(tmp_path: Path, build_shares: Callable[..., dict]) -> None:
    built(tmp_path, "--kind=queens", "--size=8")
    dataset = PuzzleDataset([tmp_path], "test")
    (arrays,) = dataset.sets.values()
    labels = arrays.labels.astype(np.int32)
    assert build_shares("rules", dataset, labels) == {"valid": 1.0, "keeps_clues": 1.0}
    # Another solution is valid, too, if it keeps the given queens.
    kind = kind_named("queens")
    grid = kind.to_grid(arrays.inputs[0])
    rules = kind.rules(grid)
    assert rules is not None
    moved = labels.copy()
    moved[1] = labels[1][::-1]  # Turned by half: a solution of other queens.
    found = build_shares("rules", dataset, moved)
    assert found["valid"] == found["keeps_clues"] <= 1.0
    moved[0, moved[0] == 2] = 1
    found = build_shares("rules", dataset, moved)
    assert found["valid"] <= 2 / 3


@pytest.fixture
def build_shares() -> Callable[..., dict]:
    def shares(name: str, dataset: PuzzleDataset, preds: np.ndarray) -> dict[str, float]:
        (evaluator,) = build_evaluators([name], dataset).values()
        (arrays,) = dataset.sets.values()
        inputs, number = arrays.inputs.astype(np.int32), len(preds)
        zeros = np.zeros(number, np.float32)
        evaluator.add(AnsweredRows(inputs, preds, zeros.astype(np.int32), preds, zeros))
        return evaluator.finish(lambda value: [value]).metrics

    return shares


def test_arc_has_no_rules_to_check(arc_data: Path) -> None:
    with pytest.raises(DatasetError, match="the kind arc has no rules to check"):
        build_evaluators(["rules"], PuzzleDataset([arc_data], "test"))


def test_all_answers_are_in_the_field_and_turn_with_the_puzzle(tmp_path: Path) -> None:
    flags = ["--kind=queens", "--size=8", "--answers=3", "--num-aug=5"]
    inputs, labels = built(tmp_path / "queens", *flags)
    answers = np.load(tmp_path / "queens/train/all__answers.npy")
    kind = kind_named("queens")
    assert answers.shape == (36, 64, 3)
    for column in range(3):
        assert kind.holds(inputs, answers[..., column])[0].all()
        turn = np.arange(36) % 6 % 3 == column
        np.testing.assert_array_equal(labels[turn], answers[turn, :, column])
    assert (inputs.reshape(6, 6, 64)[:, 0] != inputs.reshape(6, 6, 64)[:, 1:].swapaxes(0, 1)).any()
