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
    """Rows for a tally, made from grids before augmentation."""

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
        tally.add_rows(tasks, PuzzleNames(self.names, "identifiers.json"), arrays)
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
    """Find the largest full rectangle by trying all; of equal ones the first by rows."""
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
    # Of equally large rectangles the flattest is taken.
    assert crop_grids(np.array([[2, 2, 0, 2]]))[0].shape == (1, 2)


def test_votes_decide_then_q() -> None:
    tasks = make_tasks(t=[(A, D)])
    qs = ((B, -3.0), (B, -3.0), (C, 1.0), (D, 2.0), (E, -1.0))
    tally = ballot_of(*(("t", A, answer, q) for answer, q in qs)).count(tasks)
    ranked = tally.ranked("t", tasks["t"][0].input_key)
    assert [grid_of(votes.key).tolist() for votes in ranked] == [B, D, C, E]
    assert [votes.count for votes in ranked] == [2, 1, 1, 1]
    expected = [1 / (1 + math.exp(-q)) for q in (-3.0, 2.0, 1.0, -1.0)]
    assert [votes.mean_q for votes in ranked] == pytest.approx(expected, rel=1e-15)
    by_k = {1: 0.0, 2: 1.0, 5: 1.0, 10: 1.0, 100: 1.0, 1000: 1.0}
    scores = {f"{name}@{k}": v for name in ("pass", "task_pass") for k, v in by_k.items()}
    assert score(tasks, tally) == (scores, 1)


def test_ties_are_broken_by_the_grid() -> None:
    tasks = make_tasks(t=[(A, B)])
    answers = [E, D, C, B, [[2]], [[1, 9]]]
    for order in (answers, answers[::-1]):
        ballot = ballot_of(*(("t", A, answer, 0.5) for answer in order))
        ranked = ballot.count(tasks).ranked("t", tasks["t"][0].input_key)
        assert [grid_of(votes.key).tolist() for votes in ranked] == [[[2]], E, [[1, 9]], B, C, D]


GRIDS = {"A": A, "B": B, "C": C, "D": D, "E": E, "-": None, "0": [[0, 0], [0, 0]]}


@pytest.mark.parametrize(
    ("tests", "votes", "by_output", "by_task", "submitted"),
    [
        # Each test input of a task has its own votes. An input of no task has none.
        ("two:AB,CD one:AE", "two:AB two:CE one:AE", [0.75, 0.75], [0.5, 0.5], "BB,EE EE"),
        ("t:AB", "t:CB other:AB t:AD", [0, 0], [0, 0], "DD"),
        # A test input without an answer is not solved, but keeps its place.
        ("none:AB half:AB,CD", "half:CD", [0.25, 0.25], [0, 0], "00 00,DD"),
        # An empty crop is a vote like any other, but no valid attempt.
        ("t:AB", "t:A. t:A. t:AB", [0, 1], [0, 1], "0B"),
        # Unknown outputs are not scored.
        ("t:AB,C- u:A- w:AB", "t:AB t:CB u:AB", [0.5, 0.5], [0.5, 0.5], "BB,BB BB 00"),
        ("t:A-", "t:AB", [], [], "BB"),
    ],
)
def test_votes_are_scored_and_submitted(
    tests: str, votes: str, by_output: list[float], by_task: list[float], submitted: str
) -> None:
    """Tasks are TASK:INPUT OUTPUT,..., votes TASK:INPUT ANSWER, submissions both attempts."""
    split = {one.partition(":")[0]: one.partition(":")[2].split(",") for one in tests.split()}
    tasks = make_tasks(**{n: [(GRIDS[q], GRIDS[a]) for q, a in of] for n, of in split.items()})
    ballot, nothing = Ballot(), np.zeros((0, 0), np.uint8)
    for view, (task, (question, answer)) in enumerate(one.split(":") for one in votes.split()):
        ballot.vote(task, GRIDS[question], nothing if answer == "." else GRIDS[answer], view=view)
    tally = ballot.count(tasks)
    scores, num_tasks = score(tasks, tally, ks=[1, 2])
    assert [*scores.values()] == by_output + by_task
    assert num_tasks == sum(any(a != "-" for _, a in of) for of in split.values())
    expected = [[(GRIDS[a], GRIDS[b]) for a, b in of.split(",")] for of in submitted.split()]
    attempts = submission(tasks, tally).values()
    assert [[(x["attempt_1"], x["attempt_2"]) for x in of] for of in attempts] == expected


def test_details_list_the_grids() -> None:
    tasks = make_tasks(t=[(A, C), (D, None)])
    ballot = ballot_of(("t", A, B), ("t", A, C), ("t", D, B), ("t", E, B))
    ballot.vote("t", A, B, view=3)
    tally = ballot.count(tasks)
    first, second = (
        {"votes": sum(views), "views": views, "mean_q": 0.5, "grid": grid}
        for views, grid in (([1, 0, 0, 1, 0, 0, 0, 0], B), ([1, 0, 0, 0, 0, 0, 0, 0], C))
    )
    scored = {"votes": 3, "num_grids": 2, "known": True, "solved_at": 2, "grids": [first, second]}
    unknown = {"votes": 1, "num_grids": 1, "known": False, "solved_at": None}
    grids = [{**second, "grid": B}]
    assert task_details(tasks, tally) == {"t": [scored, {**unknown, "grids": grids}]}
    assert (tally.num_predictions, tally.num_unmatched) == (5, 1)


def test_q_at_its_ends_keeps_its_order() -> None:
    tasks = make_tasks(t=[(A, B)])
    by_q = {50.0: B, 5.0: C, -5.0: D, -40.0: E, -math.inf: [[1, 1]], math.nan: [[1, 2]]}
    ballot = ballot_of(*(("t", A, answer, q) for q, answer in reversed(by_q.items())))
    ranked = ballot.count(tasks).ranked("t", tasks["t"][0].input_key)
    assert [grid_of(votes.key).tolist() for votes in ranked] == list(by_q.values())
    assert ranked[0].mean_q == 1.0
    assert 0 < ranked[3].mean_q < 1e-17
    assert ranked[5].mean_q == 0.0


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
