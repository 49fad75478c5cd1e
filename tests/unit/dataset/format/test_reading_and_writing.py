"""The on-disk contract: what is written is read back, and nothing damaged is read in silence."""

import contextlib
import dataclasses
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dataset.format import checks
from dataset.format.files import write_json
from dataset.format.reading import fingerprint, load_metadata, load_split
from dataset.format.schema import SET_FIELDS, PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import atomic_build, write_manifest, write_split
from runtime import files
from runtime.errors import DatasetError

Patch = pytest.MonkeyPatch

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "tests/parity/published_format/data"

IDS = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "num_puzzle_identifiers": 3}
TOTALS = {"total_groups": 2, "total_puzzles": 3, "mean_puzzle_examples": 5 / 3}
METADATA = PuzzleDatasetMetadata(**IDS, **TOTALS, vocab_size=7, seq_len=4, sets=("all",))


def small_set() -> PuzzleSet:
    """Two groups of one and two puzzles, which hold two, one and two examples."""
    cells = np.arange(20, dtype=np.int64).reshape(5, 4)
    offsets = np.array([1, 2, 0]), np.array([0, 2, 3, 5]), np.array([0, 1, 3])
    return PuzzleSet(cells % 7, (cells + 3) % 7, *offsets)


def build(directory: Path, *, manifest: bool = False) -> Path:
    write_split(directory / "train", METADATA, {"all": small_set()})
    if manifest:
        write_manifest(directory, command=["build"], seed=1, sources={}, counts={"train": 5})
    return directory / "train"


@pytest.fixture
def split_dir(tmp_path: Path) -> Path:
    return build(tmp_path)


def array_path(split_dir: Path, field: str) -> Path:
    return split_dir / f"all__{field}.npy"


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


def test_split_is_read_back_in_the_published_dtypes(tmp_path: Path):
    metadata, sets = load_split(build(tmp_path))
    assert metadata == METADATA
    for field in SET_FIELDS:
        read = getattr(sets["all"], field)
        assert read.dtype == (np.uint8 if field in ("inputs", "labels") else np.int32)
        np.testing.assert_array_equal(read, getattr(small_set(), field))
        np.testing.assert_array_equal(np.load(array_path(tmp_path / "train", field)), read)
    assert not sets["all"].inputs.flags.writeable
    assert (sets["all"].num_examples, sets["all"].num_puzzles, sets["all"].num_groups) == (5, 3, 2)


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "<u2", "|i1"])
def test_any_integer_dtype_is_accepted(split_dir: Path, dtype: str):
    for field in SET_FIELDS:
        np.save(array_path(split_dir, field), getattr(small_set(), field).astype(dtype))
    loaded = load_split(split_dir)[1]["all"]
    for field in SET_FIELDS:
        np.testing.assert_array_equal(getattr(loaded, field), getattr(small_set(), field))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", [np.ascontiguousarray, np.asfortranarray])
def test_npy_versions_and_orders_are_read(split_dir: Path, version: tuple, order):
    array = order(small_set().inputs)
    with open(array_path(split_dir, "inputs"), "wb") as file:
        np.lib.format.write_array(file, array, version, allow_pickle=False)
    np.testing.assert_array_equal(load_split(split_dir)[1]["all"].inputs, array)


def test_writing_refuses_what_does_not_fit(tmp_path: Path):
    wide = dataclasses.replace(small_set(), labels=np.full((5, 4), 300))
    with refused(tmp_path / "all__labels.npy", "values from 300 to 300 do not fit uint8"):
        write_split(tmp_path, METADATA, {"all": wide})


def test_metadata_survives_json_and_unknown_keys_are_ignored(tmp_path: Path):
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(json.loads(METADATA.to_json()) | {"later_addition": [1, 2]}))
    assert load_metadata(tmp_path) == METADATA
    optional = {"total_puzzles", "format", "fields", "ratings"}
    for changes in ({"total_puzzles": None, "ignore_label_id": None}, {"total_puzzles": 0}):
        other = dataclasses.replace(METADATA, **changes)
        path.write_text(other.to_json())
        assert load_metadata(tmp_path) == other
        # What has its default is left out, but not a zero.
        kept = {"total_puzzles"} if other.total_puzzles == 0 else set()
        assert optional & json.loads(path.read_text()).keys() == kept


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "11"}, "vocab_size is '11': input should be a valid integer"),
        ({"vocab_size": 0}, "vocab_size is 0"),
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
        ({"vocab_size": 2**20 + 1}, "vocab_size is 1048577: input should be less than"),
        ({"sets": "all"}, "sets is 'all': input should be a valid list"),
        ({"sets": ["all", 1]}, "sets.1 is 1: input should be a valid string"),
        ({"sets": ["all", "all"]}, "expected every name once"),
        ({"sets": [""]}, "set name ''"),
        ({"sets": ["../all"]}, "set name '../all'"),
        ({"sets": ["a\\b"]}, "set name"),
        ({"sets": [".hidden"]}, "set name"),
        ({"sets": ["a\0b"]}, "set name"),
        ({"sets": ["all\n"]}, "set name"),
        ({"total_groups": 3}, "total_groups is 3, the sets hold 2"),
        ({"total_puzzles": 4}, "total_puzzles is 4, the sets hold 3"),
        ({"mean_puzzle_examples": 1.0}, "mean_puzzle_examples is 1.0, the sets hold 1.666666"),
        ({"ratings": 1}, "ratings is 1"),
        ({"ratings": True, "fields": {"ratings": {"num_classes": 2}}}, "field name 'ratings'"),
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
        (b"[" * 100_000, "not JSON: nested too deep"),
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


Damage = Callable[[Path], object]


def rewrite(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def resave(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    return lambda path: np.save(path, change(np.load(path)))


def header(text: bytes, version: int = 1, length: int | None = None) -> Damage:
    size = (len(text) if length is None else length).to_bytes(2 * version, "little")
    return rewrite(lambda _: b"\x93NUMPY" + bytes([version, 0]) + size + text)


def claim(shape: str) -> Damage:
    """Damage a header so that its shape reads like this."""
    return header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".encode())


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


drop_last_row = resave(lambda array: array[:-1])


@pytest.mark.parametrize("field", SET_FIELDS)
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
        drop_last_row,
        rewrite(lambda content: content.replace(b"'shape': (", b"'shape': (-")),
        claim(f"({10**15}, 4)"),
        claim(f"(0, {2**62}, {2**62})"),
        claim(f"({hex(16**4000)}, {hex(16**4000)})"),
        claim(str((0,) * 65)),
        claim("(0, '\\d')"),
        header(b"{", version=2, length=2**31 - 1),
        header(b"(" * 9000),
        make_directory,
    ],
)
def test_damaged_array_is_named(split_dir: Path, field: str, damage):
    damage(array_path(split_dir, field))
    # Which of two files is short of a row cannot be told: one of the set's is named then.
    named = "all__" if damage is drop_last_row else f"all__{field}.npy"
    with refused(split_dir / named):
        load_split(split_dir)


class WritesCanary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["object array", "bare pickle"])
def test_pickles_are_refused_and_not_run(tmp_path: Path, form: str):
    split_dir, canary = build(tmp_path / "set"), tmp_path / "canary"
    path = array_path(split_dir, "labels")
    if form == "object array":
        np.save(path, np.array([[WritesCanary(canary)] * 4] * 5, object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(WritesCanary(canary)))
    with pytest.raises(DatasetError, match=r"all__labels\.npy: "):
        load_split(split_dir)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("inputs", (3, 1), 7, "token 7 in row 3, expected 0 to 6"),
        ("inputs", (4, 3), -1, "token -1 in row 4, expected 0 to 6"),
        ("labels", (2, 0), 9, "label 9 in row 2, expected 0 to 6"),
        ("labels", (2, 0), -100, "label -100 in row 2"),
        ("puzzle_identifiers", 1, 3, "identifier 3 in row 1, expected 0 to 2"),
        ("puzzle_identifiers", 1, -1, "identifier -1 in row 1"),
        ("puzzle_indices", 0, 1, "offsets must start at 0, found 1"),
        ("puzzle_indices", 2, 1, "offsets must ascend, found 2 and then 1 at row 2"),
        ("puzzle_indices", 3, 6, "offsets must end at 5, found 6"),
        ("group_indices", 1, 0, "offsets must ascend, found 0 and then 0 at row 1"),
        ("group_indices", 2, 2, "offsets must end at 3, found 2"),
    ],
)
def test_wrong_value_is_named_with_its_row(
    split_dir: Path, field: str, index, value: int, message: str
):
    path = array_path(split_dir, field)
    array = np.load(path).astype(np.int64)
    array[index] = value
    np.save(path, array)
    with refused(f"{path}: {message}"):
        load_split(split_dir)


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
    assert load_split(split_dir, check_values=False)[1]["all"].labels[4, 0] == 254


def test_values_behind_the_first_piece_are_checked(tmp_path: Path, monkeypatch: Patch):
    path = array_path(build(tmp_path), "inputs")
    monkeypatch.setattr(checks, "_VALUES_PER_CHECK", 8)
    inputs = np.load(path)
    inputs[4, 2] = 200
    np.save(path, inputs)
    with refused(f"{path}: token 200 in row 4"):
        load_split(tmp_path / "train")


@pytest.mark.parametrize("content", ["{}", '{"files": []}', '{"files": {}}', "{"])
def test_damaged_manifest_is_named(tmp_path: Path, content: str):
    split_dir = build(tmp_path, manifest=True)
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DatasetError, match=r"manifest\.json: "):
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
def test_manifest_vouches_for_itself(tmp_path: Path, change: Callable[[dict], None]):
    split_dir, path = build(tmp_path, manifest=True), tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest))  # Laid out otherwise, it says the same.
    load_split(split_dir)
    older = {key: value for key, value in manifest.items() if key != "sha256"}
    path.write_text(json.dumps(older))  # Without a hash of its own it is read too.
    load_split(split_dir)
    change(manifest)
    path.write_text(json.dumps(manifest))
    with refused(f"{path}: is not what the build wrote"):
        load_split(split_dir)


@pytest.mark.parametrize("name", ["identifiers.json", "test_puzzles.json"])
def test_manifest_covers_the_files_beside_the_splits(tmp_path: Path, name: str):
    path = tmp_path / name
    write_json(path, ["<blank>", "a", "b"])
    split_dir = build(tmp_path, manifest=True)
    load_split(split_dir)
    path.write_text('["<blank>", "a", "c"]')
    with pytest.raises(DatasetError, match=f"{path}: its sha256 is not the one in"):
        load_split(split_dir)
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path}: No such file"):
        load_split(split_dir)


def test_ratings_are_read_back_checked_and_covered_by_the_manifest(tmp_path: Path):
    assert load_split(build(tmp_path / "old"))[1]["all"].example_ratings() is None
    metadata = dataclasses.replace(METADATA, ratings=True)
    rated = dataclasses.replace(small_set(), ratings=np.array([10**12, 7]))
    split_dir = tmp_path / "new" / "train"
    write_split(split_dir, metadata, {"all": rated})
    write_manifest(split_dir.parent, command=["build"], seed=1, sources={}, counts={})
    found, sets = load_split(split_dir)
    assert found == metadata
    assert sets["all"].example_ratings().tolist() == [10**12] * 2 + [7] * 3
    path = array_path(split_dir, "ratings")
    for damage, told in (
        (resave(lambda array: array[::-1]), "its sha256 is not the one in"),
        (resave(lambda array: array[:1]), "shape [1], expected [2]"),
        (Path.unlink, "No such file"),
    ):
        damage(path)
        with refused(path, told):
            load_split(split_dir)


def test_more_identifiers_than_there_is_room_for_names_are_refused(tmp_path: Path):
    split_dir = build(tmp_path)
    names = tmp_path / "identifiers.json"
    path = edit_metadata(split_dir, num_puzzle_identifiers=100_000)
    names.write_text(json.dumps([""] * 100_000, separators=(",", ":")))
    load_split(split_dir)
    names.write_text(names.read_text()[1:])
    with refused(f"{path}: ", "is 100000, but"):
        load_split(split_dir)


def test_fingerprint_depends_on_content_alone(tmp_path: Path):
    split_dir = build(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
    seen = {fingerprint(split_dir)}
    assert seen == {fingerprint(tmp_path / "b/c/train")}
    for path in sorted(split_dir.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"}", b" }") if path.suffix == ".json" else whole + b"\0")
        seen.add(fingerprint(split_dir))
        path.write_bytes(whole)
    assert len(seen) == 1 + 1 + len(SET_FIELDS)


def test_atomic_build_puts_the_set_in_place(tmp_path: Path):
    output = tmp_path / "deep" / "set"
    with atomic_build(output) as temporary:
        assert temporary.parent == output.parent
        build(temporary)
        assert not output.exists()
    load_split(output / "train")
    assert [path.name for path in output.parent.iterdir()] == ["set"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(output.stat().st_mode) == 0o777 & ~umask


@pytest.mark.parametrize("exchange", [True, False])
def test_atomic_build_replaces_an_older_set(tmp_path: Path, monkeypatch: Patch, exchange: bool):
    output = tmp_path / "set"
    build(output)
    (output / "old").touch()
    reader = load_split(output / "train")[1]["all"].inputs
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda first, second: False)
    with atomic_build(output) as temporary:
        build(temporary, manifest=True)
    assert sorted(path.name for path in output.iterdir()) == ["manifest.json", "train"]
    assert list(tmp_path.iterdir()) == [output]
    np.testing.assert_array_equal(reader, small_set().inputs)  # Old readers keep the old file.


def test_atomic_build_refuses_what_is_no_data_set(tmp_path: Path):
    folder, file, late = (tmp_path / name for name in ("home", "file", "late"))
    folder.mkdir()
    file.touch()

    def build_and_write_thesis() -> None:
        with atomic_build(late) as temporary:
            build(temporary)
            late.mkdir()
            (late / "thesis.tex").touch()

    (folder / "thesis.tex").touch()
    for output, reason in ((folder, "is not a data set"), (file, "is not a folder")):
        with pytest.raises(DatasetError, match=reason), atomic_build(output):
            pytest.fail("the build was started")
    # It looks again before it replaces.
    with pytest.raises(DatasetError, match="is not a data set"):
        build_and_write_thesis()
    assert [path.name for each in (folder, late) for path in each.iterdir()] == ["thesis.tex"] * 2
    (folder / "thesis.tex").unlink()
    with atomic_build(folder) as temporary:
        build(temporary)
    load_split(folder / "train")


@pytest.mark.parametrize("exchange", [True, False])
def test_everything_is_on_the_disk_before_the_swap_and_the_swap_after_it(
    tmp_path: Path, monkeypatch: Patch, exchange: bool
):
    output = tmp_path / "set"
    build(output)
    done: list[tuple[str, int | None]] = []
    sync, rename, swap = os.fsync, os.rename, files.exchange

    def note_sync(descriptor: int) -> None:
        done.append(("sync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def note_rename(first: Path, second: Path) -> None:
        done.append(("swap", None))
        rename(first, second)

    def note_exchange(first: Path, second: Path) -> bool:
        if exchange:
            done.append(("swap", None))
        return exchange and swap(first, second)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(files, "exchange", note_exchange)
    with atomic_build(output) as temporary:
        build(temporary, manifest=True)
    swaps = [place for place, (what, _) in enumerate(done) if what == "swap"]
    before = {inode for _, inode in done[: swaps[0]]}
    assert {path.stat().st_ino for path in [output, *output.rglob("*")]} <= before
    assert ("sync", tmp_path.stat().st_ino) in done[swaps[-1] :]


def test_builds_at_the_same_time_do_not_disturb_each_other(tmp_path: Path):
    output = tmp_path / "set"
    with atomic_build(output) as slow:
        build(slow)
        with atomic_build(output) as quick:
            build(quick)
        load_split(output / "train")
        (slow / "slow").touch()
    assert (output / "slow").exists()
    assert list(tmp_path.iterdir()) == [output]
