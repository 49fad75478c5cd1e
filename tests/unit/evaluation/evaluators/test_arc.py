import math
from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid, format_identifier
from dataset.arc.tasks import crop_grids, encode_canvas
from evaluation.evaluators.arc import (
    PuzzleNames,
    Tally,
    grid_of,
    parse_tasks,
    score,
    submission,
    task_details,
)
from runtime.errors import DatasetError

PLAIN = np.arange(10, dtype=np.uint8)
Grid = list[list[int]]


class Ballot:
    """Rows for a tally, made of grids that are given as they are before augmentation."""

    def __init__(self) -> None:
        self.names = ["<blank>"]
        self.rows: list[tuple[Any, ...]] = []

    def vote(
        self,
        task: str,
        question: Grid,
        answer: Grid | np.ndarray,
        q: float = 0.0,
        view: int = 0,
        colours: np.ndarray = PLAIN,
    ) -> None:
        self.names.append(format_identifier(task, view, colours))
        grids = (np.array(grid, np.uint8) for grid in (question, answer))
        given, answered = (encode_canvas(augment_grid(grid, view, colours)) for grid in grids)
        self.rows.append((given, answered, len(self.names) - 1, q))

    def count(self, tasks: Any) -> Tally:
        tally = Tally()
        fields = ("inputs", "preds", "puzzle_identifiers", "q_halt_logits")
        arrays = dict(zip(fields, map(np.array, zip(*self.rows, strict=True)), strict=True))
        tally.add_rows(tasks, PuzzleNames(self.names, "identifiers.json"), **arrays)
        return tally


def ballot_of(*votes: tuple[Any, ...]) -> Ballot:
    ballot = Ballot()
    for vote in votes:
        ballot.vote(*vote)
    return ballot


def make_tasks(**tests: list[tuple[Grid, Grid | None]]) -> dict[str, Any]:
    """Parse tasks given as lists of (input, output or None)."""
    puzzles = {
        name: {"test": [{"input": given, "output": output} for given, output in pairs]}
        for name, pairs in tests.items()
    }
    return parse_tasks(puzzles, "test_puzzles.json")


A, B, C, D, E = [[1]], [[2, 0]], [[3], [4]], [[5, 6], [7, 8]], [[9]]


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
    colours, others = rng.integers(2, 12, (40, 64)), rng.integers(0, 2, (40, 64))
    canvases = np.where(rng.random((40, 64)) < share, colours, others).astype(np.uint8)
    canvases[::7, 0] = 1
    canvases[1::7, 10] = 12
    grids = crop_grids(canvases)
    found = [grid.shape for grid in grids]
    assert found == [slow_crop(canvas) for canvas in canvases]
    for grid, canvas in zip(grids, canvases.reshape(-1, 8, 8), strict=True):
        assert np.array_equal(grid, canvas[: grid.shape[0], : grid.shape[1]] - 2)
    assert (0, 0) in found
    assert len(set(found)) > 1
    # Of equally large ones the flattest is taken.
    assert crop_grids(np.array([[2, 2, 0, 2]]))[0].shape == (1, 2)


def test_votes_decide_then_q() -> None:
    tasks = make_tasks(t=[(A, D)])
    qs = ((B, -3.0), (B, -3.0), (C, 1.0), (D, 2.0), (E, -1.0))
    tally = ballot_of(*(("t", A, answer, q) for answer, q in qs)).count(tasks)
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
        ballot = ballot_of(*(("t", A, answer, 0.5) for answer in order))
        ranked = ballot.count(tasks).ranked("t", tasks["t"][0].input_key)
        assert [grid_of(key).tolist() for key, _ in ranked] == [[[2]], E, [[1, 9]], B, C, D]


def test_each_test_input_of_a_task_has_its_own_votes() -> None:
    tasks = make_tasks(two=[(A, B), (C, D)], one=[(A, E)])
    tally = ballot_of(("two", A, B), ("two", C, E), ("one", A, E)).count(tasks)
    scores = score(tasks, tally, ks=[1])
    assert (scores.per_test_output, scores.per_task) == ({1: 0.75}, {1: 0.5})
    assert scores.num_tasks == 2
    made = submission(tasks, tally)
    assert [attempt["attempt_1"] for attempt in made["two"]] == [B, E]


def test_what_belongs_to_no_test_input_is_counted_not_scored() -> None:
    tasks = make_tasks(t=[(A, B)])
    tally = ballot_of(("t", C, B), ("other", A, B), ("t", A, D)).count(tasks)
    assert (tally.num_predictions, tally.num_unmatched) == (3, 2)
    assert score(tasks, tally, ks=[10]).per_task == {10: 0.0}
    assert task_details(tasks, tally)["t"][0]["votes"] == 1


def test_a_task_without_answers_is_not_solved_and_keeps_its_places() -> None:
    tasks = make_tasks(none=[(A, B)], half=[(A, B), (C, D)])
    tally = ballot_of(("half", C, D)).count(tasks)
    scores = score(tasks, tally, ks=[2])
    assert (scores.per_test_output, scores.per_task) == ({2: 0.25}, {2: 0.0})
    zeros = {"attempt_1": [[0, 0], [0, 0]], "attempt_2": [[0, 0], [0, 0]]}
    assert submission(tasks, tally) == {
        "none": [zeros],
        "half": [zeros, {"attempt_1": D, "attempt_2": D}],
    }


def test_an_empty_crop_is_a_vote_like_any_other() -> None:
    tasks = make_tasks(t=[(A, B)])
    nothing = np.zeros((0, 0), np.uint8)
    tally = ballot_of(("t", A, nothing, 0, 3), ("t", A, nothing, 0, 6), ("t", A, B)).count(tasks)
    assert submission(tasks, tally) == {"t": [{"attempt_1": [], "attempt_2": B}]}
    assert score(tasks, tally, ks=[1, 2]).per_task == {1: 0.0, 2: 1.0}


def test_outputs_that_are_not_known_are_not_scored() -> None:
    tasks = make_tasks(half=[(A, B), (C, None)], unknown=[(A, None)], wrong=[(A, B)])
    tally = ballot_of(("half", A, B), ("half", C, B), ("unknown", A, B)).count(tasks)
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
    ballot = ballot_of(("t", A, B), ("t", A, B), ("t", A, C))
    first = {"votes": 2, "mean_q": 0.5, "grid": B}
    second = {"votes": 1, "mean_q": 0.5, "grid": C}
    expected = {"votes": 3, "num_grids": 2, "known": True, "solved_at": 2}
    found = task_details(tasks, ballot.count(tasks))
    assert found == {"t": [expected | {"grids": [first, second]}]}


def test_q_at_its_ends_keeps_its_order() -> None:
    tasks = make_tasks(t=[(A, B)])
    by_q = {50.0: B, 5.0: C, -5.0: D, -40.0: E, -math.inf: [[1, 1]], math.nan: [[1, 2]]}
    ballot = ballot_of(*(("t", A, answer, q) for q, answer in reversed(by_q.items())))
    ranked = ballot.count(tasks).ranked("t", tasks["t"][0].input_key)
    assert [grid_of(key).tolist() for key, _ in ranked] == list(by_q.values())
    assert ranked[0][1].mean_q == 1.0
    assert 0 < ranked[3][1].mean_q < 1e-17
    assert ranked[5][1].mean_q == 0.0


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
    with pytest.raises(DatasetError, match="identifier 2: there are 2 names"):
        names[2]
