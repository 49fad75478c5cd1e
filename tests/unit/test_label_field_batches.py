"""Label fields in batches: from the same rows as the labels, and only if requested."""

from pathlib import Path

import numpy as np
import pytest

from dataset.format.schema import ARC_PALETTE, LabelField, PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_split
from puzzle_dataset import EvalBatches, PuzzleDataset, TrainBatches
from runtime.errors import DatasetError

FIELDS = {"moves": LabelField(5), "rgb": LabelField(256, channels=3, unknown_label=1)}
SIZES = np.array([2, 1, 3, 1, 1])  # Examples of each puzzle.


def write(folder: Path, fields: dict[str, LabelField] | None = None) -> Path:
    """Write rows with labels and fields computed from the inputs; label 0 is ignored."""
    declared = FIELDS if fields is None else fields
    num_examples = int(SIZES.sum())
    inputs = np.random.default_rng(0).integers(2, 9, (num_examples, 6))
    ids = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "num_puzzle_identifiers": 6}
    totals = {"total_groups": len(SIZES), "total_puzzles": len(SIZES), "sets": ("all",)}
    totals["mean_puzzle_examples"] = num_examples / len(SIZES)
    metadata = PuzzleDatasetMetadata(**ids, **totals, vocab_size=9, seq_len=6, fields=declared)
    values = {"moves": moves_of(inputs), "rgb": rgb_of(inputs)}
    fields = {name: values[name].astype(np.uint8) for name in declared}
    offsets = np.arange(1, 6), np.concatenate([[0], np.cumsum(SIZES)]), np.arange(6)
    arrays = PuzzleSet(inputs, labels_of(inputs), *offsets, fields=fields)
    write_split(folder / "train", metadata, {"all": arrays})
    return folder


def labels_of(inputs: np.ndarray) -> np.ndarray:
    return inputs % 4


def moves_of(inputs: np.ndarray) -> np.ndarray:
    return inputs * 3 % 5


def rgb_of(inputs: np.ndarray) -> np.ndarray:
    return inputs[..., None] * np.array([1, 10, 28])


def test_only_the_asked_fields_are_read(tmp_path: Path):
    folder = write(tmp_path)
    twice = ["rgb", "moves", "rgb"]
    for asked, found in (([], ()), (["rgb"], ("rgb",)), (twice, ("rgb", "moves"))):
        dataset = PuzzleDataset([folder], "train", fields=asked)
        assert dataset.fields == found
        assert dataset.metadata.fields == FIELDS
        assert tuple(dataset.sets["all"].fields) == found
        _, batch, _, _ = next(iter(EvalBatches(dataset, global_batch_size=3)))
        assert tuple(batch.fields) == found
        assert tuple(batch.arrays()) == ("inputs", "labels", "puzzle_identifiers", *found)


def test_folders_share_the_fields_that_all_declare_alike(tmp_path: Path):
    one = write(tmp_path / "one")
    two = write(tmp_path / "two", {"rgb": FIELDS["rgb"]})
    three = write(tmp_path / "three", {"moves": LabelField(6), "rgb": FIELDS["rgb"]})
    for others in ([two], [three], [two, three]):
        joined = PuzzleDataset([one, *others], "train", fields=["rgb"])
        assert joined.metadata.fields == {"rgb": FIELDS["rgb"]}
        batches = TrainBatches(joined, seed=0, global_batch_size=3, epochs_per_iter=2)
        for _, batch in batches.iterate(0):
            assert batch.fields["rgb"].shape == (3, 6, 3)


def test_folders_that_disagree_about_an_asked_field_are_refused(tmp_path: Path):
    one = write(tmp_path / "one")
    two = write(tmp_path / "two", {"rgb": FIELDS["rgb"]})
    three = write(tmp_path / "three", {"moves": LabelField(6)})
    missing = r"two/train/dataset\.json: no field 'moves'; declared fields: rgb"
    with pytest.raises(DatasetError, match=missing):
        PuzzleDataset([one, two], "train", fields=["moves"])
    with pytest.raises(DatasetError, match=r"three/train/dataset\.json: fields\.moves is .*6.*5"):
        PuzzleDataset([one, three], "train", fields=["moves"])
    plain = write(tmp_path / "plain", {})
    with pytest.raises(DatasetError, match="no field 'moves'; declared fields: none"):
        PuzzleDataset([plain], "train", fields=["moves"])


def colours_of(labels: np.ndarray) -> np.ndarray:
    """Return the colours of the labels, cell by cell, by the definition."""
    pixels = np.full((*labels.shape, 3), -100)
    for at, label in np.ndenumerate(labels):
        if label >= 2:
            colour = ARC_PALETTE[label - 2]
            pixels[at] = [int(colour[first : first + 2], 16) for first in (1, 3, 5)]
    return pixels


def test_pixels_are_the_colours_of_the_labels(lazy_arc: Path):
    dataset = PuzzleDataset([lazy_arc], "train", fields=["pixels"])
    batches = TrainBatches(dataset, seed=3, global_batch_size=8, epochs_per_iter=4)
    seen = [batch for _, batch in batches.iterate(0)]
    assert len(seen) > 3
    for batch in seen:
        pixels = batch.fields["pixels"]
        assert (pixels.dtype, pixels.shape) == (np.int32, (8, 900, 3))
        np.testing.assert_array_equal(pixels, colours_of(batch.labels))
        assert (batch.labels == 1).any()
