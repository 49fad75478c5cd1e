"""Views of puzzles are undone exactly, and follow from seed and row alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataset.kinds.arc import ARC
from dataset.kinds.base import DihedralViews, Views
from dataset.kinds.maze import MAZE
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import EMPTY_TOKEN, are_valid_solutions
from dataset.sudoku.symmetries import SudokuSymmetries
from evaluation.config import ThinkingSettings
from evaluation.views import draw_views, views_for
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError


@pytest.mark.parametrize("kind", [SudokuSymmetries, DihedralViews])
@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_view_is_undone(kind: Callable[[int], Views], size: int) -> None:
    rng, views = np.random.default_rng(size), kind(size)
    boards = rng.integers(0, size + 2, (200, size * size)).astype(np.uint8)
    numbers = rng.integers(0, views.number, 200)
    (seen,) = views.apply(numbers, boards)
    assert (seen != boards).any(-1).mean() > 0.5
    assert np.array_equal(views.undo(numbers, seen), boards)
    assert np.array_equal(views.apply(np.zeros(200, np.int64), boards)[0], boards)


def test_views_of_a_solution_are_solutions(sudoku_data: Path) -> None:
    labels = PuzzleDataset([sudoku_data], "test").sets["all"].labels.astype(np.uint8)
    views = SudokuSymmetries(4)
    numbers = np.random.default_rng(0).integers(0, views.number, len(labels))
    assert are_valid_solutions(views.apply(numbers, labels)[0] - EMPTY_TOKEN, 4).all()


def test_the_views_are_those_of_the_kind() -> None:
    several = ThinkingSettings(chains=[1, 9])
    assert isinstance(views_for(several, SUDOKU, 4), SudokuSymmetries)
    assert isinstance(views_for(ThinkingSettings(chains=[8]), MAZE, 5), DihedralViews)
    assert views_for(ThinkingSettings(), ARC, 5) is None
    for kind, told in (
        (ARC, "ARC puzzles have no known symmetry; use perturb=noise"),
        (None, "these puzzles have no known symmetry"),
        (MAZE, "chains=9: maze puzzles have only 8 views; use fewer"),
    ):
        with pytest.raises(ConfigError, match=told):
            views_for(several, kind, 5)


@pytest.mark.parametrize("kind", [SudokuSymmetries, DihedralViews])
def test_draws_depend_only_on_seed_and_row(kind: Callable[[int], Views]) -> None:
    views = kind(9)
    drawn = draw_views(views, 3, np.arange(20), 8)
    assert drawn.shape == (8, 20)
    assert (drawn[0] == 0).all()
    assert all(len(set(column)) == 8 for column in drawn.T.tolist())
    assert drawn.max() < views.number
    assert np.array_equal(draw_views(views, 3, np.arange(5, 9), 4), drawn[:4, 5:9])
    assert not np.array_equal(draw_views(views, 4, np.arange(20), 8), drawn)
