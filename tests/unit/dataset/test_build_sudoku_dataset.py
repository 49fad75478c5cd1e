"""The Sudoku builder; the parts shared with the maze builder are in test_puzzle_build."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.build_sudoku_dataset import SudokuBuild
from dataset.sudoku import generator
from runtime.streams import Stream

Patch = pytest.MonkeyPatch
ErrorLine = Callable[[], str]

SOLUTION = "1234341221434321"


def test_a_folder_becomes_the_published_format(sudoku: Any):
    assert sudoku("--num-aug=3") == 0
    metadata, train = sudoku.arrays()
    facts = json.loads((sudoku.output / "train/dataset.json").read_text())
    assert facts == sudoku.facts(groups=3, puzzles=12)
    assert train.inputs.shape == train.labels.shape == (12, metadata.seq_len)
    assert train.inputs[0].tolist() == [1, 1, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2]
    for split, rows, step in (("train", sudoku.train, 4), ("test", sudoku.test, 1)):
        arrays = sudoku.arrays(split)[1]
        for number, text in enumerate(rows):
            pairs = zip((arrays.inputs, arrays.labels), text.split(",")[1:3], strict=True)
            for boards, digits in pairs:
                expected = [int(digit) + 1 for digit in digits.replace(".", "0")]
                assert boards[step * number].tolist() == expected
    assert train.puzzle_identifiers.tolist() == [0] * 12
    assert train.puzzle_indices.tolist() == list(range(13))
    assert train.group_indices.tolist() == [0, 4, 8, 12]
    assert json.loads((sudoku.output / "identifiers.json").read_text()) == ["<blank>"]
    # The test puzzles have no augmentations.
    assert sudoku.arrays("test")[1].group_indices.tolist() == [0, 1, 2]
    for name in ("inputs", "labels", "group_indices", "puzzle_identifiers", "puzzle_indices"):
        written = np.load(sudoku.output / f"train/all__{name}.npy", allow_pickle=False)
        assert written.dtype == (np.uint8 if name in ("inputs", "labels") else np.int32)


def test_min_difficulty_filters_both_files(sudoku: Any, error_line: ErrorLine):
    assert sudoku("--min-difficulty=13") == 3
    assert "left of 3 rows, 0 dropped as in test, 3 dropped as too easy: " in (line := error_line())
    assert "--min-difficulty=13" in line
    assert sudoku("--min-difficulty=9") == 0
    train, test = sudoku.arrays()[1], sudoku.arrays("test")[1]
    expected = [int(digit) + 1 for digit in sudoku.train[2].split(",")[2]]
    assert train.labels.tolist() == [expected]
    assert test.num_examples == 1


@pytest.mark.parametrize(("size", "vocabulary"), [(4, 6), (6, 8), (9, 11)])
def test_generated_sets(size: int, vocabulary: int, sudoku: Any):
    sudoku.size = size
    flags = ["--subsample-size=20", "--test-size=10", "--num-aug=2"]
    assert sudoku(*flags, source="generate") == 0
    metadata, train = sudoku.arrays()
    assert (metadata.vocab_size, metadata.seq_len) == (vocabulary, size * size)
    assert train.num_examples == 60
    assert sudoku.arrays("test")[1].num_examples == 10
    counts = json.loads((sudoku.output / "manifest.json").read_text())["counts"]
    assert counts["train"]["attempts"] >= 20


def test_variants_follow_the_training_puzzles_and_are_no_test_puzzles(sudoku: Any, tmp_path: Path):
    how = {"size": 9, "seed": 3, "min_clues": 26, "max_clues": 30, "min_rating": 0, "taken": set()}
    made = [*islice(generator.generate_puzzles(stream=Stream.NEW_TEST, **how), 7)]
    texts = [["".join(map(str, board)) for board in one[:2]] for one in made]
    for split, some in (("train", texts[:4]), ("test", texts[4:])):
        rows = "".join(f"made,{question},{answer},5\n" for question, answer in some)
        (tmp_path / f"{split}.csv").write_text(f"source,question,answer,rating\n{rows}")
    sudoku.size = 9
    assert sudoku("--variants=2", source=str(tmp_path)) == 0
    train, test = sudoku.arrays()[1], sudoku.arrays("test")[1]
    assert (train.labels[:4] - 1).tolist() == [one[1].tolist() for one in made[:4]]
    assert 4 < train.num_groups <= 12
    assert set(train.ratings.tolist()) == {5}
    keys = [generator.solution_key(labels - 1) for labels in (*train.labels, *test.labels)]
    assert len({*keys}) == train.num_groups + 3
    counts = json.loads((sudoku.output / "manifest.json").read_text())["counts"]
    assert counts["train"]["variants"] == train.num_groups - 4


def test_puzzles_that_do_not_exist_are_a_configuration_error(
    sudoku: Any, monkeypatch: Patch, error_line: ErrorLine
):
    monkeypatch.setattr(generator, "_MAX_EFFORT", 300)
    flags = ["--min-clues=4", "--max-clues=4", "--test-size=14"]
    assert sudoku(*flags, source="generate") == 2
    assert "no new 4x4 puzzle with 4 to 4 clues" in error_line()
    assert list(sudoku.output.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("made,....,1234341221434321,1", "question has 4 characters; accepted: 16 (--size 4)"),
        ("made,1234341221434321,123,1", "answer has 3 characters"),
        (f"made,123x341221434321,{SOLUTION},1", "question: a cell is neither 1 to 4 nor one of ."),
        (f"made,1235341221434321,{SOLUTION},1", "question: a cell is neither 1 to 4"),
        (f"made,123é341221434321,{SOLUTION},1", "question: a cell is neither 1 to 4"),
        ("made,................,123434122143432.,1", "answer: not every row, column and box"),
        ("made,................,1134341221434321,1", "answer: not every row, column and box"),
        (f"made,..3..........2..,{SOLUTION},1", "answer: it changes a digit of the question"),
        (f"made,{SOLUTION},{SOLUTION},1.5", "rating is '1.5'"),
        (f"made,{SOLUTION},{SOLUTION},", "rating is ''"),
        (f"made,{SOLUTION},{SOLUTION},٣", "rating is '٣'"),
        (f"made,{SOLUTION},{SOLUTION},{10**30}", "rating is '1000"),
        (f"made,{SOLUTION},{SOLUTION},1,1", "5 fields"),
        ("made", "1 field;"),
    ],
)
def test_bad_rows_are_named(bad: str, reason: str, sudoku: Any, error_line: ErrorLine):
    sudoku.refuses_the_third_row(bad, reason, error_line)


def test_one_clue_bound_moves_the_other_default():
    bounds = {"min-clues=50": (50, 50), "max-clues=25": (25, 25), "min-difficulty=5": (17, 80)}
    for flag, expected in bounds.items():
        options = SudokuBuild.parse(["--source=generate", "--output-dir=x", f"--{flag}"]).options
        assert (options.min_clues, options.max_clues) == expected


@pytest.mark.parametrize("flags", [["--min-difficulty=5"], ["--min-clues=25"], []])
def test_the_command_in_the_manifest_is_accepted_and_means_the_same(flags: list[str]):
    build = SudokuBuild.parse(["--source=generate", "--output-dir=x", *flags])
    again = SudokuBuild.parse([*build.command()[1:], "--output-dir=x"])
    assert again.options == build.options
    has_clues = any("-clues=" in flag for flag in build.command())
    assert has_clues == (flags != ["--min-difficulty=5"])
