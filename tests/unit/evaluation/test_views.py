"""Views of puzzles are undone exactly, and follow from seed and row alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataset.format.writing import write_puzzles
from dataset.kinds.base import DihedralViews, Views
from dataset.sudoku.rules import EMPTY_TOKEN, are_valid_solutions
from dataset.sudoku.symmetries import SudokuSymmetries
from evaluation.views import draw_views, views_of
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError


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


def test_the_views_are_those_of_the_kind(sudoku_data: Path, arc_data: Path, tmp_path: Path) -> None:
    assert isinstance(views_of(PuzzleDataset([sudoku_data], "test")), SudokuSymmetries)
    for size in (4, 5):
        maze = np.full((1, size * size), 2, np.uint8)
        maze[0, :2] = 3, 4
        folder = tmp_path / f"maze-{size}"
        write_puzzles(folder / "test", maze, maze, vocab_size=6, kind="maze")
        (folder / "identifiers.json").write_text('["<blank>"]\n')
        assert isinstance(views_of(PuzzleDataset([folder], "test")), DihedralViews)
    with pytest.raises(DatasetError, match="12 tokens and 25 cells: no symmetry"):
        views_of(PuzzleDataset([arc_data], "test"))


@pytest.mark.parametrize("kind", [SudokuSymmetries, DihedralViews])
def test_draws_depend_on_seed_and_row_alone(kind: Callable[[int], Views]) -> None:
    views = kind(9)
    drawn = draw_views(views, 3, np.arange(20), 8)
    assert drawn.shape == (8, 20)
    assert (drawn[0] == 0).all()
    assert all(len(set(column)) == 8 for column in drawn.T.tolist())
    assert drawn.max() < views.number
    assert np.array_equal(draw_views(views, 3, np.arange(5, 9), 4), drawn[:4, 5:9])
    assert not np.array_equal(draw_views(views, 4, np.arange(20), 8), drawn)
