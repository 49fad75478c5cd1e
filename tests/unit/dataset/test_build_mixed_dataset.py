"""The builder of data sets of several kinds, and their evaluation."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataset import build_mixed_dataset, build_puzzle_dataset
from dataset.format.reading import load_split
from dataset.format.writing import write_puzzles
from dataset.kinds.base import kind_named
from evaluation.evaluators.base import AnsweredRows, build_evaluators
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, made = tmp_path_factory.mktemp("parts"), []
    for kind, size, number in (("latin_square", 4, 6), ("queens", 6, 2)):
        flags = f"--kind {kind} --size {size} --subsample-size {number} --test-size 3 --num-aug 1"
        build_puzzle_dataset.make([*flags.split(), "--output-dir", str(folder / kind)])
        made.append(folder / kind)
    return made


@pytest.fixture(scope="module")
def mixed(parts: list[Path]) -> Path:
    output = parts[0].parent / "mixed"
    joined = ",".join(map(str, parts))
    build_mixed_dataset.make(["--parts", joined, "--output-dir", str(output)])
    return output


def test_parts_lie_in_the_corner_and_small_ones_are_repeated(
    parts: list[Path], mixed: Path
) -> None:
    metadata, sets = load_split(mixed / "train")
    arrays = sets["all"]
    assert (metadata.seq_len, metadata.vocab_size) == (36, 6)
    assert arrays.puzzle_identifiers.tolist() == [1] * 12 + [2] * 12
    assert np.diff(arrays.group_indices).tolist() == [2] * 12
    _, squares = load_split(parts[0] / "train")
    boards = arrays.labels[:12].reshape(12, 6, 6)
    assert boards[:, :4, :4].reshape(12, 16).tolist() == squares["all"].labels.tolist()
    assert not boards[:, 4:].any()
    assert not boards[:, :, 4:].any()
    _, queens = load_split(parts[1] / "train")
    assert arrays.inputs[12:].tolist() == 3 * queens["all"].inputs.tolist()


def test_each_kind_is_judged_by_its_own_rules(mixed: Path) -> None:
    data = PuzzleDataset([mixed], "test")
    assert list(data.sets) == ["latin_square", "queens"]
    evaluator = build_evaluators(["rules"], data)["rules"]
    for name, arrays in data.sets.items():
        rows = data.read(name, slice(None), arrays.puzzle_identifiers)
        answers = rows.labels.copy()
        if name == "queens":
            answers[0] = 2
        halting = np.zeros(len(answers), np.float32)
        evaluator.add(
            AnsweredRows(rows.inputs, rows.labels, rows.puzzle_identifiers, answers, halting)
        )
    found = evaluator.finish(lambda own: [own])
    assert found.metrics == {"valid_latin_square": 1.0, "valid_queens": pytest.approx(2 / 3)}
    assert found.details["valid_queens"]["value"] == pytest.approx(2 / 3)


def test_a_detour_is_no_right_answer_of_a_maze(tmp_path: Path) -> None:
    # From S past one cell to G, and around it.
    inputs = np.tile(np.array([3, 2, 4, 2, 2, 2, 2, 2, 2], np.uint8), (2, 1))
    answers = inputs.copy()
    answers[0, 1] = answers[1, 3:6] = 5
    for split in ("train", "test"):
        write_puzzles(tmp_path / "maze" / split, inputs, answers, vocab_size=6, kind="maze")
    output = tmp_path / "mixed"
    build_mixed_dataset.make(["--parts", f"{tmp_path / 'maze'}", "--output-dir", f"{output}"])
    evaluator = build_evaluators(["rules"], PuzzleDataset([output], "test"))["rules"]
    ids, halting = np.ones(2, np.int32), np.zeros(2, np.float32)
    evaluator.add(AnsweredRows(inputs, answers, ids, answers, halting))
    assert evaluator.finish(lambda own: [own]).metrics == {"valid_maze": 0.5}


def test_two_parts_of_one_kind_are_refused(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="two of the same kind: queens, queens"):
        build_mixed_dataset.make(
            ["--parts", f"{parts[1]},{parts[1]}", "--output-dir", str(tmp_path / "no")]
        )


def test_a_part_that_is_missing_is_to_be_built_first(parts: list[Path], tmp_path: Path) -> None:
    flags = ["--parts", f"{parts[0]},{tmp_path / 'gone'}", "--output-dir", str(tmp_path / "no")]
    with pytest.raises(DatasetError, match="gone: no such folder; build this data set first$"):
        build_mixed_dataset.make(flags)


def test_a_part_that_one_may_not_enter_is_named(
    parts: list[Path], tmp_path: Path, close: Callable[[Path], None]
) -> None:
    close(parts[1])
    flags = ["--parts", f"{parts[0]},{parts[1]}", "--output-dir", str(tmp_path / "no")]
    with pytest.raises(DatasetError, match=f"^{parts[1]}: Permission denied$"):
        build_mixed_dataset.make(flags)


def test_a_mixed_set_is_no_part(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="accepted in a mixed set: .* one puzzle identifier"):
        build_mixed_dataset.make(["--parts", str(mixed), "--output-dir", str(tmp_path / "no")])


def test_several_folders_and_unknown_kinds(mixed: Path, tmp_path: Path) -> None:
    twice = PuzzleDataset([mixed, mixed], "test")
    shares = build_evaluators(["rules"], twice)["rules"].shares
    assert shares == ("valid_latin_square", "valid_queens") * 2
    other = tmp_path / "other"
    shutil.copytree(mixed, other)
    (other / "manifest.json").unlink()
    (other / "identifiers.json").write_text('["<blank>", "latin_square", "chess"]')
    with pytest.raises(DatasetError, match="unknown kinds chess"):
        build_evaluators(["rules"], PuzzleDataset([other], "test"))


def test_an_answer_is_compared_with_the_stored_one() -> None:
    kind = kind_named("mixed")
    question, target = np.array([[1, 2], [0, 0]]), np.array([[3, 2], [0, 0]])
    assert kind.judge(question, np.array([[3, 2], [5, 5]]), target).solved
    assert kind.judge(question, np.array([[4, 2], [0, 0]]), target).solved is False
    assert kind.judge(question, target, None).solved is None
