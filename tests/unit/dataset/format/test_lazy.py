"""The lazy ARC format: reading it back, its fingerprint, and refusing damaged files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.format.reading import fingerprint, load_metadata, load_split
from dataset.format.schema import LAZY_ARC_FIELDS, LazyArcSet
from dataset.format.writing import write_split
from runtime.errors import DatasetError


@pytest.fixture
def built(lazy_arc: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(lazy_arc, tmp_path / "built")
    (folder / "manifest.json").unlink()
    return folder


def opened(folder: Path, split: str = "train") -> LazyArcSet:
    arrays = load_split(folder / split)[1]["all"]
    assert isinstance(arrays, LazyArcSet)
    return arrays


def damage(folder: Path, name: str, change: Callable[[np.ndarray], Any]) -> Path:
    """Replace an array by the result of `change`, or by the array itself if that is None."""
    path = folder / name
    array = np.load(path)
    changed = change(array)
    np.save(path, array if changed is None else changed)
    return path


def put(index: Any, value: int) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[index] = value

    return change


def test_set_is_written_and_read_back(built: Path, tmp_path: Path):
    metadata, arrays = load_metadata(built / "train"), opened(built)
    assert metadata.format == "lazy_arc"
    write_split(tmp_path / "copy/train", metadata, {"all": arrays})
    shutil.copy(built / "augmentations.npy", tmp_path / "copy")
    assert fingerprint(tmp_path / "copy/train") == fingerprint(built / "train")
    again = opened(tmp_path / "copy")
    for field in (*LAZY_ARC_FIELDS, "augmentations"):
        found = getattr(again, field)
        is_small = field in ("inputs", "labels", "augmentations")
        assert found.dtype == (np.uint8 if is_small else np.int32)
        np.testing.assert_array_equal(found, getattr(arrays, field))


def test_fingerprint_and_manifest_cover_every_file(lazy_arc: Path, tmp_path: Path):
    folder = shutil.copytree(lazy_arc, tmp_path / "built")
    first = fingerprint(folder / "train")
    for path in [*(folder / "train").glob("*.npy"), folder / "augmentations.npy"]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert fingerprint(folder / "train") != first, path
        with pytest.raises(DatasetError):
            load_split(folder / "train")
        path.write_bytes(content)
    assert fingerprint(folder / "train") == first


TRAIN = "train/all__"
PIXELS = {"num_classes": 256, "channels": 3, "unknown_label": 1, "derived": True}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("augmentations.npy", put((3, 0), 8), "in row 3, expected a view, 0 to 7"),
        ("augmentations.npy", put((3, slice(1, 3)), 4), ", 4, 4, "),
        ("augmentations.npy", put((5, 1), 0), "in row 5, expected a view, 0 to 7, and the"),
        ("augmentations.npy", put((5, 1), 255), "in row 5, expected a view, 0 to 7, and the"),
        ("augmentations.npy", lambda a: a[:-1], "[35, 10], expected uint8 [36, 10]"),
        ("augmentations.npy", lambda a: a[:, 1:], "[36, 9], expected uint8 [36, 10]"),
        ("augmentations.npy", lambda a: a.astype(int), "int64 [36, 10], expected uint8"),
        (f"{TRAIN}source_indices.npy", put(0, 1), "offsets must start at 0"),
        (f"{TRAIN}source_indices.npy", put(-1, 99), "offsets must end at 14, found 99"),
        (f"{TRAIN}source_indices.npy", lambda a: a[[0, 1, 2, 3, 5]], "shape [5], expected [6]"),
        (f"{TRAIN}source_indices.npy", lambda a: a[:0], "shape [0], expected [6]"),
        (f"{TRAIN}puzzle_indices.npy", put(1, 2), "puzzle 0 has 2 examples, but its group has 3"),
        (f"{TRAIN}puzzle_indices.npy", put(-1, 99), "puzzle 34 has 3 examples"),
        (f"{TRAIN}puzzle_identifiers.npy", put(2, 36), "identifier 36 in row 2"),
        (f"{TRAIN}inputs.npy", lambda a: a.astype(int), "dtype int64, expected uint8"),
        (f"{TRAIN}inputs.npy", put((2, 0), 12), "row 2 is wrong; expected one grid"),
        (f"{TRAIN}inputs.npy", put(2, 0), "row 2 is wrong; expected one grid"),
        (f"{TRAIN}inputs.npy", put((2, 899), 2), "row 2 is wrong; expected one grid"),
        (f"{TRAIN}labels.npy", put((2, 899), 1), "row 2 is wrong; expected one grid"),
        (f"{TRAIN}labels.npy", put((12, 30), 1), "row 12 is wrong; expected one grid"),
        (f"{TRAIN}labels.npy", lambda a: a[1:], "shape [13, 900], expected [14, 900]"),
    ],
)
def test_damaged_file_is_named(
    built: Path, name: str, change: Callable[[np.ndarray], Any], message: str
):
    path = damage(built, name, change)
    with pytest.raises(DatasetError) as caught:
        load_split(built / "train")
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_labels_may_be_unknown(built: Path):
    damage(built, f"{TRAIN}labels.npy", put(2, 0))
    assert (opened(built).labels[2] == 0).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fields", {"pixels": PIXELS | {"derived": False}}, "fields.pixels is LabelField"),
        ("fields", {"pixels": PIXELS | {"num_classes": 10}}, "fields.pixels is LabelField"),
        ("fields", {"colours": PIXELS}, "fields.colours is LabelField"),
        ("format", "lazy", "format is 'lazy': input should be 'lazy_arc'"),
        ("format", 1, "format is 1"),
        ("vocab_size", 13, "vocab_size is 13, expected 12 in the format lazy_arc"),
        ("seq_len", 81, "seq_len is 81, expected 900"),
        ("pad_id", 1, "pad_id is 1, expected 0"),
        ("ignore_label_id", None, "ignore_label_id is None, expected 0"),
        ("total_puzzles", 34, "total_puzzles is 34"),
        ("mean_puzzle_examples", 3.0, "mean_puzzle_examples is 3.0"),
    ],
)
def test_wrong_metadata_is_named(built: Path, key: str, value: Any, message: str):
    path = built / "train/dataset.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: value}))
    with pytest.raises(DatasetError, match=f"{path}: {message}"):
        load_split(built / "train")
