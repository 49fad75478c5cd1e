"""The format on disk: written sets are read back, and damaged ones are refused."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.format import reading
from dataset.format.files import write_json
from dataset.format.reading import fingerprint, load_metadata, load_split
from dataset.format.schema import SET_FIELDS, LabelField, PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_manifest, write_split
from runtime.errors import DatasetError

IDS = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "num_puzzle_identifiers": 3}
TOTALS = {"total_groups": 2, "total_puzzles": 3, "mean_puzzle_examples": 5 / 3}
FIELDS = {"moves": LabelField(5), "rgb": LabelField(256, channels=3, unknown_label=1)}
METADATA = PuzzleDatasetMetadata(
    **IDS, **TOTALS, vocab_size=7, seq_len=4, sets=("all",), fields=FIELDS, ratings=True
)
DECLARED = {"moves": {"num_classes": 5}, "rgb": {"num_classes": 256, "channels": 3}}
DECLARED["rgb"]["unknown_label"] = 1
OPTIONAL = {"total_puzzles", "format", "fields", "ratings", "kind"}
ARRAYS = (*SET_FIELDS, "moves", "rgb", "ratings")


def small_set() -> PuzzleSet:
    """Return two groups of one and two puzzles; the puzzles have two, one and two examples."""
    cells = np.arange(20, dtype=np.int64).reshape(5, 4)
    fields = {"moves": cells % 5, "rgb": cells[..., None] * 12 + np.arange(3)}
    offsets = np.array([1, 2, 0]), np.array([0, 2, 3, 5]), np.array([0, 1, 3])
    return PuzzleSet(
        cells % 7, (cells + 3) % 7, *offsets, fields=fields, ratings=np.array([10**12, 7])
    )


def arrays_of(arrays: PuzzleSet) -> dict[str, Any]:
    return {name: getattr(arrays, name) for name in (*SET_FIELDS, "ratings")} | {**arrays.fields}


@pytest.fixture
def split_dir(tmp_path: Path) -> Path:
    write_split(tmp_path / "train", METADATA, {"all": small_set()})
    write_json(tmp_path / "identifiers.json", ["<blank>", "a", "b"])
    write_json(tmp_path / "test_puzzles.json", {})
    return tmp_path / "train"


@pytest.fixture
def manifest(split_dir: Path) -> Path:
    """Write the manifest of the set at `split_dir`; return its path."""
    counts = {"train": 5}
    write_manifest(split_dir.parent, command=["build"], seed=1, sources={}, counts=counts)
    return split_dir.parent / "manifest.json"


def array_path(split_dir: Path, name: str) -> Path:
    return split_dir / f"all__{name}.npy"


@contextlib.contextmanager
def refused(beginning: object, within: str = "") -> Iterator[None]:
    with pytest.raises(DatasetError) as caught:
        yield
    said = str(caught.value)
    assert said.startswith(str(beginning))
    assert within in said
    assert "\n" not in said


def edit_metadata(split_dir: Path, **changes: object) -> Path:
    path = split_dir / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_split_is_read_back_in_the_published_dtypes(split_dir: Path):
    metadata, sets = load_split(split_dir)
    assert metadata == METADATA
    dtypes = {"inputs": np.uint8, "labels": np.uint8, "ratings": np.int64}
    for name, read in arrays_of(sets["all"]).items():
        assert read.dtype == dtypes.get(name, np.uint8 if name in FIELDS else np.int32)
        np.testing.assert_array_equal(read, arrays_of(small_set())[name])
        np.testing.assert_array_equal(np.load(array_path(split_dir, name)), read)
    assert not sets["all"].inputs.flags.writeable
    assert (sets["all"].num_examples, sets["all"].num_puzzles, sets["all"].num_groups) == (5, 3, 2)
    ratings = sets["all"].example_ratings()
    assert ratings is not None
    assert ratings.tolist() == [10**12] * 2 + [7] * 3


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "<u2", "|i1"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", [np.ascontiguousarray, np.asfortranarray])
def test_any_integer_dtype_version_and_order_is_read(
    split_dir: Path, dtype: str, version: tuple, order: Callable
):
    for name in SET_FIELDS:
        with open(array_path(split_dir, name), "wb") as file:
            array = order(arrays_of(small_set())[name].astype(dtype))
            np.lib.format.write_array(file, array, version, allow_pickle=False)
    loaded = load_split(split_dir)[1]["all"]
    for name in SET_FIELDS:
        np.testing.assert_array_equal(arrays_of(loaded)[name], arrays_of(small_set())[name])


def test_writing_refuses_what_does_not_fit(tmp_path: Path):
    wide = dataclasses.replace(small_set(), labels=np.full((5, 4), 300))
    with refused(tmp_path / "all__labels.npy", "values from 300 to 300 do not fit uint8"):
        write_split(tmp_path, METADATA, {"all": wide})


def test_an_empty_set_may_have_fields(tmp_path: Path):
    sizes = [(0, 4), (0, 4), 0, 1, 1]
    fields = {"moves": np.zeros((0, 4), np.uint8), "rgb": np.zeros((0, 4, 3), np.uint8)}
    empty = PuzzleSet(*(np.zeros(size, int) for size in sizes), fields=fields)
    facts: dict[str, Any] = {"total_groups": 0, "total_puzzles": 0, "mean_puzzle_examples": 0.0}
    metadata = dataclasses.replace(METADATA, **facts, ratings=False)
    write_split(tmp_path / "test", metadata, {"all": empty})
    loaded = load_split(tmp_path / "test")[1]["all"]
    assert loaded.fields["rgb"].shape == (0, 4, 3)
    assert loaded.example_ratings() is None


def test_metadata_survives_json_and_unknown_keys_are_ignored(split_dir: Path):
    path = edit_metadata(split_dir, later_addition=[1, 2])
    assert load_metadata(split_dir) == METADATA
    assert json.loads(METADATA.to_json())["fields"] == DECLARED
    plain = dataclasses.replace(METADATA, fields={}, ratings=False)
    for changes in ({"total_puzzles": None, "ignore_label_id": None}, {"total_puzzles": 0}):
        other = dataclasses.replace(plain, **changes)
        path.write_text(other.to_json())
        assert load_metadata(split_dir) == other
        # Keys with their default are left out, as in the published file, but a zero is not.
        kept = {"total_puzzles"} if other.total_puzzles == 0 else set()
        assert OPTIONAL & json.loads(path.read_text()).keys() == kept


def moves(**declared: Any) -> dict[str, Any]:
    return {"fields": {"moves": {"num_classes": 5} | declared}}


def named(name: str) -> dict[str, Any]:
    return {"fields": {name: {"num_classes": 5}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "11"}, "vocab_size is '11': input should be a valid integer"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": 2**20 + 1}, "vocab_size is 1048577: input should be less than"),
        ({"seq_len": 4.0}, "seq_len is 4.0: input should be a valid integer"),
        ({"seq_len": True}, "seq_len is True"),
        ({"pad_id": 7}, "pad_id is 7, expected 0 to 6"),
        ({"blank_identifier_id": 3}, "blank_identifier_id is 3"),
        ({"ignore_label_id": "none"}, "ignore_label_id is 'none'"),
        ({"num_puzzle_identifiers": 2**40}, "num_puzzle_identifiers is 1099511627776"),
        ({"total_puzzles": -1}, "total_puzzles is -1"),
        ({"mean_puzzle_examples": float("nan")}, "mean_puzzle_examples is nan"),
        ({"mean_puzzle_examples": False}, "mean_puzzle_examples is False"),
        ({"mean_puzzle_examples": 10**400}, "mean_puzzle_examples is 1000"),
        ({"sets": "all"}, "sets is 'all': input should be a valid list"),
        ({"sets": []}, "sets is []: list should have at least 1 item"),
        ({"sets": ["all", 1]}, "sets.1 is 1: input should be a valid string"),
        ({"sets": ["all", "all"]}, "expected every name once"),
        ({"sets": [".hidden"]}, "set name '.hidden'"),
        ({"sets": ["all\n"]}, "set name"),
        ({"total_groups": 3}, "total_groups is 3, but the sets have 2"),
        ({"total_puzzles": 4}, "total_puzzles is 4, but the sets have 3"),
        ({"mean_puzzle_examples": 1.0}, "mean_puzzle_examples is 1.0, but the sets have 1.666666"),
        ({"ratings": 1}, "ratings is 1"),
        ({"fields": ["moves"]}, "fields is ['moves']: input should be a valid dict"),
        ({"fields": {"moves": 5}}, "fields.moves is 5: input should be a dict"),
        ({"fields": {"moves": {"channels": 1}}}, "fields.moves.num_classes is missing"),
        (moves(chanels=3), "fields.moves.chanels: no such key"),
        (moves(num_classes=0), "fields.moves.num_classes is 0: input should be"),
        (moves(num_classes=257), "fields.moves.num_classes is 257"),
        (moves(num_classes=True), "fields.moves.num_classes is True"),
        (moves(channels=-1), "fields.moves.channels is -1"),
        (moves(channels=None), "fields.moves.channels is None"),
        (moves(unknown_label=7), "fields.moves.unknown_label is 7"),
        (moves(derived=1), "fields.moves.derived is 1: input should be"),
        (moves(derived=True), "fields.moves is derived, but only"),
        (named("ratings"), "field name 'ratings'"),
        (named("source_indices"), "field name 'source_indices'"),
        (named("a__b"), "field name 'a__b'"),
        (named("a\n"), "field name 'a\\n'"),
        (named("a" * 101), "field name 'aaa"),
    ],
)
def test_wrong_metadata_is_named(split_dir: Path, changes: dict, message: str):
    path = edit_metadata(split_dir, **changes)
    with refused(f"{path}: ", message):
        load_split(split_dir)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b"[1]", "list, expected a JSON object"),
        (b"{}", "pad_id is missing"),
        (None, "No such file"),
    ],
)
def test_unreadable_metadata_is_named(split_dir: Path, content: bytes | None, told: str):
    path = split_dir / "dataset.json"
    path.unlink() if content is None else path.write_bytes(content)
    with refused(f"{path}: {told}"):
        load_metadata(split_dir)
    with refused(f"{split_dir / 'nowhere'}: no such data set folder"):
        load_metadata(split_dir / "nowhere")


def test_a_folder_that_one_may_not_enter_is_named(
    split_dir: Path, close: Callable[[Path], None], monkeypatch: Any
):
    close(split_dir)
    monkeypatch.setattr(Path, "is_dir", lambda path: False)  # As from Python 3.14 on.
    with refused(f"{split_dir}: Permission denied"):
        load_metadata(split_dir)


Damage = Callable[[Path], object]


def rewrite(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def resave(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    return lambda path: np.save(path, change(np.load(path)))


def header(text: bytes) -> Damage:
    return rewrite(lambda _: b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


drop_last_row = resave(lambda array: array[:-1])


# Hostile headers are tested in chaos row 15.
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        rewrite(lambda content: content[:-1]),
        rewrite(lambda content: content[:20]),
        rewrite(lambda content: b""),
        rewrite(lambda content: content + b"\0"),
        resave(lambda array: array.astype(np.float32)),
        resave(lambda array: array.astype(bool)),
        resave(lambda array: np.zeros(5, [("cell", np.int32), ("more", np.int32)])),
        resave(lambda array: array[None]),
        resave(lambda array: array[..., None]),
        drop_last_row,
        header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (0, '\\d')}"),
        header(b"(" * 9000),
        make_directory,
    ],
)
@pytest.mark.parametrize("fields", [None, ()])
def test_damaged_array_is_named(split_dir: Path, name: str, damage: Damage, fields: Any):
    damage(array_path(split_dir, name))
    # If a row is missing, any file of the set may be the wrong one.
    place = "all__" if damage is drop_last_row else f"all__{name}.npy"
    with refused(split_dir / place):
        load_split(split_dir, fields=fields, check_values=False)


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("inputs", (3, 1), 7, "token 7 in row 3, expected 0 to 6"),
        ("inputs", (4, 3), -1, "token -1 in row 4, expected 0 to 6"),
        ("labels", (2, 0), 9, "label 9 in row 2, expected 0 to 6"),
        ("labels", (2, 0), -100, "label -100 in row 2"),
        ("moves", (2, 1), 5, "value 5 in row 2, expected 0 to 4"),
        ("rgb", (3, 1, 2), 200, "value 200 in row 3, expected 0 to 199"),
        ("puzzle_identifiers", 1, 3, "identifier 3 in row 1, expected 0 to 2"),
        ("puzzle_identifiers", 1, -1, "identifier -1 in row 1"),
        ("puzzle_indices", 0, 1, "offsets must start at 0, found 1"),
        ("puzzle_indices", 2, 1, "offsets must ascend, found 2 and then 1 at row 2"),
        ("puzzle_indices", 3, 6, "offsets must end at 5, found 6"),
        ("group_indices", 1, 0, "offsets must ascend, found 0 and then 0 at row 1"),
        ("group_indices", 2, 2, "offsets must end at 3, found 2"),
    ],
)
@pytest.mark.parametrize("piece", [2**22, 8])
def test_wrong_value_is_named_with_its_row(
    split_dir: Path, name: str, index: Any, value: int, message: str, piece: int, monkeypatch: Any
):
    monkeypatch.setattr(reading, "_VALUES_PER_CHECK", piece)
    narrower = {"num_classes": 200, "channels": 3}
    edit_metadata(split_dir, fields=DECLARED | ({"rgb": narrower} if name == "rgb" else {}))
    path, has_values = array_path(split_dir, name), name in ("inputs", "labels", *FIELDS)
    array = np.load(path).astype(np.uint8 if name in FIELDS else np.int64)
    array[index] = value
    np.save(path, array)
    with refused(f"{path}: {message}"):
        load_split(split_dir)
    if has_values:
        load_split(split_dir, check_values=False)
    if name in FIELDS:
        others = [other for other in FIELDS if other != name]
        assert list(load_split(split_dir, fields=others)[1]["all"].fields) == others


def test_labels_may_equal_an_ignore_id_outside_the_vocabulary(split_dir: Path):
    edit_metadata(split_dir, ignore_label_id=255)
    labels = np.full((5, 4), 255)
    labels[1, 1] = 3
    np.save(array_path(split_dir, "labels"), labels)
    np.testing.assert_array_equal(load_split(split_dir)[1]["all"].labels, labels)
    labels[4, 0] = 254
    np.save(array_path(split_dir, "labels"), labels)
    with pytest.raises(DatasetError, match="label 254 in row 4, expected 0 to 6 or 255"):
        load_split(split_dir)


def test_a_field_that_is_not_declared_is_no_field(split_dir: Path):
    for fields in (["pixels"], ["moves", "inputs"]):
        with pytest.raises(DatasetError, match=r"dataset\.json: no field '.*moves, rgb"):
            load_split(split_dir, fields=fields)


@pytest.mark.parametrize("content", ["{}", '{"files": []}', '{"files": {}}', "{"])
def test_damaged_manifest_is_named(split_dir: Path, manifest: Path, content: str):
    manifest.write_text(content)
    with refused(f"{manifest}: "):
        load_split(split_dir)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(seed=2),
        lambda manifest: manifest["counts"].update(train=6),
        lambda manifest: manifest.update(sha255=manifest.pop("sha256")),
        lambda manifest: manifest.update(counts=[[]]),
    ],
)
def test_manifest_vouches_for_itself(
    split_dir: Path, manifest: Path, change: Callable[[dict], None]
):
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content))  # Another layout is accepted.
    load_split(split_dir)
    older = {key: value for key, value in content.items() if key != "sha256"}
    manifest.write_text(json.dumps(older))  # An older manifest, without its own hash, is accepted.
    load_split(split_dir)
    change(content)
    manifest.write_text(json.dumps(content))
    with refused(f"{manifest}: was changed after the build"):
        load_split(split_dir)


def test_manifest_and_fingerprint_cover_every_file(split_dir: Path, manifest: Path, tmp_path: Path):
    first = fingerprint(split_dir)
    assert fingerprint(shutil.copytree(split_dir, tmp_path / "b" / "train")) == first
    paths = [path for path in split_dir.iterdir() if path.suffix == ".npy"]
    for path in [*paths, *(tmp_path / f"{name}.json" for name in ("identifiers", "test_puzzles"))]:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with refused(path):
            load_split(split_dir)
        assert (fingerprint(split_dir) != first) == (path in paths)
        if path.name in ("all__moves.npy", "all__rgb.npy"):
            load_split(split_dir, fields=[])
        path.unlink()
        with refused(path, "No such file"):
            load_split(split_dir)
        path.write_bytes(whole)
    load_split(split_dir)
    facts = split_dir / "dataset.json"
    facts.write_text(facts.read_text().replace("}", " }"))
    assert fingerprint(split_dir) != first
    with refused(facts, "its sha256 differs from the one in"):
        load_split(split_dir)


def test_more_identifiers_than_there_is_room_for_names_are_refused(split_dir: Path):
    names = split_dir.parent / "identifiers.json"
    path = edit_metadata(split_dir, num_puzzle_identifiers=100_000)
    names.write_text(json.dumps([""] * 100_000, separators=(",", ":")))
    load_split(split_dir)
    names.write_text(names.read_text()[1:])
    with refused(f"{path}: ", "is 100000, but"):
        load_split(split_dir)
