"""Batches on the device: the same numbers, kept there or read from files."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataset.format.schema import LabelField, PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_split
from puzzle_dataset import PuzzleDataset, TrainBatches
from runtime.ranks import Ranks
from training import kept_sets, trainer
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.trainer import Feed, build_feed

FIELDS = {"moves": LabelField(5), "rgb": LabelField(256, channels=3, unknown_label=1)}


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks("cpu") as alone:
        yield alone


def write(folder: Path, ignored: int | None = 0) -> Path:
    """Five groups of puzzles with one to three examples, some labels ignored, and two fields."""
    rng, sizes = np.random.default_rng(0), np.array([2, 1, 3, 1, 1])
    rows = int(sizes.sum())
    metadata = PuzzleDatasetMetadata(
        pad_id=0,
        ignore_label_id=ignored,
        blank_identifier_id=0,
        num_puzzle_identifiers=6,
        total_groups=5,
        total_puzzles=5,
        sets=("all",),
        mean_puzzle_examples=rows / 5,
        vocab_size=256,
        seq_len=6,
        fields=FIELDS,
    )
    inputs, labels = rng.integers(0, 256, (2, rows, 6))
    labels[rng.random(labels.shape) < 0.5] %= 2
    fields = {"moves": rng.integers(0, 5, (rows, 6)), "rgb": rng.integers(0, 256, (rows, 6, 3))}
    arrays = PuzzleSet(
        inputs.astype(np.uint8),
        labels.astype(np.uint8),
        *(np.arange(1, 6), np.concatenate([[0], np.cumsum(sizes)]), np.arange(6)),
        fields={name: values.astype(np.uint8) for name, values in fields.items()},
    )
    write_split(folder / "train", metadata, {"all": arrays})
    return folder


def batches_of(dataset: PuzzleDataset, **rank: int) -> TrainBatches:
    return TrainBatches(dataset, seed=3, global_batch_size=8, epochs_per_iter=9, **rank)


def require_same(fed: Feed, batches: TrainBatches, iteration: int, start: int = 0) -> None:
    expected = list(batches.iterate(iteration, start))
    assert len(expected) > 2
    for (at, examples), (position, batch) in zip(
        fed.iterate(iteration, start), expected, strict=True
    ):
        arrays = batch.arrays()
        assert at == position
        assert examples.keys() == arrays.keys()
        for name, values in examples.items():
            assert values.dtype == torch.int32
            np.testing.assert_array_equal(values.numpy(), arrays[name])


@pytest.mark.parametrize("keep", [False, True], ids=["read", "kept"])
@pytest.mark.parametrize("ignored", [None, 0, 255, -7])
def test_values_and_order_are_those_of_the_batches(
    ranks: Ranks, tmp_path: Path, ignored: int | None, keep: bool
) -> None:
    dataset = PuzzleDataset([write(tmp_path, ignored)], "train", fields=["rgb", "moves"])
    for rank in (0, 1):
        batches = batches_of(dataset, rank=rank, world_size=2)
        fed = Feed(batches, ranks, keep=keep)
        for iteration, start in ((0, 0), (4, 0), (4, 2)):
            require_same(fed, batches, iteration, start)


def test_sets_of_wider_integers_are_read_from_files(ranks: Ranks, tmp_path: Path) -> None:
    path = write(tmp_path) / "train" / "all__labels.npy"
    np.save(path, np.load(path).astype(np.int64))
    dataset = PuzzleDataset([tmp_path], "train")
    assert kept_sets.keep_small_sets(dataset, ranks.device) == {}


def test_sets_that_are_lazy_or_too_large_are_read_from_files(
    ranks: Ranks, tmp_path: Path, lazy_arc: Path, materialized_arc: Path, monkeypatch: Any
) -> None:
    dataset = PuzzleDataset([lazy_arc, materialized_arc], "train")
    assert kept_sets.keep_small_sets(dataset, ranks.device).keys() == {"all1"}
    batches = batches_of(dataset)
    require_same(Feed(batches, ranks, keep=True), batches, 0)
    size = sum(array.nbytes for array in (dataset.sets["all1"].inputs, dataset.sets["all1"].labels))
    monkeypatch.setattr(kept_sets, "_ROOM_BYTES", size)
    assert kept_sets.keep_small_sets(dataset, ranks.device).keys() == {"all1"}
    monkeypatch.setattr(kept_sets, "_ROOM_BYTES", size - 1)
    assert kept_sets.keep_small_sets(dataset, ranks.device) == {}


def test_rows_are_taken_on_the_device(ranks: Ranks, tmp_path: Path, monkeypatch: Any) -> None:
    batches = batches_of(PuzzleDataset([write(tmp_path)], "train"))
    fed = Feed(batches, ranks, keep=True)
    monkeypatch.setattr(PuzzleDataset, "read", lambda *arguments: pytest.fail("it read the files"))
    with closing(fed.iterate(0)) as taken:
        _, examples = next(taken)
    assert examples["inputs"].shape == (8, 6)


def test_nothing_is_kept_unless_asked(ranks: Ranks, tmp_path: Path, monkeypatch: Any) -> None:
    chosen: list[dict[str, Any]] = []
    monkeypatch.setattr(trainer, "Feed", lambda *_, **options: chosen.append(options))
    dataset = PuzzleDataset([write(tmp_path)], "train")
    for settings in ([], ["data_on_device=true"]):
        config = load_config(TrainConfig, "cfg_pretrain", ["global_batch_size=8", *settings])
        build_feed(config, dataset, ranks)
    assert chosen == [{"keep": False}, {"keep": True}]
