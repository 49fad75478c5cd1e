"""ARC: how answers to augmented tasks become votes, scores and a submission. Imports no torch.

Each row is an augmented test input with the model's answer, both on a canvas of tokens. In the
order of the data: the canvas is cropped to its grid, the augmentation is undone, the answer becomes
a vote for the test input that its own input turns out to be, and votes for equal grids add up. The
grids of a test input are ranked by (votes, mean of sigmoid(q_halt)), both descending.

Tallies hold integers only and are merged by addition, so that neither the order of the rows nor
the number of ranks changes a bit of any result.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.arc.augmentation import parse_identifier, undo_grid
from dataset.arc.tasks import crop_grids, parse_grid
from dataset.format.files import read_json
from dataset.format.schema import IDENTIFIERS_NAME, TEST_PUZZLES_NAME
from dataset.kinds import EvaluatorConfig
from dataset.kinds.arc import ARC
from evaluation.evaluators.base import AnsweredRows, Findings, Gather, require_kind
from evaluation.headline import arc_interval
from evaluation.puzzles import identifiers_of
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError

PASS_KS = (1, 2, 5, 10, 100, 1000)
"""Numbers of first-ranked grids among which the right one is looked for."""

# A sigmoid in float64 is a multiple of this unit where it is at least 2**-75 (a logit above -52).
_Q_BITS = 128
_MAX_GRIDS = 100  # of a test input, in the details
# What the official sample submission holds where there is nothing to say.
_NO_ANSWER = [[0, 0], [0, 0]]


def grid_key(grid: np.ndarray) -> bytes:
    """Return height, width and cells of a grid uint8 [h, w]: equal for equal grids only."""
    return bytes(grid.shape) + grid.tobytes()


def grid_of(key: bytes) -> np.ndarray:
    """Return the grid uint8 [h, w] that has a key."""
    return np.frombuffer(key, np.uint8, offset=2).reshape(key[0], key[1])


class TestPair(NamedTuple):
    """Keys of a test input and of its output; None where the output is unknown."""

    input_key: bytes
    output_key: bytes | None


Tasks = Mapping[str, Sequence[TestPair]]
"""The test pairs of each task, by name."""


def parse_tasks(test_puzzles: object, source: str | Path) -> dict[str, list[TestPair]]:
    """Read the original tasks, {name: {"test": [{"input": grid, "output": grid}, ...]}, ...}.

    An output may be missing or null.

    Raises:
        DatasetError: it is not of this form; names `source` (the file), task and pair.
    """
    if not isinstance(test_puzzles, dict):
        raise DatasetError(f"{source}: expected an object of tasks by name")
    tasks = {}
    for name, task in test_puzzles.items():
        where = f"{source}: task {name!r}"
        pairs = task.get("test") if isinstance(task, dict) else None
        if not isinstance(pairs, list) or not pairs:
            raise DatasetError(f"{where} has no list of test pairs")
        tasks[name] = []
        for number, pair in enumerate(pairs, 1):
            at = f"{where}: test pair {number}"
            if not isinstance(pair, dict) or "input" not in pair:
                raise DatasetError(f"{at} has no input")
            question, output = parse_grid(pair["input"], f"{at}: input"), pair.get("output")
            answer = None if output is None else grid_key(parse_grid(output, f"{at}: output"))
            tasks[name].append(TestPair(grid_key(question), answer))
    return tasks


class PuzzleNames:
    """What each puzzle identifier says: its task and augmentation; `source` is the names' file."""

    def __init__(self, names: Sequence[str], source: str | Path) -> None:
        self._names, self._source = names, source

    def __getitem__(self, identifier: int) -> tuple[str, int, np.ndarray]:
        """Return (task, view, colours uint8 [10]).

        Raises:
            DatasetError: no such identifier, or its name cannot be read; names the file.
        """
        try:
            if not 0 <= identifier < len(self._names):
                raise ValueError(f"there are {len(self._names)} names")
            return parse_identifier(self._names[identifier])
        except ValueError as error:
            raise DatasetError(f"{self._source}: identifier {identifier}: {error}") from None


@dataclass(frozen=True)
class Votes:
    """Number of votes for a grid; sum of their sigmoid(q_halt), each floored to 2**-128 units."""

    count: int
    q_sum: int

    @property
    def mean_q(self) -> float:
        """The mean of sigmoid(q_halt), correctly rounded."""
        return self.q_sum / (self.count << _Q_BITS)


class Tally:
    """The votes of some rows, for each task and test input."""

    def __init__(self) -> None:
        self.num_predictions = 0
        self.num_unmatched = 0  # Rows without a vote: their undone input is none of their task.
        self._votes: dict[tuple[str, bytes], Counter[bytes]] = defaultdict(Counter)
        self._q_sums: dict[tuple[str, bytes], Counter[bytes]] = defaultdict(Counter)

    def add_rows(self, tasks: Tasks, names: PuzzleNames, rows: Mapping[str, np.ndarray]) -> None:
        """Count rows of augmented test inputs.

        Args:
            rows: `inputs` and `preds`, integer [N, S] canvases of tokens, questions and answers, S
                a square; `puzzle_identifiers`, integer [N]; `q_halt_logits`, float [N], of which
                NaN counts as Q = 0.
        Raises:
            DatasetError: see `PuzzleNames`.
        """
        identifiers, logits = rows["puzzle_identifiers"].tolist(), rows["q_halt_logits"].tolist()
        self.num_predictions += len(identifiers)
        grids = crop_grids(rows["inputs"]), crop_grids(rows["preds"])
        for identifier, question, answer, q_logit in zip(identifiers, *grids, logits, strict=True):
            task, view, colours = names[identifier]
            input_key = grid_key(undo_grid(question, view, colours))
            if all(pair.input_key != input_key for pair in tasks.get(task, ())):
                self.num_unmatched += 1
                continue
            place, key = (task, input_key), grid_key(undo_grid(answer, view, colours))
            self._votes[place][key] += 1
            self._q_sums[place][key] += _fixed_point_sigmoid(q_logit)

    def merge(self, other: "Tally") -> None:
        """Add the votes of other rows."""
        self.num_predictions += other.num_predictions
        self.num_unmatched += other.num_unmatched
        for place in other._votes:
            self._votes[place].update(other._votes[place])
            self._q_sums[place].update(other._q_sums[place])

    def ranked(self, task: str, input_key: bytes) -> list[tuple[bytes, Votes]]:
        """Return the grids voted for, best first, by key; of equal votes and equal Q the lowest,
        narrowest grid with the lowest colours first.
        """
        counts, q_sums = (each.get((task, input_key), {}) for each in (self._votes, self._q_sums))
        grids = {key: Votes(count, q_sums[key]) for key, count in counts.items()}
        return sorted(grids.items(), key=lambda item: (-item[1].count, -item[1].q_sum, item[0]))


def _fixed_point_sigmoid(logit: float) -> int:
    # One number at a time: NumPy's exp may round otherwise in another place of an array.
    if math.isnan(logit):
        return 0
    power = math.exp(-abs(logit))
    q = (1.0 if logit >= 0 else power) / (1.0 + power)
    return int(math.ldexp(q, _Q_BITS))


@dataclass(frozen=True)
class Scores:
    """pass@K by K: shares of what was solved by one of the K grids ranked first.

    Only test outputs that are known are scored; without any, both are empty.
    """

    per_test_output: dict[int, float]  # Mean over tasks of the share of their outputs solved.
    per_task: dict[int, float]  # Share of the tasks whose test outputs are all solved.
    num_tasks: int


def score(tasks: Tasks, tally: Tally, ks: Sequence[int] = PASS_KS) -> Scores:
    """Score the votes for all tasks; a test output without a vote is not solved."""
    places = [
        [_place_of(right, tally.ranked(name, given)) for given, right in pairs if right is not None]
        for name, pairs in tasks.items()
    ]
    scored = [of_task for of_task in places if of_task]
    shares = {
        k: [sum(place is not None and place <= k for place in one) / len(one) for one in scored]
        for k in (ks if scored else ())
    }
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

    def attempts(ranked: list[tuple[bytes, Votes]]) -> dict[str, list[list[int]]]:
        grids = [grid_of(key).tolist() for key, _ in ranked[:2]] or [_NO_ANSWER]
        return {"attempt_1": grids[0], "attempt_2": grids[-1]}

    return {
        name: [attempts(tally.ranked(name, pair.input_key)) for pair in pairs]
        for name, pairs in tasks.items()
    }


def task_details(tasks: Tasks, tally: Tally) -> dict[str, list[dict[str, Any]]]:
    """Return the votes of each task, JSON-ready: a list with an entry for each test input.

    Keys of an entry: `votes` and `num_grids` in all; `solved_at`, the place of the right grid (1 is
    the first), null when it is not among them or not known; `known`, whether it is known; `grids`,
    the first 100, each with `votes`, `mean_q` (of sigmoid(q_halt)) and `grid`.
    """

    def details(pair: TestPair, ranked: list[tuple[bytes, Votes]]) -> dict[str, Any]:
        return {
            "votes": sum(votes.count for _, votes in ranked),
            "num_grids": len(ranked),
            "known": pair.output_key is not None,
            "solved_at": _place_of(pair.output_key, ranked),
            "grids": [
                {"votes": votes.count, "mean_q": votes.mean_q, "grid": grid_of(key).tolist()}
                for key, votes in ranked[:_MAX_GRIDS]
            ],
        }

    return {
        name: [details(pair, tally.ranked(name, pair.input_key)) for pair in pairs]
        for name, pairs in tasks.items()
    }


def _place_of(key: bytes | None, ranked: list[tuple[bytes, Votes]]) -> int | None:
    """Return the place of a grid, 1 for the first; None where it is not among them."""
    places = (place for place, (voted, _) in enumerate(ranked, start=1) if voted == key)
    return next(places, None)


class ArcEvaluator:
    """Scores ARC tasks; see above for the rule.

    Reads identifiers.json and test_puzzles.json of each folder of the test set. A task that several
    folders hold, with the same test pairs, is one task: their votes add up.
    """

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        require_kind(dataset, ARC)
        self._tasks: dict[str, list[TestPair]] = {}
        names = identifiers_of(dataset)
        for folder in dataset.split_dirs:
            path = folder.parent / TEST_PUZZLES_NAME
            for task, pairs in parse_tasks(read_json(path), path).items():
                if self._tasks.setdefault(task, pairs) != pairs:
                    clash = f"{path}: task {task!r} has other test pairs in another data path"
                    raise DatasetError(f"{clash}: evaluate the folders one by one")
        self._names = PuzzleNames(names, dataset.split_dirs[0].parent / IDENTIFIERS_NAME)
        for arrays in dataset.sets.values():
            for identifier in np.unique(arrays.puzzle_identifiers).tolist():
                self._names[identifier]  # One without a usable name is an error here, not later.
        self.begin()

    def begin(self) -> None:
        self._tally = Tally()

    def add(self, rows: AnsweredRows) -> None:
        self._tally.add_rows(self._tasks, self._names, vars(rows))

    def finish(self, gather: Gather) -> Findings:
        tasks, tally = self._tasks, Tally()
        for part in gather(self._tally):
            tally.merge(part)
        scores = score(tasks, tally)
        metrics = {f"pass@{k}": share for k, share in scores.per_test_output.items()}
        metrics |= {f"task_pass@{k}": share for k, share in scores.per_task.items()}
        number = scores.num_tasks
        details = {
            **{name: asdict(arc_interval(share, number)) for name, share in metrics.items()},
            "num_tasks": len(tasks),
            "num_scored_tasks": number,
            "num_predictions": tally.num_predictions,
            "num_unmatched_predictions": tally.num_unmatched,
            "tasks_without_votes": [
                name
                for name, pairs in tasks.items()
                if not any(tally.ranked(name, pair.input_key) for pair in pairs)
            ],
        }
        metrics["unmatched_predictions"] = float(tally.num_unmatched)
        made = {"submission.json": submission, "arc_tasks.json": task_details}
        files = {name: partial(make, tasks, tally) for name, make in made.items()}
        return Findings(metrics, details, files)
