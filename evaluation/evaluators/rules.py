"""The rules of a kind of puzzles: whether answers keep them, and the clues. Imports no torch."""

from collections.abc import Sequence

import numpy as np

from dataset.kinds import KINDS, EvaluatorConfig
from dataset.kinds.base import Kind, kind_named
from evaluation.evaluators.base import AnsweredRows, SharesEvaluator, require_kind
from evaluation.puzzles import kind_of_data
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError


class RulesEvaluator(SharesEvaluator):
    """The `shares` of a kind: of valid answers and of those that keep the clues; for mazes, of
    paths and of shortest paths. If a puzzle has several right answers, each is valid. `rules` takes
    the kind of the data; another name is that of the kind.
    """

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        if config.name in KINDS:
            self._kind = kind_named(config.name)
            require_kind(dataset, self._kind)
        else:
            self._kind = kind_of_data(dataset)
        if type(self._kind).holds is Kind.holds and type(self._kind).broken is Kind.broken:
            raise DatasetError(f"the kind {self._kind.key} has no rules to check")
        self.shares = self._kind.shares
        super().__init__()

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        return self._kind.holds(rows.inputs, rows.preds)
