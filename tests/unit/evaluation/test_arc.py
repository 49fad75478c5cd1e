import json
import math
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, format_identifier
from dataset.arc.tasks import encode_canvas
from evaluation.arc import (
    PuzzleNames,
    Tally,
    crop_grids,
    grid_key,
    grid_of,
    parse_names,
    parse_tasks,
    score,
    submission,
    task_details,
    tasks_without_votes,
)
from runtime.errors import DatasetError

PLAIN = np.arange(10, dtype=np.uint8)
Grid = list[list[int]]


class Ballot:
    """Rows for a tally, made of grids that are given as they are before augmentation."""

    def __init__(self) -> None:
        self.names = ["<blank>"]
        self.rows: dict[str, list[Any]] = {
            field: [] for field in ("inputs", "preds", "puzzle_identifiers", "q_halt_logits")
        }

    def vote(
        self,
        task: str,
        question: Grid,
        answer: Grid | np.ndarray,
        *,
        q: float = 0.0,
        view: int = 0,
        colours: np.ndarray = PLAIN,
    ) -> None:
        self.names.append(format_identifier(task, view, colours))
        grids = (np.array(grid, np.uint8) for grid in (question, answer))
        given, answered = (encode_canvas(augment_grid(grid, view, colours)) for grid in grids)
        self.rows["inputs"].append(given)
        self.rows["preds"].append(answered)
        self.rows["puzzle_identifiers"].append(len(self.names) - 1)
        self.rows["q_halt_logits"].append(q)

    def count(self, tasks: Any, rows: Any = slice(None)) -> Tally:
        tally = Tally()
        arrays = {name: np.array(values)[rows] for name, values in self.rows.items()}
        tally.add_rows(tasks, PuzzleNames(self.names, "identifiers.json"), **arrays)
        return tally


def make_tasks(**tests: list[tuple[Grid, Grid | None]]) -> dict[str, Any]:
    """Parse tasks given as lists of (input, output or None)."""
    puzzles = {
        name: {"test": [{"input": given, "output": output} for given, output in pairs]}
        for name, pairs in tests.items()
    }
    return parse_tasks(puzzles, "test_puzzles.json")


A, B, C, D, E = [[1]], [[2, 0]], [[3], [4]], [[5, 6], [7, 8]], [[9]]


# Canvases


def slow_crop(canvas: np.ndarray) -> tuple[int, int]:
    """The largest full rectangle, by trying all; the first of equal ones by rows."""
    side, best = math.isqrt(len(canvas)), (0, 0)
    grid = canvas.reshape(side, side)
    for height in range(1, side + 1):
        for width in range(1, side + 1):
            full = ((grid[:height, :width] >= 2) & (grid[:height, :width] <= 11)).all()
            if full and height * width > best[0] * best[1]:
                best = height, width
    return best


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97, 1.0])
def test_the_crop_is_the_largest_rectangle(share: float) -> None:
    rng = np.random.default_rng(0)
    canvases = np.where(
        rng.random((40, 64)) < share, rng.integers(2, 12, (40, 64)), rng.integers(0, 2, (40, 64))
    ).astype(np.uint8)
    canvases[::7, 0] = 1
    canvases[1::7, 10] = 12
    grids = crop_grids(canvases)
    found = [grid.shape for grid in grids]
    assert found == [slow_crop(canvas) for canvas in canvases]
    for grid, canvas in zip(grids, canvases.reshape(-1, 8, 8), strict=True):
        assert np.array_equal(grid, canvas[: grid.shape[0], : grid.shape[1]] - 2)
    assert (0, 0) in found
    assert len(set(found)) > 1


def test_of_equally_large_crops_the_flattest_is_taken() -> None:
    canvas = np.zeros((1, 16), np.uint8)
    canvas[0, [0, 1, 4]] = 2
    assert crop_grids(canvas)[0].shape == (1, 2)


def test_keys_tell_shapes_apart() -> None:
    flat, tall = np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8)
    assert grid_key(flat) != grid_key(tall)
    for grid in (flat, tall, np.zeros((0, 0), np.uint8), np.arange(6, dtype=np.uint8)[None]):
        assert np.array_equal(grid_of(grid_key(grid)), grid)


# Votes


def test_votes_decide_then_q() -> None:
    tasks = make_tasks(t=[(A, D)])
    ballot = Ballot()
    for answer, q in ((B, -3.0), (B, -3.0), (C, 1.0), (D, 2.0), (E, -1.0)):
        ballot.vote("t", A, answer, q=q)
    tally = ballot.count(tasks)
    ranked = tally.ranked("t", tasks["t"][0].input_key)
    assert [grid_of(key).tolist() for key, _ in ranked] == [B, D, C, E]
    assert [votes.count for _, votes in ranked] == [2, 1, 1, 1]
    expected = [1 / (1 + math.exp(-q)) for q in (-3.0, 2.0, 1.0, -1.0)]
    assert [votes.mean_q for _, votes in ranked] == pytest.approx(expected, rel=1e-15)
    scores = score(tasks, tally)
    assert scores.per_test_output == {1: 0.0, 2: 1.0, 5: 1.0, 10: 1.0, 100: 1.0, 1000: 1.0}
    assert scores.per_task == scores.per_test_output


def test_ties_are_broken_by_the_grid() -> None:
    tasks = make_tasks(t=[(A, B)])
    answers = [E, D, C, B, [[2]], [[1, 9]]]
    for order in (answers, answers[::-1]):
        ballot = Ballot()
        for answer in order:
            ballot.vote("t", A, answer, q=0.5)
        ranked = ballot.count(tasks).ranked("t", tasks["t"][0].input_key)
        assert [grid_of(key).tolist() for key, _ in ranked] == [[[2]], E, [[1, 9]], B, C, D]


def test_each_test_input_of_a_task_has_its_own_votes() -> None:
    tasks = make_tasks(two=[(A, B), (C, D)], one=[(A, E)])
    ballot = Ballot()
    ballot.vote("two", A, B)
    ballot.vote("two", C, E)
    ballot.vote("one", A, E)
    tally = ballot.count(tasks)
    scores = score(tasks, tally, ks=[1])
    assert (scores.per_test_output, scores.per_task) == ({1: 0.75}, {1: 0.5})
    assert scores.num_tasks == 2
    made = submission(tasks, tally)
    assert [attempt["attempt_1"] for attempt in made["two"]] == [B, E]


def test_what_belongs_to_no_test_input_is_counted_not_scored() -> None:
    tasks = make_tasks(t=[(A, B)])
    ballot = Ballot()
    ballot.vote("t", C, B)
    ballot.vote("other", A, B)
    ballot.vote("t", A, D)
    tally = ballot.count(tasks)
    assert (tally.num_predictions, tally.num_unmatched) == (3, 2)
    assert score(tasks, tally, ks=[10]).per_task == {10: 0.0}
    assert task_details(tasks, tally)["t"][0]["votes"] == 1


def test_a_task_without_answers_is_not_solved_and_keeps_its_places() -> None:
    tasks = make_tasks(none=[(A, B)], half=[(A, B), (C, D)])
    ballot = Ballot()
    ballot.vote("half", C, D)
    tally = ballot.count(tasks)
    scores = score(tasks, tally, ks=[2])
    assert (scores.per_test_output, scores.per_task) == ({2: 0.25}, {2: 0.0})
    assert tasks_without_votes(tasks, tally) == ["none"]
    zeros = {"attempt_1": [[0, 0], [0, 0]], "attempt_2": [[0, 0], [0, 0]]}
    assert submission(tasks, tally) == {
        "none": [zeros],
        "half": [zeros, {"attempt_1": D, "attempt_2": D}],
    }


def test_an_empty_crop_is_a_vote_like_any_other() -> None:
    tasks = make_tasks(t=[(A, B)])
    ballot = Ballot()
    ballot.vote("t", A, np.zeros((0, 0), np.uint8), view=3)
    ballot.vote("t", A, np.zeros((0, 0), np.uint8), view=6)
    ballot.vote("t", A, B)
    tally = ballot.count(tasks)
    assert submission(tasks, tally) == {"t": [{"attempt_1": [], "attempt_2": B}]}
    assert score(tasks, tally, ks=[1, 2]).per_task == {1: 0.0, 2: 1.0}


def test_outputs_that_are_not_known_are_not_scored() -> None:
    tasks = make_tasks(half=[(A, B), (C, None)], unknown=[(A, None)], wrong=[(A, B)])
    ballot = Ballot()
    for task, question in (("half", A), ("half", C), ("unknown", A)):
        ballot.vote(task, question, B)
    tally = ballot.count(tasks)
    scores = score(tasks, tally, ks=[1])
    assert (scores.per_test_output, scores.num_tasks) == ({1: 0.5}, 2)
    assert scores.per_task == {1: 0.5}
    assert submission(tasks, tally)["unknown"] == [{"attempt_1": B, "attempt_2": B}]
    details = task_details(tasks, tally)
    assert [pair["known"] for pair in details["half"]] == [True, False]
    assert [pair["solved_at"] for pair in details["half"]] == [1, None]

    nothing = score(make_tasks(t=[(A, None)]), Tally())
    assert (nothing.per_test_output, nothing.per_task, nothing.num_tasks) == ({}, {}, 0)


def test_details_list_the_grids() -> None:
    tasks = make_tasks(t=[(A, C)])
    ballot = Ballot()
    for answer in (B, B, C):
        ballot.vote("t", A, answer)
    first = {"votes": 2, "mean_q": 0.5, "grid": B}
    second = {"votes": 1, "mean_q": 0.5, "grid": C}
    expected = {"votes": 3, "num_grids": 2, "known": True, "solved_at": 2}
    assert task_details(tasks, ballot.count(tasks)) == {
        "t": [expected | {"grids": [first, second]}]
    }


def test_q_at_its_ends_keeps_its_order() -> None:
    tasks = make_tasks(t=[(A, B)])
    by_q = {50.0: B, 5.0: C, -5.0: D, -40.0: E, -math.inf: [[1, 1]], math.nan: [[1, 2]]}
    ballot = Ballot()
    for q, answer in reversed(by_q.items()):
        ballot.vote("t", A, answer, q=q)
    ranked = ballot.count(tasks).ranked("t", tasks["t"][0].input_key)
    assert [grid_of(key).tolist() for key, _ in ranked] == list(by_q.values())
    assert ranked[0][1].mean_q == 1.0
    assert 0 < ranked[3][1].mean_q < 1e-17
    assert ranked[5][1].mean_q == 0.0


# Files


@pytest.mark.parametrize(
    ("puzzles", "told"),
    [
        ([], "expected an object"),
        ({"t": []}, "task 't' has no list of test pairs"),
        ({"t": {"test": []}}, "task 't' has no list of test pairs"),
        ({"t": {"test": [{"output": A}]}}, "task 't': test pair 1 has no input"),
        ({"t": {"test": [{"input": A}, {"input": [[1], [2, 3]]}]}}, "test pair 2: input: row 2"),
        ({"t": {"test": [{"input": A, "output": [[1.0]]}]}}, "test pair 1: output: row 1"),
    ],
)
def test_tasks_of_another_form_are_named(puzzles: object, told: str) -> None:
    with pytest.raises(DatasetError, match=told) as caught:
        parse_tasks(puzzles, "DIR/test_puzzles.json")
    assert str(caught.value).startswith("DIR/test_puzzles.json: ")


def test_identifiers_without_a_usable_name_are_named() -> None:
    names = PuzzleNames(["<blank>", "t|||t9|||0123456789"], "identifiers.json")
    with pytest.raises(DatasetError, match=r"identifiers\.json: identifier 1: .*t9"):
        names[1]
    with pytest.raises(DatasetError, match="has 2 names, none for identifier 2"):
        names[2]
    with pytest.raises(DatasetError, match="expected a list of names"):
        parse_names(["a", 1], "identifiers.json")


# Real tasks


def real_tasks(archive: str) -> dict[str, Any]:
    """Read the evaluation tasks in an archive of real ones."""
    folder = os.environ.get("PUZZLE_DATA_DIR")
    if not folder:
        pytest.skip("PUZZLE_DATA_DIR is not set")
    with tarfile.open(Path(folder) / "arc" / archive) as tar:
        paths = {Path(member.name): member for member in tar if member.name.endswith(".json")}
        return {
            path.stem: json.load(tar.extractfile(member))  # type: ignore[arg-type]
            for path, member in paths.items()
            if path.parent.name == "evaluation"
        }


@pytest.mark.parametrize(("archive", "count"), [("ARC-AGI.tar.gz", 400), ("ARC-AGI-2.tar.gz", 120)])
def test_answers_to_real_tasks_score_what_a_plain_count_says(archive: str, count: int) -> None:
    puzzles = real_tasks(archive)
    assert len(puzzles) == count
    tasks = parse_tasks(puzzles, archive)
    rng = np.random.default_rng(0)
    perfect, able, solved = Ballot(), Ballot(), []
    for number, (name, task) in enumerate(puzzles.items()):
        knows = rng.random(len(task["test"])) < 0.5
        solved.append(knows.mean())
        for i in range(3):
            view = (number + 3 * i) % 8
            colours = np.concatenate([[0], 1 + rng.permutation(9)]).astype(np.uint8)
            how: dict[str, Any] = {"view": view, "colours": colours, "q": float(rng.normal())}
            for pair, known in zip(task["test"], knows, strict=True):
                given, output = pair["input"], pair["output"]
                perfect.vote(name, given, output, **how)
                # The wrong answers agree with each other, and the right one comes second.
                able.vote(name, given, output if known and i == 0 else [[0]], **how)
    tally = perfect.count(tasks)
    scores = score(tasks, tally)
    assert (tally.num_unmatched, scores.num_tasks) == (0, count)
    assert set(scores.per_test_output.values()) == set(scores.per_task.values()) == {1.0}
    assert submission(tasks, tally) == {
        name: [dict.fromkeys(("attempt_1", "attempt_2"), pair["output"]) for pair in task["test"]]
        for name, task in puzzles.items()
    }
    scores = score(tasks, able.count(tasks), ks=[1, 2])
    assert scores.per_test_output[2] == pytest.approx(np.mean(solved), abs=1e-15)
    assert scores.per_task == {1: 0.0, 2: solved.count(1.0) / count}
    assert 0.4 < np.mean(solved) < 0.6
