"""How answers to augmented ARC tasks become votes, scores and a submission. NumPy only.

Each row is an augmented test input with the model's answer, both on a canvas of tokens. In the
order of the data: the canvas is cropped to its grid, the augmentation is undone, the answer becomes
a vote for the test input that its own input turns out to be, and votes for equal grids add up. The
grids of a test input are ranked by (votes, mean of sigmoid(q_halt)), both descending.

Tallies hold integers only and are merged by addition, so that neither the order of the rows nor
the number of ranks changes a bit of any result.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.arc.augmentation import parse_identifier, undo_grid
from runtime.errors import DatasetError

PASS_KS = (1, 2, 5, 10, 100, 1000)
"""Numbers of first-ranked grids among which the right one is looked for."""

NUM_ATTEMPTS = 2

_FIRST_COLOUR, _LAST_COLOUR = 2, 11
# A sigmoid in float64 is a multiple of this unit where it is at least 2**-75 (a logit above -52).
_Q_BITS = 128
# What the official sample submission holds where there is nothing to say.
_NO_ANSWER = [[0, 0], [0, 0]]


# Canvases and grids


def crop_sizes(canvases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the largest full rectangle of colour tokens (2 to 11) in the top left corner.

    Of equally large ones it is the one with the fewest rows; without a colour in the corner there
    is none, and both sides are 0.

    Args: canvases: integer [N, side * side] tokens, row by row.

    Returns: (heights, widths), int64 [N].
    """
    side = math.isqrt(canvases.shape[1])
    colours = (canvases >= _FIRST_COLOUR) & (canvases <= _LAST_COLOUR)
    runs = np.logical_and.accumulate(colours.reshape(-1, side, side), axis=2).sum(axis=2)
    widths = np.minimum.accumulate(runs, axis=1)  # of the rectangle that ends with each row
    areas = widths * np.arange(1, side + 1)
    last = areas.argmax(axis=1)
    rows = np.arange(len(canvases))
    widths = widths[rows, last]
    return np.where(widths > 0, last + 1, 0), widths


def grid_key(grid: np.ndarray) -> bytes:
    """Return height, width and cells of a grid uint8 [h, w]: equal for equal grids only."""
    return bytes(grid.shape) + grid.tobytes()


def grid_of(key: bytes) -> np.ndarray:
    """Return the grid uint8 [h, w] that has a key."""
    return np.frombuffer(key, np.uint8, offset=2).reshape(key[0], key[1])


# Tasks and names


class TestPair(NamedTuple):
    """Keys of a test input and of its output; None where the output is unknown."""

    input_key: bytes
    output_key: bytes | None


Tasks = Mapping[str, Sequence[TestPair]]
"""The test pairs of each task, by name."""


def parse_tasks(test_puzzles: object, source: str | Path) -> dict[str, list[TestPair]]:
    """Read the original tasks, {name: {"test": [{"input": grid, "output": grid}, ...]}, ...}.

    An output may be missing or null.

    Raises: DatasetError: not of this form; names `source`, task and pair.
    """
    if not isinstance(test_puzzles, dict):
        raise DatasetError(f"{source}: expected an object of tasks by name")
    tasks = {}
    for name, task in test_puzzles.items():
        pairs = task.get("test") if isinstance(task, dict) else None
        if not isinstance(pairs, list) or not pairs:
            raise DatasetError(f"{source}: task {name!r} has no list of test pairs")
        tasks[name] = []
        for number, pair in enumerate(pairs):
            where = f"{source}: task {name!r}, test pair {number}"
            if not isinstance(pair, dict) or "input" not in pair:
                raise DatasetError(f"{where}: has no input")
            output = pair.get("output")
            tasks[name].append(
                TestPair(
                    _parse_grid(pair["input"], f"{where}, input"),
                    None if output is None else _parse_grid(output, f"{where}, output"),
                )
            )
    return tasks


def _parse_grid(value: object, where: str) -> bytes:
    try:
        grid = np.array(value)
    except ValueError:
        grid = np.zeros(0)  # rows of different lengths
    if grid.ndim != 2 or not grid.size or grid.dtype.kind != "i" or max(grid.shape) > 255:
        raise DatasetError(f"{where}: is no grid of equally long rows of integers")
    if grid.min() < 0 or grid.max() > 9:
        raise DatasetError(f"{where}: colours {grid.min()} to {grid.max()}, expected 0 to 9")
    return grid_key(grid.astype(np.uint8))


class PuzzleNames:
    """What each puzzle identifier says: its task and augmentation.

    Args:
        names: by identifier. source: the file they are from.
    """

    def __init__(self, names: Sequence[str], source: str | Path) -> None:
        self._names, self._source = names, source

    def __getitem__(self, identifier: int) -> tuple[str, int, np.ndarray]:
        """Return (task, view, colours uint8 [10]).

        Raises: DatasetError: there is no such identifier, or its name says nothing.
        """
        if not 0 <= identifier < len(self._names):
            raise DatasetError(
                f"{self._source}: has {len(self._names)} names, none for identifier {identifier}"
            )
        try:
            return parse_identifier(self._names[identifier])
        except ValueError as error:
            raise DatasetError(f"{self._source}: identifier {identifier}: {error}") from None

    def check(self, identifiers: Iterable[int]) -> None:
        """Raise DatasetError when one of the identifiers has no name, or one that says nothing."""
        for identifier in identifiers:
            self[identifier]


def parse_names(names: object, source: str | Path) -> list[str]:
    """Check that this is a list of names. Raises: DatasetError: names `source`."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DatasetError(f"{source}: expected a list of names")
    return names


# Votes


@dataclass(slots=True)
class Votes:
    """Votes for one grid.

    count: number of them. q_sum: sum of sigmoid(q_halt) in units of 2**-128, rounded down.
    """

    count: int = 0
    q_sum: int = 0

    @property
    def mean_q(self) -> float:
        """The mean of sigmoid(q_halt), correctly rounded."""
        return self.q_sum / (self.count << _Q_BITS)


class Tally:
    """The votes of some rows, for each task and test input.

    Attributes:
        num_predictions: rows counted.
        num_unmatched: those whose undone input is no test input of their task. They have no vote.
    """

    def __init__(self) -> None:
        self.num_predictions = 0
        self.num_unmatched = 0
        self._votes: dict[tuple[str, bytes], dict[bytes, Votes]] = {}

    def add_rows(
        self,
        tasks: Tasks,
        names: PuzzleNames,
        *,
        inputs: np.ndarray,
        preds: np.ndarray,
        puzzle_identifiers: np.ndarray,
        q_halt_logits: np.ndarray,
    ) -> None:
        """Count rows of augmented test inputs.

        Args:
            inputs, preds: integer [N, S] canvases of tokens, S a square.
            puzzle_identifiers: integer [N].
            q_halt_logits: float [N]; one that is not a number counts as Q = 0.
        Raises:
            DatasetError: an identifier has no name, or one that says nothing.
        """
        input_grids, pred_grids = _grids(inputs), _grids(preds)
        self.num_predictions += len(puzzle_identifiers)
        for identifier, given, answer, q_logit in zip(
            puzzle_identifiers.tolist(),
            input_grids,
            pred_grids,
            q_halt_logits.tolist(),
            strict=True,
        ):
            task, view, colours = names[identifier]
            input_key = grid_key(undo_grid(given, view, colours))
            if all(pair.input_key != input_key for pair in tasks.get(task, ())):
                self.num_unmatched += 1
                continue
            grids = self._votes.setdefault((task, input_key), {})
            votes = grids.setdefault(grid_key(undo_grid(answer, view, colours)), Votes())
            votes.count += 1
            votes.q_sum += _fixed_point_sigmoid(q_logit)

    def merge(self, other: "Tally") -> None:
        """Add the votes of other rows."""
        self.num_predictions += other.num_predictions
        self.num_unmatched += other.num_unmatched
        for place, their_grids in other._votes.items():
            grids = self._votes.setdefault(place, {})
            for key, theirs in their_grids.items():
                votes = grids.setdefault(key, Votes())
                votes.count += theirs.count
                votes.q_sum += theirs.q_sum

    def ranked(self, task: str, input_key: bytes) -> list[tuple[bytes, Votes]]:
        """Return the grids voted for, best first, by key.

        Equal votes and equal Q are ordered by the key: the lowest, narrowest grid with the lowest
        colours first.
        """
        grids = self._votes.get((task, input_key), {})
        return sorted(grids.items(), key=lambda item: (-item[1].count, -item[1].q_sum, item[0]))


def _grids(canvases: np.ndarray) -> list[np.ndarray]:
    side = math.isqrt(canvases.shape[1])
    # Outside the crop this may wrap around.
    colours = (canvases.reshape(-1, side, side) - _FIRST_COLOUR).astype(np.uint8)
    heights, widths = crop_sizes(canvases)
    return [
        grid[:height, :width]
        for grid, height, width in zip(colours, heights.tolist(), widths.tolist(), strict=True)
    ]


def _fixed_point_sigmoid(logit: float) -> int:
    # One number at a time: NumPy's exp may round otherwise in another place of an array.
    if math.isnan(logit):
        return 0
    power = math.exp(-abs(logit))
    q = (1.0 if logit >= 0 else power) / (1.0 + power)
    return int(math.ldexp(q, _Q_BITS))


# Results


@dataclass(frozen=True)
class Scores:
    """pass@K by K: shares of what was solved by one of the K grids ranked first.

    Only test outputs that are known are scored; without any, both are empty.

    Attributes:
        per_test_output: mean over tasks of the share of the task's test outputs that are solved.
        per_task: share of the tasks whose test outputs are all solved.
        num_tasks: tasks that are scored.
    """

    per_test_output: dict[int, float]
    per_task: dict[int, float]
    num_tasks: int


def score(tasks: Tasks, tally: Tally, ks: Sequence[int] = PASS_KS) -> Scores:
    """Score the votes for all tasks; a test output without a vote is not solved."""
    solved_at = [
        [
            _place_of(pair.output_key, tally.ranked(name, pair.input_key))
            for pair in pairs
            if pair.output_key is not None
        ]
        for name, pairs in tasks.items()
    ]
    scored = [places for places in solved_at if places]
    if not scored:
        return Scores({}, {}, 0)
    shares = {k: [_share_up_to(k, places) for places in scored] for k in ks}
    return Scores(
        per_test_output={k: math.fsum(values) / len(scored) for k, values in shares.items()},
        per_task={k: values.count(1.0) / len(scored) for k, values in shares.items()},
        num_tasks=len(scored),
    )


def submission(tasks: Tasks, tally: Tally) -> dict[str, list[dict[str, list[list[int]]]]]:
    """Return the official two-attempt form: {task: [{"attempt_1": grid, "attempt_2": grid}, ...]}.

    With one grid only, the second attempt repeats the first. A test input without a vote gets the
    official sample's 2 x 2 zeros, so that those after it keep their places.
    """
    return {
        name: [_attempts(tally.ranked(name, pair.input_key)) for pair in pairs]
        for name, pairs in tasks.items()
    }


def task_details(
    tasks: Tasks, tally: Tally, max_grids: int = 100
) -> dict[str, list[dict[str, Any]]]:
    """Return the votes of each task, JSON-ready: a list with an entry for each test input.

    Keys of an entry: `votes` and `num_grids` in all; `solved_at`, the place of the right grid (1 is
    the first), null when it is not among them or not known; `known`, whether it is known; `grids`,
    the first `max_grids`, each with `votes`, `mean_q` (of sigmoid(q_halt)) and `grid`.
    """
    return {
        name: [_pair_details(pair, tally.ranked(name, pair.input_key), max_grids) for pair in pairs]
        for name, pairs in tasks.items()
    }


def tasks_without_votes(tasks: Tasks, tally: Tally) -> list[str]:
    """Name the tasks of which no test input has a vote, in their order."""
    return [
        name
        for name, pairs in tasks.items()
        if not any(tally.ranked(name, pair.input_key) for pair in pairs)
    ]


def _place_of(key: bytes | None, ranked: list[tuple[bytes, Votes]]) -> int | None:
    places = (place for place, (voted, _) in enumerate(ranked, start=1) if voted == key)
    return next(places, None)


def _share_up_to(k: int, places: list[int | None]) -> float:
    return sum(place is not None and place <= k for place in places) / len(places)


def _attempts(ranked: list[tuple[bytes, Votes]]) -> dict[str, list[list[int]]]:
    grids = [grid_of(key).tolist() for key, _ in ranked[:NUM_ATTEMPTS]] or [_NO_ANSWER]
    grids += grids[:1] * (NUM_ATTEMPTS - len(grids))
    return {f"attempt_{number}": grid for number, grid in enumerate(grids, start=1)}


def _pair_details(
    pair: TestPair, ranked: list[tuple[bytes, Votes]], max_grids: int
) -> dict[str, Any]:
    return {
        "votes": sum(votes.count for _, votes in ranked),
        "num_grids": len(ranked),
        "known": pair.output_key is not None,
        "solved_at": _place_of(pair.output_key, ranked),
        "grids": [
            {"votes": votes.count, "mean_q": votes.mean_q, "grid": grid_of(key).tolist()}
            for key, votes in ranked[:max_grids]
        ],
    }
