"""Sudoku: whether answers keep the rules and the clues. Imports no torch."""

from collections.abc import Sequence

import numpy as np

from dataset.kinds import EvaluatorConfig
from dataset.sudoku.rules import EMPTY_TOKEN, are_valid_solutions, grid_size
from evaluation.evaluators.base import AnsweredRows, SharesEvaluator, unsuitable
from puzzle_dataset import PuzzleDataset


class SudokuEvaluator(SharesEvaluator):
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
            raise unsuitable(dataset, str(error)) from None
        if metadata.vocab_size != self._size + 1 + EMPTY_TOKEN:
            raise unsuitable(dataset, f"expected {self._size + 1 + EMPTY_TOKEN} tokens")

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        is_clue = rows.inputs > EMPTY_TOKEN
        keeps_clues = (~is_clue | (rows.preds == rows.inputs)).all(axis=1)
        valid = are_valid_solutions(rows.preds - EMPTY_TOKEN, self._size)
        return valid & keeps_clues, keeps_clues
