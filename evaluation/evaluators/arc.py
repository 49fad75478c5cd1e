"""ARC: turn answers to augmented tasks into votes, scores and a submission. Imports no torch.

Each row is an augmented test input with the model's answer, both on a canvas of tokens. Both are
cropped to their grids, and the augmentation is undone. The input tells which test input of the task
was augmented, and the answer is a vote for it. Equal answers add up; the grids of a test input are
ranked by (votes, mean of sigmoid(q_halt)), both descending.

Tallies hold only integers and names, and are merged by addition, so that neither the order of rows
nor the number of ranks changes a bit of any result.
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
from dataset.dihedral import NUM_VIEWS
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
"""The values of K in pass@K."""

# Sigmoids are summed in units of 2**-128, which is exact for logits above -52.
_Q_BITS = 128
_MAX_GRIDS = 100  # Of a test input, in the details.
_NO_ANSWER = [[0, 0], [0, 0]]  # As in the official sample submission.


def grid_key(grid: np.ndarray) -> bytes:
    """Return height, width and cells of a grid uint8 [h, w] as bytes, which identify the grid."""
    return bytes(grid.shape) + grid.tobytes()


def grid_of(key: bytes) -> np.ndarray:
    """Return the grid uint8 [h, w] of a key."""
    return np.frombuffer(key, np.uint8, offset=2).reshape(key[0], key[1])


class TestPair(NamedTuple):
    """The keys of a test input and of its output (None: unknown)."""

    input_key: bytes
    output_key: bytes | None


Tasks = Mapping[str, Sequence[TestPair]]
"""The test pairs of each task, by name."""


def parse_tasks(test_puzzles: object, source: str | Path) -> dict[str, list[TestPair]]:
    """Parse the original tasks, {name: {"test": [{"input": grid, "output": grid}, ...]}, ...}.

    An output may be missing or null.

    Raises:
        DatasetError: they have another form; names `source` (the file), task and pair.
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
    """The task and augmentation of each puzzle identifier; `source` is the file of the names."""

    def __init__(self, names: Sequence[str], source: str | Path) -> None:
        self._names, self._source = names, source

    def __getitem__(self, identifier: int) -> tuple[str, int, np.ndarray]:
        """Return (task, view, colours uint8 [10]).

        Raises:
            DatasetError: the identifier is unknown, or its name cannot be parsed.
        """
        try:
            if not 0 <= identifier < len(self._names):
                raise ValueError(f"there are {len(self._names)} names")
            return parse_identifier(self._names[identifier])
        except ValueError as error:
            raise DatasetError(f"{self._source}: identifier {identifier}: {error}") from None


@dataclass(frozen=True)
class Votes:
    """The votes for a grid, those of each view, and the mean of their sigmoid(q_halt), correctly
    rounded.
    """

    key: bytes
    count: int
    views: list[int]
    mean_q: float


class Tally:
    """The votes for the grids of each task and test input."""

    def __init__(self) -> None:
        self.num_predictions = 0
        self.tasks = set[str]()  # Those of all rows.
        self.num_unmatched = 0  # Rows without a vote: their input is no test input of the task.
        self._votes: dict[tuple[str, bytes], Counter[bytes]] = defaultdict(Counter)
        self._q_sums: dict[tuple[str, bytes], Counter[bytes]] = defaultdict(Counter)
        self._views: dict[tuple[str, bytes], Counter[tuple[bytes, int]]] = defaultdict(Counter)

    def add_rows(self, tasks: Tasks, names: PuzzleNames, rows: Mapping[str, np.ndarray]) -> None:
        """Count the votes of rows.

        Args:
            rows: `inputs` and `preds`, integer [N, S] canvases of tokens, S a square number;
                `puzzle_identifiers`, integer [N]; `q_halt_logits`, float [N], NaN counts as Q = 0.
        Raises:
            DatasetError: see `PuzzleNames`.
        """
        identifiers, logits = rows["puzzle_identifiers"].tolist(), rows["q_halt_logits"].tolist()
        self.num_predictions += len(identifiers)
        grids = crop_grids(rows["inputs"]), crop_grids(rows["preds"])
        for identifier, question, answer, q_logit in zip(identifiers, *grids, logits, strict=True):
            task, view, colours = names[identifier]
            self.tasks.add(task)
            input_key = grid_key(undo_grid(question, view, colours))
            if all(pair.input_key != input_key for pair in tasks.get(task, ())):
                self.num_unmatched += 1
                continue
            place, key = (task, input_key), grid_key(undo_grid(answer, view, colours))
            self._votes[place][key] += 1
            self._q_sums[place][key] += _fixed_point_sigmoid(q_logit)
            self._views[place][key, view] += 1

    def add_attempts(self, tasks: Tasks, attempts: Mapping[str, Any], source: str | Path) -> None:
        """Count the attempts of a submission as two votes for the first, and one for the second.

        Raises:
            DatasetError: it has another form; names `source`, the task and the test input.
        """
        for name, pairs in tasks.items():
            own = attempts.get(name)
            if not isinstance(own, list) or len(own) != len(pairs):
                raise DatasetError(f"{source}: task {name!r} has no list of {len(pairs)} answers")
            for number, (pair, one) in enumerate(zip(pairs, own, strict=True), 1):
                for votes, attempt in ((2, "attempt_1"), (1, "attempt_2")):
                    where = f"{source}: task {name!r}: test input {number}: {attempt}"
                    grid = parse_grid(one.get(attempt) if isinstance(one, dict) else one, where)
                    place, key = (name, pair.input_key), grid_key(grid)
                    self._votes[place][key] += votes
                    self._q_sums[place][key] += 0

    def merge(self, other: "Tally") -> None:
        """Add the votes of other rows."""
        self.num_predictions += other.num_predictions
        self.tasks |= other.tasks
        self.num_unmatched += other.num_unmatched
        for place in other._votes:
            self._votes[place].update(other._votes[place])
            self._q_sums[place].update(other._q_sums[place])
            self._views[place].update(other._views[place])

    def ranked(self, task: str, input_key: bytes) -> list[Votes]:
        """Return the votes for each grid, best first. With equal votes and Q the order is: fewest
        rows, fewest columns, lowest colours.
        """
        place = task, input_key
        counts, q_sums = self._votes.get(place, {}), self._q_sums.get(place, {})
        views = self._views.get(place, Counter())
        return [
            Votes(
                key,
                counts[key],
                [views[key, view] for view in range(NUM_VIEWS)],
                q_sums[key] / (counts[key] << _Q_BITS),
            )
            for key in sorted(counts, key=lambda key: (-counts[key], -q_sums[key], key))
        ]


def _fixed_point_sigmoid(logit: float) -> int:
    # Not with NumPy, whose exp can round differently at different places of an array.
    if math.isnan(logit):
        return 0
    power = math.exp(-abs(logit))
    q = (1.0 if logit >= 0 else power) / (1.0 + power)
    return int(math.ldexp(q, _Q_BITS))


def score(tasks: Tasks, tally: Tally, ks: Sequence[int] = PASS_KS) -> tuple[dict[str, float], int]:
    """Return the scores by name, and the number of scored tasks: those with a known output.

    A test output is solved if it is among the first K grids. `pass@K` is the mean over tasks of the
    share of solved outputs; `task_pass@K` is the share of tasks with all outputs solved.
    """
    places = [
        [_place_of(right, tally.ranked(name, given)) for given, right in pairs if right is not None]
        for name, pairs in tasks.items()
    ]
    scored = [of_task for of_task in places if of_task]
    shares = {
        k: [sum(place is not None and place <= k for place in one) / len(one) for one in scored]
        for k in (ks if scored else ())
    }
    scores = {f"pass@{k}": math.fsum(values) / len(scored) for k, values in shares.items()}
    scores |= {f"task_pass@{k}": of.count(1.0) / len(scored) for k, of in shares.items()}
    return scores, len(scored)


def submission(tasks: Tasks, tally: Tally) -> dict[str, list[dict[str, list[list[int]]]]]:
    """Return the official form, {task: [`attempts_of` each test input]}."""

    def ranked(task: str, pair: TestPair) -> list[list[list[int]]]:
        return [grid_of(votes.key).tolist() for votes in tally.ranked(task, pair.input_key)]

    return {
        name: [attempts_of(ranked(name, pair)) for pair in pairs] for name, pairs in tasks.items()
    }


def attempts_of(grids: Sequence[list[list[int]]]) -> dict[str, list[list[int]]]:
    """Return the two attempts for a test input, {"attempt_1": grid, "attempt_2": grid}.

    Args:
        grids: best first. With only one, the second attempt repeats it; with none, both are the
            2 x 2 zeros of the official sample. These also replace an empty grid, which is invalid.
    """
    best = [grid or _NO_ANSWER for grid in grids[:2]] or [_NO_ANSWER]
    return {"attempt_1": best[0], "attempt_2": best[-1]}


def task_details(tasks: Tasks, tally: Tally) -> dict[str, list[dict[str, Any]]]:
    """Return the votes of each task, JSON-ready: a list with an entry for each test input.

    The keys of an entry: `votes` and `num_grids`, the totals; `known`, whether the right grid is
    known; `solved_at`, its place (1 is the first), null if it has no votes or is not known;
    `grids`, the first 100, each with `votes`, `views` (the votes of view 0 to 7), `mean_q` (of
    sigmoid(q_halt)) and `grid`.
    """

    def details(pair: TestPair, ranked: list[Votes]) -> dict[str, Any]:
        return {
            "votes": sum(votes.count for votes in ranked),
            "num_grids": len(ranked),
            "known": pair.output_key is not None,
            "solved_at": _place_of(pair.output_key, ranked),
            "grids": [
                {
                    **{"votes": one.count, "views": one.views, "mean_q": one.mean_q},
                    "grid": grid_of(one.key).tolist(),
                }
                for one in ranked[:_MAX_GRIDS]
            ],
        }

    return {
        name: [details(pair, tally.ranked(name, pair.input_key)) for pair in pairs]
        for name, pairs in tasks.items()
    }


def _place_of(key: bytes | None, ranked: list[Votes]) -> int | None:
    """Return the place of a grid, from 1; None if it is not in the list."""
    return next((place for place, votes in enumerate(ranked, 1) if votes.key == key), None)


class ArcEvaluator:
    """Scores ARC tasks as described at the top of this file.

    It reads identifiers.json and test_puzzles.json of each folder. A task that is in several
    folders, with the same test pairs, is one task: its votes add up. A sample of the rows scores
    only their tasks.
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
        self._num_rows = sum(arrays.num_examples for arrays in dataset.sets.values())
        self._names = PuzzleNames(names, dataset.split_dirs[0].parent / IDENTIFIERS_NAME)
        used = [np.unique(arrays.puzzle_identifiers) for arrays in dataset.sets.values()]
        # Raises an error if a name cannot be parsed.
        present = {self._names[identifier][0] for identifier in np.concatenate(used).tolist()}
        if any((folder.parent / "selection").exists() for folder in dataset.split_dirs):
            # The tasks of the test split and of the selection are in one file.
            self._tasks = {name: self._tasks[name] for name in self._tasks if name in present}
        self.begin()

    def begin(self) -> None:
        self._tally = Tally()

    def add(self, rows: AnsweredRows) -> None:
        self._tally.add_rows(self._tasks, self._names, vars(rows))

    def finish(self, gather: Gather) -> Findings:
        tasks, tally = self._tasks, Tally()
        for part in gather(self._tally):
            tally.merge(part)
        if 0 < tally.num_predictions < self._num_rows:  # A sample: only tasks that have a row.
            tasks = {name: pairs for name, pairs in tasks.items() if name in tally.tasks}
        metrics, number = score(tasks, tally)
        details = {
            **{name: asdict(arc_interval(share, number)) for name, share in metrics.items()},
            "num_tasks": len(self._tasks),
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
        files = {
            "submission.json": partial(submission, self._tasks, tally),
            "arc_tasks.json": partial(task_details, tasks, tally),
        }
        return Findings(metrics, details, files)
