"""Sudoku: whether answers keep the rules and the clues. Imports no torch."""

from collections.abc import Sequence
from math import isqrt

import numpy as np

from dataset.kinds import EvaluatorConfig
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import EMPTY_TOKEN, are_valid_solutions
from evaluation.evaluators.base import AnsweredRows, SharesEvaluator, require_kind
from puzzle_dataset import PuzzleDataset


class SudokuEvaluator(SharesEvaluator):
    """The shares of answers that are valid and keep the clues, and of those that keep the clues. If
    a puzzle has several solutions, each is valid.
    """

    shares = ("valid", "keeps_clues")

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        super().__init__()
        require_kind(dataset, SUDOKU)
        self._size = isqrt(dataset.metadata.seq_len)

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        is_clue = rows.inputs > EMPTY_TOKEN
        keeps_clues = (~is_clue | (rows.preds == rows.inputs)).all(axis=1)
        valid = are_valid_solutions(rows.preds - EMPTY_TOKEN, self._size)
        return valid & keeps_clues, keeps_clues
