"""The interface of evaluators, which score the answers to one kind of puzzle beyond the usual
figures. Each of ours is one file of this package, named in `dataset.kinds.EVALUATORS`.

Each rank gives its rows to its own evaluators, batch by batch. At the end their results are
gathered, and every rank has the same figures. Evaluators are built without torch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter

from dataset.kinds import EVALUATORS, AnyEvaluator, EvaluatorConfig
from dataset.kinds.base import Kind, kinds_with
from evaluation.metrics import wilson
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError

Gather = Callable[[Any], list[Any]]
"""Takes this rank's value and returns the values of all ranks, in rank order."""


@dataclass(frozen=True)
class AnsweredRows:
    """Rows of a test set with the answers of the last ACT step, without padding."""

    inputs: np.ndarray  # int32 [n, S] tokens
    labels: np.ndarray  # int32 [n, S], -100 where ignored
    puzzle_identifiers: np.ndarray  # int32 [n]
    preds: np.ndarray  # int32 [n, S] tokens, the answers
    q_halt_logits: np.ndarray  # float32 [n]


@dataclass(frozen=True)
class Findings:
    """The results of an evaluator, the same on every rank: metrics, further JSON-ready details, and
    files, each with a function that returns its JSON-ready content.
    """

    metrics: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Evaluator(Protocol):
    """Scores one evaluation after the other, each between `begin` and `finish`."""

    def begin(self) -> None:
        """Forget the rows of earlier evaluations."""

    def add(self, rows: AnsweredRows) -> None:
        """Add rows of this rank."""

    def finish(self, gather: Gather) -> Findings:
        """Merge the results of all ranks; each of them must call."""
        ...


def build_evaluators(
    chosen: Iterable[EvaluatorConfig | str],
    dataset: PuzzleDataset,
    say: Callable[[str], None] | None = None,
) -> dict[str, Evaluator]:
    """Build evaluators for a test set, by name.

    Args:
        chosen: names, or settings.
        say: if given, evaluators that do not fit the data are left out, and `say` gets a warning.
    Raises:
        DatasetError: the data are of another kind, or lack a file that an evaluator needs.
    """
    evaluators: dict[str, Evaluator] = {}
    for config in TypeAdapter(list[AnyEvaluator]).validate_python(list(chosen)):
        try:
            evaluators[config.name] = EVALUATORS.load(config.name)(config, dataset)
        except DatasetError as error:
            asked = f"evaluators=[{config.name}]"
            if say is None:
                needed = f"needed by {asked}; evaluators=[] does without"
                raise DatasetError(f"{error} ({needed})") from None
            say(f"{asked} of the data set chosen by name is left out: {error}")
    return evaluators


class SharesEvaluator:
    """The base of evaluators that measure shares of the rows, with 95 % intervals as details."""

    shares: tuple[str, ...]

    def __init__(self) -> None:
        self.begin()

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        """Return for each of `shares` the rows for which it is true, bool [n]; a masked array
        leaves rows out of the share.
        """
        raise NotImplementedError

    def begin(self) -> None:
        self._num_rows, self._sums = 0, {name: np.zeros(2, int) for name in self.shares}

    def add(self, rows: AnsweredRows) -> None:
        self._num_rows += len(rows.preds)
        for name, holds in zip(self.shares, self.judge(rows), strict=True):
            counted = np.ma.compressed(holds)
            self._sums[name] += np.count_nonzero(counted), len(counted)

    def finish(self, gather: Gather) -> Findings:
        parts = gather((self._num_rows, self._sums))
        num_rows = sum(rows for rows, _ in parts)
        if not num_rows:
            return Findings({}, {"num_examples": 0})
        totals = {name: np.sum([sums[name] for _, sums in parts], axis=0) for name in self.shares}
        shares = {name: wilson(*map(int, found)) for name, found in totals.items() if found[1]}
        metrics = {name: share.value for name, share in shares.items()}
        details = {"num_examples": num_rows} | {name: asdict(one) for name, one in shares.items()}
        return Findings(metrics, details)


def require_kind(dataset: PuzzleDataset, kind: Kind) -> None:
    """Raise DatasetError if the puzzles are, or must be, of another kind."""
    metadata, other = dataset.metadata, ""
    sizes = metadata.seq_len, metadata.vocab_size
    if metadata.kind is None:
        fits = kind in kinds_with(*sizes)
    else:
        fits, other = metadata.kind == kind.key and kind.fits(*sizes), f", but {metadata.kind}"
    if not fits:
        found = f"{metadata.vocab_size} tokens and {metadata.seq_len} cells"
        raise DatasetError(f"{dataset.split_dirs[0]}: {found} are no {kind.name} puzzles{other}")
