"""The rules of a kind of puzzles: whether answers keep them, and the clues. Imports no torch."""

from collections.abc import Sequence
from math import isqrt

import numpy as np

from dataset.format.schema import BLANK_NAME
from dataset.kinds import KINDS, EvaluatorConfig
from dataset.kinds.base import Kind, kind_named
from dataset.kinds.mixed import MIXED
from evaluation.evaluators.base import AnsweredRows, SharesEvaluator, require_kind
from evaluation.puzzles import identifiers_of, kind_of_data
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError


class RulesEvaluator(SharesEvaluator):
    """The `shares` of a kind: of valid answers and of those that keep the clues; for mazes, of
    paths and of shortest paths. If a puzzle has several right answers, each is valid. `rules` takes
    the kind of the data; another name is that of the kind. Of a mixed data set it measures the
    right answers of each kind.
    """

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        self._mixed = dict[int, Kind]()
        if config.name in KINDS:
            kinds = [kind_named(config.name)]
            require_kind(dataset, kinds[0])
        elif dataset.kind == MIXED.key:
            self._mixed = kinds_by_identifier(dataset)
            kinds = [*self._mixed.values()]
        else:
            kinds = [kind_of_data(dataset)]
        for kind in kinds:
            if type(kind).holds is Kind.holds and type(kind).broken is Kind.broken:
                raise DatasetError(f"the kind {kind.key} has no rules to check")
        self._kind = kinds[0]
        by_kind = tuple(f"valid_{kind.key}" for kind in self._mixed.values())
        self.shares = by_kind or self._kind.shares
        super().__init__()

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        if not self._mixed:
            return self._kind.holds(rows.inputs, rows.preds)
        side, judged = isqrt(rows.inputs.shape[1]), list[np.ndarray]()
        for number, kind in self._mixed.items():
            own = rows.puzzle_identifiers == number
            valid = np.ma.masked_all(len(own), bool)
            if own.any():
                boards = [each[own].reshape(-1, side, side) for each in (rows.inputs, rows.preds)]
                size = int(boards[0].any((0, 1)).sum())  # The rest is padding.
                grids = (board[:, :size, :size].reshape(-1, size**2) for board in boards)
                valid[own] = np.all(kind.holds(*grids), axis=0)
            judged.append(valid)
        return judged


def kinds_by_identifier(dataset: PuzzleDataset) -> dict[int, Kind]:
    """Return the kinds of a mixed data set; raise DatasetError if one is not known."""
    names = dict(enumerate(identifiers_of(dataset)))
    if unknown := {*names.values()} - {*KINDS, BLANK_NAME}:
        raise DatasetError(f"{dataset.split_dirs[0]}: unknown kinds {', '.join(sorted(unknown))}")
    return {number: kind_named(name) for number, name in names.items() if name != BLANK_NAME}
