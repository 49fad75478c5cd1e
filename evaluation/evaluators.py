"""Evaluators: what is measured of the answers to one kind of puzzle, beside the usual figures.

Each rank hands its rows to its own evaluators, batch by batch; at the end their tallies are brought
together, and every rank has the same figures. Built, and its data checked, without torch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter

from dataset.format.files import read_json
from dataset.format.layout import IDENTIFIERS_NAME, TEST_PUZZLES_NAME
from dataset.format.schema import ARC_VOCAB_SIZE
from dataset.kinds import EVALUATORS, AnyEvaluator, ArcEvaluatorConfig, EvaluatorConfig
from dataset.maze import rules as maze
from dataset.sudoku.rules import EMPTY_TOKEN, are_valid_solutions, grid_size
from evaluation import arc
from evaluation.headline import arc_interval
from evaluation.metrics import wilson
from evaluation.puzzles import identifiers_of
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError

Gather = Callable[[Any], list[Any]]
"""Takes this rank's value and returns those of all ranks, in rank order, on every rank."""


@dataclass(frozen=True)
class AnsweredRows:
    """Rows of a test set with the answers of the last ACT step; padding is left out."""

    inputs: np.ndarray  # int32 [n, S] tokens
    labels: np.ndarray  # int32 [n, S], -100 where ignored
    puzzle_identifiers: np.ndarray  # int32 [n]
    preds: np.ndarray  # int32 [n, S] tokens, the answers
    q_halt_logits: np.ndarray  # float32 [n]


@dataclass(frozen=True)
class Findings:
    """What an evaluator found, the same on every rank: figures, more of them as JSON-ready values,
    and files, whose JSON-ready content is made when it is asked for.
    """

    metrics: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Evaluator(Protocol):
    """Measures one evaluation after the other, each between `begin` and `finish`."""

    def begin(self) -> None:
        """Forget the rows of earlier evaluations."""

    def add(self, rows: AnsweredRows) -> None:
        """Take in rows of this rank."""

    def finish(self, gather: Gather) -> Findings:
        """Bring the ranks together; all of them take part."""
        ...


def build_evaluators(
    chosen: Iterable[EvaluatorConfig | str], dataset: PuzzleDataset
) -> dict[str, Evaluator]:
    """Build evaluators for a test set, by name.

    Args:
        chosen: their settings; a name where there are none.
    Raises:
        DatasetError: the data are not of this kind, or lack a file that is needed; says which.
    """
    evaluators: dict[str, Evaluator] = {}
    for config in TypeAdapter(list[AnyEvaluator]).validate_python(list(chosen)):
        try:
            evaluators[config.name] = EVALUATORS.load(config.name)(config, dataset)
        except DatasetError as error:
            needed = f"needed by evaluators=[{config.name}]; evaluators=[] does without"
            raise DatasetError(f"{error} ({needed})") from None
    return evaluators


def build_fitting(
    inherited: Iterable[EvaluatorConfig], dataset: PuzzleDataset, say: Callable[[str], None]
) -> dict[str, Evaluator]:
    """Build the evaluators of another data set that fit a test set; `say` is told of the others."""
    evaluators: dict[str, Evaluator] = {}
    for config in inherited:
        try:
            evaluators |= build_evaluators([config], dataset)
        except DatasetError as error:
            say(f"the evaluator {config.name} of the data set chosen by name is left out: {error}")
    return evaluators


class ArcEvaluator:
    """Scores ARC tasks; see `evaluation.arc` for the rule.

    Reads identifiers.json and test_puzzles.json of each folder of the test set. A task that several
    folders hold, with the same test pairs, is one task: their votes add up.
    """

    def __init__(self, config: ArcEvaluatorConfig, dataset: PuzzleDataset) -> None:
        _require_square(dataset, ARC_VOCAB_SIZE, "a square canvas")
        self._tasks: dict[str, list[arc.TestPair]] = {}
        names = identifiers_of(dataset)
        for folder in dataset.split_dirs:
            path = folder.parent / TEST_PUZZLES_NAME
            for task, pairs in arc.parse_tasks(read_json(path), path).items():
                if self._tasks.setdefault(task, pairs) != pairs:
                    clash = f"{path}: task {task!r} has other test pairs in another data path"
                    raise DatasetError(f"{clash}: evaluate the folders one by one")
        self._names = arc.PuzzleNames(names, dataset.split_dirs[0].parent / IDENTIFIERS_NAME)
        for arrays in dataset.sets.values():
            for identifier in np.unique(arrays.puzzle_identifiers).tolist():
                self._names[identifier]  # One without a usable name is an error here, not later.
        self._keeps_votes = config.keeps_votes
        self._tally = arc.Tally()

    def begin(self) -> None:
        if not self._keeps_votes:
            self._tally = arc.Tally()

    def add(self, rows: AnsweredRows) -> None:
        read = ("inputs", "preds", "puzzle_identifiers", "q_halt_logits")
        arrays = {name: getattr(rows, name) for name in read}
        self._tally.add_rows(self._tasks, self._names, **arrays)

    def finish(self, gather: Gather) -> Findings:
        tasks, tally = self._tasks, arc.Tally()
        for part in gather(self._tally):
            tally.merge(part)
        scores = arc.score(tasks, tally)
        metrics = {f"pass@{k}": share for k, share in scores.per_test_output.items()}
        metrics |= {f"task_pass@{k}": share for k, share in scores.per_task.items()}
        number = scores.num_tasks
        details = {
            **{name: asdict(arc_interval(share, number)) for name, share in metrics.items()},
            "num_tasks": len(tasks),
            "num_scored_tasks": number,
            "num_predictions": tally.num_predictions,
            "num_unmatched_predictions": tally.num_unmatched,
            "tasks_without_votes": arc.tasks_without_votes(tasks, tally),
        }
        files: dict[str, Callable[[], Any]] = {
            "submission.json": lambda: arc.submission(tasks, tally),
            "arc_tasks.json": lambda: arc.task_details(tasks, tally),
        }
        metrics["unmatched_predictions"] = float(tally.num_unmatched)
        return Findings(metrics, details, files)


class _SharesEvaluator:
    """Measures shares of the rows, with their 95 % intervals as details."""

    shares: tuple[str, ...]

    def __init__(self) -> None:
        self.begin()

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        """Return for each of `shares` which rows it holds, bool [n]."""
        raise NotImplementedError

    def begin(self) -> None:
        self._num_rows, self._sums = 0, dict.fromkeys(self.shares, 0)

    def add(self, rows: AnsweredRows) -> None:
        self._num_rows += len(rows.preds)
        for name, holds in zip(self.shares, self.judge(rows), strict=True):
            self._sums[name] += int(np.count_nonzero(holds))

    def finish(self, gather: Gather) -> Findings:
        parts = gather((self._num_rows, self._sums))
        num_rows = sum(rows for rows, _ in parts)
        if not num_rows:
            return Findings({}, {"num_examples": 0})
        shares = {
            name: wilson(sum(sums[name] for _, sums in parts), num_rows) for name in self.shares
        }
        intervals = {name: asdict(share) for name, share in shares.items()}
        metrics = {name: share.value for name, share in shares.items()}
        return Findings(metrics, {"num_examples": num_rows, **intervals})


class SudokuEvaluator(_SharesEvaluator):
    """Shares of the answers that are valid grids and keep the clues, and that keep the clues; a
    puzzle with several solutions may be answered by another than the recorded one.
    """

    shares = ("valid", "keeps_clues")

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        super().__init__()
        metadata = dataset.metadata
        try:
            self._size = grid_size(metadata.seq_len)
        except ValueError as error:
            raise _unsuitable(dataset, str(error)) from None
        if metadata.vocab_size != self._size + 1 + EMPTY_TOKEN:
            raise _unsuitable(dataset, f"expected {self._size + 1 + EMPTY_TOKEN} tokens")

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        is_clue = rows.inputs > EMPTY_TOKEN
        keeps_clues = (~is_clue | (rows.preds == rows.inputs)).all(axis=1)
        valid = are_valid_solutions(rows.preds - EMPTY_TOKEN, self._size)
        return valid & keeps_clues, keeps_clues


class MazeEvaluator(_SharesEvaluator):
    """Shares of the answers that are a path from start to goal, and that are a shortest one."""

    shares = ("valid_path", "shortest_path")

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        super().__init__()
        _require_square(dataset, maze.VOCAB_SIZE, "a square")

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        return maze.check_paths(rows.inputs, rows.preds)


def _require_square(dataset: PuzzleDataset, vocab_size: int, cells: str) -> None:
    metadata = dataset.metadata
    if metadata.vocab_size != vocab_size or math.isqrt(metadata.seq_len) ** 2 != metadata.seq_len:
        raise _unsuitable(dataset, f"expected {vocab_size} tokens on {cells}")


def _unsuitable(dataset: PuzzleDataset, why: str) -> DatasetError:
    metadata = dataset.metadata
    found = f"{metadata.vocab_size} tokens and {metadata.seq_len} cells"
    return DatasetError(f"{dataset.split_dirs[0]}: {found}: {why}")
