"""Further label fields on disk: declared, written, read back, and nothing damaged is read."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.format.reading import fingerprint, load_metadata, load_split
from dataset.format.schema import LabelField, PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_manifest, write_split
from runtime.errors import DatasetError

IDS = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "num_puzzle_identifiers": 1}
FACTS = {"vocab_size": 7, "seq_len": 4, "total_groups": 3, "total_puzzles": 3, "sets": ("all",)}
FIELDS = {"moves": LabelField(5), "rgb": LabelField(256, channels=3, unknown_label=1)}
METADATA = PuzzleDatasetMetadata(**IDS, **FACTS, mean_puzzle_examples=1.0, fields=FIELDS)
DECLARED = {"moves": {"num_classes": 5}, "rgb": {"num_classes": 256, "channels": 3}}
DECLARED["rgb"]["unknown_label"] = 1
LAZY_PIXELS = {"num_classes": 256, "channels": 3, "unknown_label": 1, "derived": True}


def small_set() -> PuzzleSet:
    cells = np.arange(12, dtype=np.uint8).reshape(3, 4)
    fields = {"moves": cells % 5, "rgb": (cells[..., None] * 20 + np.arange(3)).astype(np.uint8)}
    offsets = np.zeros(3, int), np.arange(4), np.arange(4)
    return PuzzleSet(cells % 7, (cells + 3) % 7, *offsets, fields=fields)


@pytest.fixture
def split_dir(tmp_path: Path) -> Path:
    write_split(tmp_path / "train", METADATA, {"all": small_set()})
    return tmp_path / "train"


def declare(split_dir: Path, fields: Any) -> Path:
    path = split_dir / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fields": fields}))
    return path


def test_declared_fields_survive_json(split_dir: Path):
    assert json.loads(METADATA.to_json())["fields"] == DECLARED
    assert load_metadata(split_dir) == METADATA
    plain = dataclasses.replace(METADATA, fields={})
    assert "fields" not in json.loads(plain.to_json())  # As in the published file.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["moves"], "fields is ['moves']: input should be a valid dict"),
        (None, "fields is None"),
        ({"moves": 5}, "fields.moves is 5: input should be a dict"),
        ({"moves": {"channels": 1}}, "fields.moves.num_classes is missing"),
        ({"moves": {"num_classes": 5, "chanels": 3}}, "fields.moves.chanels: no such key"),
        ({"moves": {"num_classes": 0}}, "fields.moves.num_classes is 0: input should be"),
        ({"moves": {"num_classes": 257}}, "fields.moves.num_classes is 257"),
        ({"moves": {"num_classes": True}}, "fields.moves.num_classes is True"),
        ({"moves": {"num_classes": 5, "channels": -1}}, "fields.moves.channels is -1"),
        ({"moves": {"num_classes": 5, "channels": None}}, "fields.moves.channels is None"),
        ({"moves": {"num_classes": 5, "unknown_label": 7}}, "fields.moves.unknown_label is 7"),
        ({"moves": {"num_classes": 5, "derived": 1}}, "fields.moves.derived is 1: input should be"),
        ({"moves": {"num_classes": 5, "derived": True}}, "fields.moves is derived, accepted only"),
        ({"inputs": {"num_classes": 5}}, "field name 'inputs'"),
        ({"source_indices": {"num_classes": 5}}, "field name 'source_indices'"),
        ({"../moves": {"num_classes": 5}}, "field name '../moves'"),
        ({"a__b": {"num_classes": 5}}, "field name 'a__b'"),
        ({"a\n": {"num_classes": 5}}, "field name 'a\\n'"),
        ({"": {"num_classes": 5}}, "field name ''"),
        ({"a" * 101: {"num_classes": 5}}, "field name 'aaa"),
    ],
)
def test_wrong_declarations_are_named(split_dir: Path, fields: Any, message: str):
    path = declare(split_dir, fields)
    with pytest.raises(DatasetError) as caught:
        load_split(split_dir)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_fields_are_written_and_read_back(split_dir: Path):
    metadata, sets = load_split(split_dir)
    assert metadata == METADATA
    assert list(sets["all"].fields) == ["moves", "rgb"]
    for name, values in small_set().fields.items():
        read = sets["all"].fields[name]
        assert read.dtype == np.uint8
        assert not read.flags.writeable
        np.testing.assert_array_equal(read, values)
        np.testing.assert_array_equal(np.load(split_dir / f"all__{name}.npy"), values)


def test_an_empty_set_may_have_fields(tmp_path: Path):
    sizes = [(0, 4), (0, 4), 0, 1, 1]
    fields = {"moves": np.zeros((0, 4), np.uint8), "rgb": np.zeros((0, 4, 3), np.uint8)}
    empty = PuzzleSet(*(np.zeros(size, int) for size in sizes), fields=fields)
    facts: dict[str, Any] = {"total_groups": 0, "total_puzzles": 0, "mean_puzzle_examples": 0.0}
    write_split(tmp_path / "test", dataclasses.replace(METADATA, **facts), {"all": empty})
    assert load_split(tmp_path / "test")[1]["all"].fields["rgb"].shape == (0, 4, 3)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def resave(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda path: np.save(path, change(np.load(path)))


@pytest.mark.parametrize("name", ["moves", "rgb"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "No such file"),
        (cut, "the file is damaged"),
        (resave(lambda values: values.astype(np.int32)), "dtype int32, expected uint8"),
        (resave(lambda values: values.astype(np.float32)), "dtype float32"),
        (resave(lambda values: values[:-1]), "shape [2, 4"),
        (resave(lambda values: values[:, 1:]), "shape [3, 3"),
        (resave(lambda values: values[..., None]), "1], expected [3, 4"),
    ],
)
@pytest.mark.parametrize("fields", [None, ()])
def test_damaged_files_are_named_whether_they_are_asked_for_or_not(
    split_dir: Path, name: str, damage: Callable, message: str, fields: tuple[str, ...] | None
):
    damage(split_dir / f"all__{name}.npy")
    with pytest.raises(DatasetError) as caught:
        load_split(split_dir, fields=fields, check_values=False)
    assert str(caught.value).startswith(f"{split_dir / f'all__{name}.npy'}: ")
    assert message in str(caught.value)


def test_values_out_of_range_are_named_where_they_are_asked_for(split_dir: Path):
    values = small_set().fields["moves"].copy()
    values[2, 1] = 5
    np.save(split_dir / "all__moves.npy", values)
    with pytest.raises(DatasetError, match=r"all__moves\.npy: value 5 in row 2, expected 0 to 4"):
        load_split(split_dir)
    assert list(load_split(split_dir, fields=["rgb"])[1]["all"].fields) == ["rgb"]
    assert load_split(split_dir, fields=[])[1]["all"].fields == {}
    assert load_split(split_dir, check_values=False)[1]["all"].fields["moves"][2, 1] == 5


def test_values_of_channels_are_checked_too(split_dir: Path):
    declare(split_dir, DECLARED | {"rgb": {"num_classes": 200, "channels": 3}})
    with pytest.raises(DatasetError, match=r"all__rgb\.npy: value 20\d in row 2, expected 0 to 19"):
        load_split(split_dir)


def test_a_field_that_is_not_declared_is_no_field(split_dir: Path):
    for fields in (["pixels"], ["moves", "inputs"]):
        with pytest.raises(DatasetError, match=r"dataset\.json: declares no field '.*moves, rgb"):
            load_split(split_dir, fields=fields)


def test_manifest_and_fingerprint_cover_fields(split_dir: Path):
    write_manifest(split_dir.parent, command=["build"], seed=1, sources={}, counts={})
    first = fingerprint(split_dir)
    for name in ("moves", "rgb"):
        path = split_dir / f"all__{name}.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert fingerprint(split_dir) != first
        with pytest.raises(DatasetError, match=rf"all__{name}\.npy: its sha256 is not the one"):
            load_split(split_dir)
        load_split(split_dir, fields=[])
        path.write_bytes(content)
    assert fingerprint(split_dir) == first
    assert load_split(split_dir)[1]["all"].fields.keys() == {"moves", "rgb"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"pixels": LAZY_PIXELS | {"derived": False}},
            "fields.pixels is LabelField(num_classes=256",
        ),
        ({"colours": LAZY_PIXELS}, "fields.colours is"),
        (
            {"pixels": LAZY_PIXELS | {"num_classes": 10}},
            "fields.pixels is LabelField(num_classes=10",
        ),
    ],
)
def test_lazy_sets_have_derived_pixels_alone(
    lazy_arc: Path, tmp_path: Path, fields: dict[str, Any], message: str
):
    folder = shutil.copytree(lazy_arc, tmp_path / "lazy")
    path = declare(folder / "train", fields)
    with pytest.raises(DatasetError) as caught:
        load_split(folder / "train")
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "but the format lazy_arc has only pixels" in str(caught.value)
