"""Training batches against a slow, obvious twin, and against uniform chance."""

from collections.abc import Iterator
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import puzzle_dataset
from dataset.format.schema import PuzzleSet
from puzzle_dataset import PuzzleDataset, TrainBatches
from runtime.streams import Stream

Groups = list[list[int]]  # The number of examples of each puzzle of each group.

groups_strategy = st.one_of(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=6),
    st.lists(st.lists(st.just(1), min_size=1, max_size=4), max_size=9),
    st.lists(st.lists(st.just(3), min_size=1, max_size=3), max_size=5),
)


def in_memory(*sets: Groups) -> PuzzleDataset:
    """Build a data set for drawing; identifiers are puzzle numbers plus 100."""
    dataset = PuzzleDataset.__new__(PuzzleDataset)
    dataset.sets = {}
    for number, groups in enumerate(sets):
        sizes = [size for group in groups for size in group]
        cells = np.zeros((sum(sizes), 1), np.uint8)
        dataset.sets[f"set{number}"] = PuzzleSet(
            inputs=cells,
            labels=cells,
            puzzle_identifiers=np.arange(100, 100 + len(sizes), dtype=np.int32),
            puzzle_indices=np.concatenate([[0], np.cumsum(sizes, dtype=int)]).astype(np.int32),
            group_indices=np.cumsum([0, *map(len, groups)]).astype(np.int32),
        )
    return dataset


# The twin goes group by group and word by word, with Python's integers.


def words_of(seed: int, iteration: int, set_number: int, stream: int) -> Iterator[int]:
    philox = np.random.Philox(
        key=np.array([seed, Stream.BATCHES], np.uint64),
        counter=np.array([0, iteration, set_number, stream], np.uint64),
    )
    while True:
        yield int(philox.random_raw())


def take(words: Iterator[int], count: int) -> list[int]:
    """Return the next words; the rest of their last block of four is thrown away."""
    return [next(words) for _ in range(-(-count // 4) * 4)][:count]


def twin_batches(
    groups: Groups, seed: int, iteration: int, set_number: int, batch_size: int, epochs: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield the batches of a set as lists of (row, puzzle)."""
    first_puzzle = [sum(len(group) for group in groups[:g]) for g in range(len(groups))]
    sizes = [size for group in groups for size in group]
    first_row = [sum(sizes[:p]) for p in range(len(sizes))]
    group_words = words_of(seed, iteration, set_number, 0)
    example_words = words_of(seed, iteration, set_number, 1)
    low_bits = len(groups).bit_length()

    batch: list[tuple[int, int]] = []
    for _ in range(epochs):
        order_words = take(group_words, 2 * len(groups))
        puzzle_words = order_words[len(groups) :]
        slots = iter(take(example_words, sum(max(group) for group in groups)))
        slot_words = [[next(slots) for _ in range(max(group))] for group in groups]
        for g in sorted(range(len(groups)), key=lambda g: (order_words[g] >> low_bits, g)):
            p = first_puzzle[g] + (puzzle_words[g] >> 32) * len(groups[g]) // 2**32
            examples = sorted(range(sizes[p]), key=lambda e: slot_words[g][e])
            room = batch_size - len(batch)
            batch += [(first_row[p] + e, p) for e in examples[:room]]
            if len(batch) == batch_size:
                yield batch
                batch = []


@settings(max_examples=150, deadline=None)
@given(
    sets=st.lists(groups_strategy, min_size=1, max_size=2),
    batch_size=st.integers(1, 20),
    epochs=st.integers(1, 7),
    seed=st.integers(0, 2**64 - 1),
    iteration=st.integers(0, 2**64 - 1),
    draws_per_chunk=st.sampled_from([1, 8, 20, 2**15]),
    start=st.integers(0, 12),
)
def test_batches_equal_those_of_the_twin(
    sets: list[Groups],
    batch_size: int,
    epochs: int,
    seed: int,
    iteration: int,
    draws_per_chunk: int,
    start: int,
):
    expected = [
        (f"set{number}", batch)
        for number, groups in enumerate(sets)
        if groups
        for batch in twin_batches(groups, seed, iteration, number, batch_size, epochs)
    ]
    with mock.patch.object(puzzle_dataset, "_DRAWS_PER_CHUNK", draws_per_chunk):
        batches = TrainBatches(
            in_memory(*sets), seed=seed, global_batch_size=batch_size, epochs_per_iter=epochs
        )
        assert batches.steps_per_iteration(iteration) == len(expected)
        found = list(batches.iterate_rows(iteration, start))
    assert [position for position, _ in found] == list(range(start, len(expected)))
    for (_, rows), (name, batch) in zip(found, expected[start:], strict=True):
        assert rows.set_name == name
        assert rows.rows.tolist() == [row for row, _ in batch]
        assert rows.puzzle_identifiers.tolist() == [100 + puzzle for _, puzzle in batch]


def assert_uniform(counts: np.ndarray) -> None:
    """Demand chi-squared within five standard deviations of its mean; the draws are seeded."""
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_draws_are_uniform():
    """Uniform: places in the epoch, puzzles of a group, subsets that fill up a batch."""
    epochs = 6000
    batches = TrainBatches(
        in_memory([[1, 1, 1]] * 5), seed=11, global_batch_size=5, epochs_per_iter=epochs
    )
    rows = np.stack([batch.rows for _, batch in batches.iterate_rows(0)])
    assert rows.shape == (epochs, 5)
    orders = (rows // 3) @ 5 ** np.arange(5)
    assert_uniform(np.unique(orders, return_counts=True)[1])
    assert len(np.unique(orders)) == 120
    assert_uniform(np.bincount(rows.ravel()))
    # The puzzle depends neither on the place nor on the puzzle of the previous epoch.
    assert_uniform(np.bincount((np.arange(5) * 3 + rows % 3).ravel()))
    of_group = np.take_along_axis(rows % 3, np.argsort(rows // 3, axis=1), axis=1)
    assert_uniform(np.bincount((of_group[1:] * 3 + of_group[:-1]).ravel()))

    batches = TrainBatches(
        in_memory([[6], [6]]), seed=11, global_batch_size=2, epochs_per_iter=epochs // 2
    )
    pairs = np.stack([np.sort(batch.rows % 6) for _, batch in batches.iterate_rows(0)])
    subsets, counts = np.unique(pairs @ np.array([6, 1]), return_counts=True)
    assert len(subsets) == 15
    assert_uniform(counts)
