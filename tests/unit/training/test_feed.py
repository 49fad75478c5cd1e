"""Batches on the device: the same numbers."""

from pathlib import Path

import numpy as np
import torch

from puzzle_dataset import PuzzleDataset, TrainBatches
from runtime.ranks import Ranks
from training.trainer import Feed


def test_values_and_order_are_those_of_the_batches(lazy_arc: Path) -> None:
    dataset = PuzzleDataset([lazy_arc], "train")
    for rank, at in ((0, (0, 0)), (1, (4, 0)), (1, (4, 2))):
        batches = TrainBatches(
            dataset, seed=3, global_batch_size=8, epochs_per_iter=9, rank=rank, world_size=2
        )
        expected = list(batches.iterate(*at))
        assert len(expected) > 2
        with Ranks("cpu") as ranks:
            fed = list(Feed(batches, ranks).iterate(*at))
        for (position, examples), (wanted, batch) in zip(fed, expected, strict=True):
            arrays = batch.arrays()
            assert position == wanted
            assert examples.keys() == arrays.keys()
            for name, values in examples.items():
                assert values.dtype == torch.int32
                np.testing.assert_array_equal(values.numpy(), arrays[name])
