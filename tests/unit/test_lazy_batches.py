"""Batches of lazy ARC sets: shifted in training (alike on all ranks), never in evaluation."""

from pathlib import Path

import numpy as np
import pytest

from puzzle_dataset import Batch, EvalBatches, PuzzleDataset, TrainBatches


@pytest.fixture
def train_set(lazy_arc: Path) -> PuzzleDataset:
    return PuzzleDataset([lazy_arc], "train")


def batches_of(dataset: PuzzleDataset, **changes: int) -> TrainBatches:
    arguments = {"seed": 3, "global_batch_size": 12, "epochs_per_iter": 40} | changes
    return TrainBatches(dataset, **arguments)


def same(first: Batch, second: Batch) -> bool:
    names = ("inputs", "labels", "puzzle_identifiers")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def test_rows_are_the_published_ones_shifted(train_set: PuzzleDataset, materialized_arc: Path):
    """Lazy batches have the same rows and grids as published ones; only the shifts differ."""
    plain = PuzzleDataset([materialized_arc], "train")
    shifted = 0
    pairs = zip(batches_of(train_set).iterate(1), batches_of(plain).iterate(1), strict=True)
    for (position, batch), (other_position, other) in pairs:
        assert position == other_position
        np.testing.assert_array_equal(batch.puzzle_identifiers, other.puzzle_identifiers)
        for name in ("inputs", "labels"):
            for row, cells in zip(getattr(batch, name), getattr(other, name), strict=True):
                np.testing.assert_array_equal(row[row > 1], cells[cells > 1])
        shifted += int((batch.inputs[:, 0] < 2).sum())
        starts = (batch.inputs > 1).argmax(axis=1), (batch.labels > 1).argmax(axis=1)
        np.testing.assert_array_equal(*starts)
    assert shifted > 100


def test_one_example_of_each_puzzle_is_never_shifted(train_set: PuzzleDataset):
    batches, arrays = batches_of(train_set, epochs_per_iter=300), train_set.sets["all"]
    at_home = {row: set() for row in range(arrays.num_examples)}
    drawn = zip(batches.iterate(0), batches.iterate_rows(0), strict=True)
    for (_, batch), (_, rows) in drawn:
        for row, cells in zip(rows.rows.tolist(), batch.inputs, strict=True):
            at_home[row].add(bool(cells[0] > 1))
    always = np.array([False not in seen for seen in at_home.values()])
    by_puzzle = np.add.reduceat(always, arrays.puzzle_indices[:-1])
    # The last group, `b`, has an example of 30 rows with only one or two possible places.
    assert (by_puzzle[:-7] == 1).all()


def test_a_batch_depends_only_on_its_position(train_set: PuzzleDataset):
    batches = batches_of(train_set)
    in_turn = dict(batches.iterate(2))
    for position in (0, 5, len(in_turn) - 1):
        assert same(next(batches_of(train_set).iterate(2, position))[1], in_turn[position])


def test_shifts_depend_on_seed_iteration_and_position(train_set: PuzzleDataset):
    """A row that is drawn again gets another shift."""

    def places(iteration: int, **changes: int) -> set[tuple[int, int]]:
        batches = batches_of(train_set, **changes)
        drawn = zip(batches.iterate(iteration), batches.iterate_rows(iteration), strict=True)
        pairs = [pair for (_, b), (_, r) in drawn for pair in zip(r.rows, b.inputs, strict=True)]
        return {(int(row), int((cells > 1).argmax())) for row, cells in pairs}

    seen = set().union(*(places(iteration, epochs_per_iter=4) for iteration in range(20)))
    assert np.bincount([row for row, _ in seen]).max() > 3
    assert places(0) != places(0, seed=4)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_cut_the_same_global_batch(train_set: PuzzleDataset, world_size: int):
    options = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
    ranks = [dict(batches_of(train_set, **of_rank).iterate(0)) for of_rank in options]
    for position, batch in batches_of(train_set).iterate(0):
        parts = [slices[position] for slices in ranks]
        np.testing.assert_array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)
        np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), batch.labels)


def test_evaluation_is_in_order_and_never_shifted(lazy_arc: Path, materialized_arc: Path):
    lazy, plain = (
        list(EvalBatches(PuzzleDataset([folder], "test"), global_batch_size=8))
        for folder in (lazy_arc, materialized_arc)
    )
    assert [(count, start) for _, _, count, start in lazy] == [(8, 0), (8, 8), (5, 16)]
    for (_, batch, *_), (_, other, *_) in zip(lazy, plain, strict=True):
        assert same(batch, other)


def test_lazy_and_published_folders_join(lazy_arc: Path, materialized_arc: Path):
    joined = PuzzleDataset([materialized_arc, lazy_arc], "train")
    assert joined.metadata.num_puzzle_identifiers == 72
    assert joined.metadata.format is None
    alone = PuzzleDataset([lazy_arc], "train")
    rows = np.arange(98)
    identifiers = np.zeros(98, np.int32)
    assert same(joined.read("all1", rows, identifiers), alone.read("all", rows, identifiers))
    assert joined.sets["all1"].puzzle_identifiers.min() == 37
    names = {len(batch.inputs) for _, batch in batches_of(joined).iterate(0)}
    assert names == {12}
