"""Mazes: whether answers are paths, and shortest paths. Imports no torch."""

from collections.abc import Sequence

import numpy as np

from dataset.kinds import EvaluatorConfig
from dataset.kinds.maze import MAZE
from dataset.maze import rules as maze
from evaluation.evaluators.base import AnsweredRows, SharesEvaluator, require_kind
from puzzle_dataset import PuzzleDataset


class MazeEvaluator(SharesEvaluator):
    """The shares of answers that are a path from start to goal, and a shortest path."""

    shares = ("valid_path", "shortest_path")

    def __init__(self, config: EvaluatorConfig, dataset: PuzzleDataset) -> None:
        super().__init__()
        require_kind(dataset, MAZE)

    def judge(self, rows: AnsweredRows) -> Sequence[np.ndarray]:
        return maze.check_paths(rows.inputs, rows.preds)
