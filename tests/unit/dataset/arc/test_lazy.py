"""Rows of lazy ARC sets, compared with rows made by plain numpy code."""

from typing import Any

import numpy as np
import pytest

from dataset.arc.augmentation import augment_grid
from dataset.arc.lazy import draw_rows, read_rows, unshifted_rows
from dataset.arc.tasks import encode_canvas
from dataset.format.schema import LazyArcSet

RNG = np.random.default_rng(0)


SHAPES = [((3, 5), (4, 2)), ((30, 7), (1, 1)), ((30, 30), (30, 30)), ((1, 1), (2, 29))]
PAIRS: list[tuple[Any, Any]] = [
    tuple(RNG.integers(0, 10, shape).astype(np.uint8) for shape in pair) for pair in SHAPES
]
PAIRS.append((RNG.integers(0, 10, (6, 6)).astype(np.uint8), None))
SIZES = [2, 1, 2]  # Stored pairs of each group.
PUZZLES = [40, 1, 40]


@pytest.fixture(scope="module")
def lazy() -> LazyArcSet:
    rng = np.random.default_rng(1)
    num_puzzles = sum(PUZZLES)
    colours = rng.permuted(np.tile(np.arange(1, 10, dtype=np.uint8), (num_puzzles, 1)), axis=1)
    views = np.arange(num_puzzles, dtype=np.uint8)[:, None] % 8
    return LazyArcSet(
        inputs=np.stack([encode_canvas(pair[0]) for pair in PAIRS]),
        labels=np.stack([encode_canvas(pair[1]) for pair in PAIRS]),
        puzzle_identifiers=np.arange(3, 3 + num_puzzles, dtype=np.int32),
        puzzle_indices=np.cumsum([0, *np.repeat(SIZES, PUZZLES)], dtype=np.int32),
        group_indices=np.cumsum([0, *PUZZLES], dtype=np.int32),
        source_indices=np.cumsum([0, *SIZES], dtype=np.int32),
        augmentations=np.concatenate([views, colours], axis=1),
    )


def plain_row(lazy: LazyArcSet, row: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two canvases of an example, made by plain numpy code."""
    puzzle = max(p for p in range(lazy.num_puzzles) if lazy.puzzle_indices[p] <= row)
    group = max(g for g in range(lazy.num_groups) if lazy.group_indices[g] <= puzzle)
    pair = PAIRS[lazy.source_indices[group] + row - lazy.puzzle_indices[puzzle]]
    view, colours = int(lazy.augmentations[puzzle, 0]), lazy.augmentations[puzzle].copy()
    colours[0] = 0
    grids = [augment_grid(grid, view, colours) for grid in pair if grid is not None]
    top = ((shift >> 32) * (31 - max(len(grid) for grid in grids))) >> 32
    left = (shift % 2**32 * (31 - max(len(grid[0]) for grid in grids))) >> 32
    canvases = np.zeros((2, 61, 61), np.int32)
    for canvas, grid in zip(canvases, grids, strict=False):
        height, width = grid.shape
        canvas[top : top + height, left : left + width + 1] = 1
        canvas[top : top + height + 1, left : left + width] = 1
        canvas[top : top + height, left : left + width] = grid + 2
    return tuple(canvas[:30, :30].reshape(-1) for canvas in canvases)


@pytest.mark.parametrize("shifted", [False, True])
def test_rows_are_those_made_the_plain_way(lazy: LazyArcSet, shifted: bool) -> None:
    rows = np.random.default_rng(2).permutation(lazy.num_examples)
    words = np.random.Philox(3).random_raw(len(rows))
    inputs, labels = read_rows(lazy, rows, words if shifted else None)
    assert inputs.dtype == labels.dtype == np.int32
    assert inputs.shape == labels.shape == (lazy.num_examples, 900)
    for i, (row, word) in enumerate(zip(rows.tolist(), words.tolist(), strict=True)):
        expected_inputs, expected_labels = plain_row(lazy, row, word if shifted else 0)
        np.testing.assert_array_equal(inputs[i], expected_inputs)
        np.testing.assert_array_equal(labels[i], np.where(expected_labels, expected_labels, -100))


def test_slices_and_other_canvases(lazy: LazyArcSet) -> None:
    rows = np.arange(5, 25)
    inputs, labels = read_rows(lazy, rows)
    for found, expected in zip(read_rows(lazy, slice(5, 25)), (inputs, labels), strict=True):
        np.testing.assert_array_equal(found, expected)
    bytes_inputs, bytes_labels = np.zeros((2, 20, 900), np.uint8)
    draw_rows(lazy, rows, None, bytes_inputs, bytes_labels)
    np.testing.assert_array_equal(bytes_inputs, inputs)
    np.testing.assert_array_equal(bytes_labels, np.where(labels == -100, 0, labels))


def test_one_example_of_each_puzzle_stays(lazy: LazyArcSet) -> None:
    rows = unshifted_rows(lazy, seed=7)
    assert ((rows >= lazy.puzzle_indices[:-1]) & (rows < lazy.puzzle_indices[1:])).all()
    second = (rows - lazy.puzzle_indices[:-1])[np.repeat(SIZES, PUZZLES) == 2]
    assert 20 < second.sum() < 60
    assert (unshifted_rows(lazy, seed=8) != rows).any()


def test_what_stays_depends_on_the_identifier_alone(lazy: LazyArcSet) -> None:
    within = unshifted_rows(lazy, seed=7) - lazy.puzzle_indices[:-1]
    kept = np.arange(PUZZLES[0])[::2]
    some = LazyArcSet(
        inputs=lazy.inputs[:2],
        labels=lazy.labels[:2],
        puzzle_identifiers=lazy.puzzle_identifiers[kept],
        puzzle_indices=np.arange(0, 2 * len(kept) + 1, 2, dtype=np.int32),
        group_indices=np.array([0, len(kept)]),
        source_indices=np.array([0, 2]),
        augmentations=lazy.augmentations[kept],
    )
    np.testing.assert_array_equal(
        unshifted_rows(some, seed=7) - some.puzzle_indices[:-1], within[kept]
    )
