"""The on-disk contract: what a built data set looks like, how it is written, checked and read.

    DIR/manifest.json     how it was built, sha256 of every file (published sets have none)
    DIR/identifiers.json  the name of each puzzle identifier (0 is "<blank>")
    DIR/{train,test}/
        dataset.json                  PuzzleDatasetMetadata
        SET__inputs.npy               uint8 [examples, seq_len]  token ids
        SET__labels.npy               uint8 [examples, seq_len]  token ids or ignore_label_id
        SET__puzzle_identifiers.npy   int32 [puzzles]
        SET__puzzle_indices.npy       int32 [puzzles + 1]        offsets into the examples
        SET__group_indices.npy        int32 [groups + 1]         offsets into the puzzles
        SET__NAME.npy                 uint8 [examples, seq_len] or [examples, seq_len, channels]
                                      a further label of each cell, where dataset.json has one

A group is one original puzzle with its augmentations, a puzzle is one augmentation of it, and a
puzzle holds one or several examples. This is the published format of HRM (arXiv:2506.21734); on
reading, any integer dtype is accepted, because published Sudoku sets hold int64.

A set whose dataset.json says `"format": "lazy_arc"` keeps the original grids and how each puzzle
changes them, instead of the changed grids: see LazyArcSet, and docs/data.md for the files.

Nothing here unpickles or evaluates a file: the `.npy` header is parsed as a literal, only integer
arrays are accepted, and a file's size is compared with its header before it is mapped.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

IGNORE_LABEL_ID = -100
"""What a label equal to `ignore_label_id` becomes when it is read (torch's own `ignore_index`)."""

SET_FIELDS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
LAZY_ARC_FIELDS = (*SET_FIELDS, "source_indices")
LAZY_ARC = "lazy_arc"
"""Value of the key `format` in dataset.json; sets of the published format have no such key."""

ARC_SIDE = 30
"""Rows and columns of the canvas that holds an ARC grid, and the longest side of one."""
ARC_BORDER_TOKEN, ARC_FIRST_COLOUR_TOKEN = 1, 2
"""What ends a grid below and on the right; colour 0 (the other nine follow)."""

MANIFEST_NAME = "manifest.json"
AUGMENTATIONS_NAME = "augmentations.npy"
METADATA_NAME = "dataset.json"
IDENTIFIERS_NAME = "identifiers.json"
TEST_PUZZLES_NAME = "test_puzzles.json"

_STORED_DTYPES = {
    "inputs": np.uint8,
    "labels": np.uint8,
    "puzzle_identifiers": np.int32,
    "puzzle_indices": np.int32,
    "group_indices": np.int32,
    "source_indices": np.int32,
}
_OPTIONAL_KEYS = ("total_puzzles", "format", "fields")
_LAZY_ARC_FACTS = {"pad_id": 0, "ignore_label_id": 0, "vocab_size": 12, "seq_len": 900}
_NUM_VIEWS = 8
_COLOUR_BITS = sum(1 << colour for colour in range(1, 10))
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Without `__`, so that no set and field share a file with another set and field.
_LABEL_FIELD_NAME = re.compile(r"(?=.{1,100}\Z)[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_CLASSES, _MAX_CHANNELS = 256, 256
_INTEGER_DTYPE = re.compile(r"[<>|=]?[iu][1248]")
_MAX_HEADER_BYTES = 10_000
_MAX_DIMENSIONS = 8
_MAX_ARRAY_BYTES = 2**48  # More than a process can map; a smaller product overflows nowhere.
_MAX_VOCAB_SIZE = 2**20  # Each token has a row in a model's tables.
_MAX_UNPROVEN_IDENTIFIERS = 2**16
_LARGEST_INT32 = 2**31 - 1
_MANIFEST_KEYS = frozenset(("command", "seed", "sources", "counts", "files", "sha256"))
_MAX_JSON_BYTES = 64 * 2**20
_MAX_NAMES_BYTES = 2**29  # The names of a million puzzles take 40 MB.
_VALUES_PER_CHECK = 2**22


class DatasetError(ValueError):
    """A data set that is missing, damaged or contradicts itself; the message names the file.

    Entry points turn it into one line and exit code 3.
    """


@dataclass(frozen=True)
class LabelField:
    """A further label of each cell, as `fields` of dataset.json declares it.

    A cell whose label is ignored has none, nor one whose label is `unknown_label`: IGNORE_LABEL_ID
    stands there when it is read.

    num_classes: values are 0 to num_classes - 1, at most 256. channels: values of each cell, which
    have an axis of their own; 0 is one value without that axis. unknown_label: a token, or None.
    derived: there is no file, the values are made from the labels when they are read (ARC_PIXELS in
    the format "lazy_arc" alone). The metadata that holds it checks it.
    """

    num_classes: int
    channels: int = 0
    unknown_label: int | None = None
    derived: bool = False

    def to_json(self) -> dict[str, Any]:
        """The value in dataset.json; what has its default is left out."""
        values: dict[str, Any] = {"num_classes": int(self.num_classes)}
        if self.channels:
            values["channels"] = int(self.channels)
        if self.unknown_label is not None:
            values["unknown_label"] = int(self.unknown_label)
        if self.derived:
            values["derived"] = True
        return values


ARC_PIXELS_NAME = "pixels"
ARC_PIXELS = LabelField(num_classes=256, channels=3, unknown_label=ARC_BORDER_TOKEN)
"""Red, green and blue of the label's colour in the palette of ARC; unknown outside the grid."""


@dataclass(frozen=True)
class PuzzleDatasetMetadata:
    """What `dataset.json` says about one split.

    pad_id, ignore_label_id (None: no label is ignored) and vocab_size are about tokens, seq_len is
    in cells, blank_identifier_id and num_puzzle_identifiers are about puzzle identifiers.
    total_groups, total_puzzles (None in sets of the older format) and mean_puzzle_examples
    (examples per puzzle) are over all sets of the split. format is None for the published format,
    or "lazy_arc". fields are the further labels of each cell, by name; in the format "lazy_arc" all
    are derived, elsewhere none.

    Raises: DatasetError: a field has the wrong type or is out of range.
    """

    pad_id: int
    ignore_label_id: int | None
    blank_identifier_id: int
    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    total_groups: int
    mean_puzzle_examples: float
    sets: tuple[str, ...]
    total_puzzles: int | None = None
    format: str | None = None
    fields: Mapping[str, LabelField] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_integer("vocab_size", self.vocab_size, 1, _MAX_VOCAB_SIZE)
        for name in ("seq_len", "num_puzzle_identifiers"):
            _require_integer(name, getattr(self, name), 1, _LARGEST_INT32)
        _require_integer("total_groups", self.total_groups, 0, _LARGEST_INT32)
        _require_integer("pad_id", self.pad_id, 0, self.vocab_size - 1)
        _require_integer(
            "blank_identifier_id", self.blank_identifier_id, 0, self.num_puzzle_identifiers - 1
        )
        if self.ignore_label_id is not None:
            _require_integer("ignore_label_id", self.ignore_label_id, -(2**31), _LARGEST_INT32)
        if self.total_puzzles is not None:
            _require_integer("total_puzzles", self.total_puzzles, 0, _LARGEST_INT32)
        mean = self.mean_puzzle_examples
        is_number = isinstance(mean, int | float | np.number) and not isinstance(mean, bool)
        if not is_number or not 0 <= mean <= _LARGEST_INT32:
            raise DatasetError(
                f"mean_puzzle_examples is {_quoted(mean)}, expected a number from 0 to"
                f" {_LARGEST_INT32}"
            )
        names = self.sets
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise DatasetError(f"sets is {_quoted(names)}, expected a list of names")
        for name in names:
            _require_plain_name(name)
        if len(set(names)) != len(names):
            raise DatasetError(f"sets is {_quoted(list(names))}, expected every name once")
        object.__setattr__(self, "sets", tuple(names))
        if self.format not in (None, LAZY_ARC):
            raise DatasetError(
                f"format is {_quoted(self.format)}, expected {LAZY_ARC!r} or no such key"
            )
        if self.format == LAZY_ARC:
            for name, expected in _LAZY_ARC_FACTS.items():
                if getattr(self, name) != expected:
                    raise DatasetError(
                        f"{name} is {getattr(self, name)}, expected {expected} in the format"
                        f" {LAZY_ARC}"
                    )
        self._check_fields()

    def _check_fields(self) -> None:
        for name, declared in self.fields.items():
            if not _LABEL_FIELD_NAME.fullmatch(name) or name in LAZY_ARC_FIELDS:
                raise DatasetError(
                    f"field name {_quoted(name)}, expected words of small letters and digits joined"
                    f" by '_', and none of {', '.join(LAZY_ARC_FIELDS)}"
                )
            key = f"fields.{name}"
            _require_integer(f"{key}.num_classes", declared.num_classes, 1, _MAX_CLASSES)
            _require_integer(f"{key}.channels", declared.channels, 0, _MAX_CHANNELS)
            if declared.unknown_label is not None:
                limit = self.vocab_size - 1
                _require_integer(f"{key}.unknown_label", declared.unknown_label, 0, limit)
            if not isinstance(declared.derived, bool):
                raise DatasetError(
                    f"{key}.derived is {_quoted(declared.derived)}, expected true or false"
                )
            if self.format == LAZY_ARC:
                expected = replace(ARC_PIXELS, derived=True)
                if name != ARC_PIXELS_NAME or declared != expected:
                    raise DatasetError(
                        f"{key} is {declared.to_json()}, but the format {LAZY_ARC} has only"
                        f" {ARC_PIXELS_NAME} {expected.to_json()}"
                    )
            elif declared.derived:
                raise DatasetError(f"{key} is derived, accepted only in the format {LAZY_ARC}")

    def to_json(self) -> str:
        """The text of `dataset.json`; what is None or has no entries is left out, but for
        `ignore_label_id`.
        """
        values: dict[str, Any] = asdict(self)
        for name, value in values.items():
            if isinstance(value, np.integer):
                values[name] = int(value)
        values["mean_puzzle_examples"] = float(self.mean_puzzle_examples)
        values["sets"] = list(self.sets)
        values["fields"] = {name: declared.to_json() for name, declared in self.fields.items()}
        for name in _OPTIONAL_KEYS:
            if values[name] is None or values[name] == {}:
                del values[name]
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> PuzzleDatasetMetadata:
        """Read the text of `dataset.json`; unknown keys are ignored.

        Raises: DatasetError: no JSON object, or a key is missing or mistyped; names `source`.
        """
        values = _parse_json_object(text, source)
        known = {field.name for field in fields(cls)}
        missing = sorted(known - set(_OPTIONAL_KEYS) - values.keys())
        if missing:
            raise DatasetError(f"{source}: missing {', '.join(missing)}")
        try:
            values["fields"] = _parse_label_fields(values.get("fields", {}))
            return cls(**{name: value for name, value in values.items() if name in known})
        except DatasetError as error:
            raise DatasetError(f"{source}: {error}") from None


@dataclass(frozen=True)
class PuzzleSet:
    """The arrays of one set.

    inputs, labels: integer [examples, seq_len], memory-mapped when read from disk.
    puzzle_identifiers: integer [puzzles].
    puzzle_indices: integer [puzzles + 1]; puzzle p holds examples puzzle_indices[p] to [p + 1].
    group_indices: integer [groups + 1]; group g holds puzzles group_indices[g] to [g + 1].
    fields: the further labels by name, uint8 [examples, seq_len] or [examples, seq_len, channels],
        memory-mapped when read from disk; derived ones are not among them.
    """

    inputs: np.ndarray
    labels: np.ndarray
    puzzle_identifiers: np.ndarray
    puzzle_indices: np.ndarray
    group_indices: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)

    @property
    def num_examples(self) -> int:
        return len(self.inputs)

    @property
    def num_puzzles(self) -> int:
        return len(self.puzzle_identifiers)

    @property
    def num_groups(self) -> int:
        return len(self.group_indices) - 1


@dataclass(frozen=True)
class LazyArcSet(PuzzleSet):
    """Original ARC grids, and what each puzzle does to them: rows are made when they are read.

    inputs, labels: uint8 [stored, 900], the pairs of each task in the top left corner of the
        canvas; labels of pad_id only where the output is not known.
    source_indices: integer [groups + 1]; all puzzles of group g have, in this order, the stored
        pairs source_indices[g] to [g + 1]. puzzle_indices counts the examples so made.
    augmentations: uint8 [puzzles, 10], the view and the new colours of 1 to 9 of each puzzle.
    """

    source_indices: np.ndarray
    augmentations: np.ndarray

    @property
    def num_examples(self) -> int:
        return int(self.puzzle_indices[-1]) if len(self.puzzle_indices) else 0


# Reading


def load_metadata(split_dir: Path) -> PuzzleDatasetMetadata:
    """Read and check `dataset.json` of one split, such as DIR/train.

    Raises: DatasetError: the folder or file is missing or wrong; names it.
    """
    split_dir = Path(split_dir)
    if not split_dir.is_dir():
        raise DatasetError(f"{split_dir}: no such data set folder")
    path = split_dir / METADATA_NAME
    return PuzzleDatasetMetadata.from_json(_read_small_file(path), path)


def load_set(
    split_dir: Path,
    set_name: str,
    metadata: PuzzleDatasetMetadata,
    *,
    fields: Collection[str] | None = None,
    check_values: bool = True,
) -> PuzzleSet:
    """Open one set: inputs, labels and fields mapped read-only, the small arrays in memory.

    File sizes, headers, dtypes, shapes, offsets and identifiers are always checked; `check_values`
    also reads every token and label once.

    Args: fields: the further labels that the set shall have and whose values are checked (None: all
        that have a file).

    Raises: DatasetError: the first thing that is wrong, with the file, row and value.
    """
    split_dir = Path(split_dir)
    _require_plain_name(set_name)
    paths = _array_paths(split_dir, set_name, metadata)
    arrays = {name: _map_array(path) for name, path in paths.items()}
    for name in arrays.keys() - {"inputs", "labels"}:
        arrays[name] = np.array(arrays[name])
    if metadata.format is None:
        field_paths = _field_paths(split_dir, set_name, metadata)
        further = {name: _map_array(path) for name, path in field_paths.items()}
        loaded = PuzzleSet(**arrays, fields=further)
        _check_set(loaded, metadata, paths, check_values=check_values)
        _check_field_shapes(loaded, metadata, field_paths)
        if fields is not None:
            loaded = replace(loaded, fields={name: further[name] for name in fields})
        if check_values:
            _check_field_values(loaded, metadata, field_paths)
        return loaded
    path = split_dir.parent / AUGMENTATIONS_NAME
    by_identifier = _map_array(path)
    _check_augmentations(by_identifier, metadata.num_puzzle_identifiers, path)
    lazy = LazyArcSet(**arrays, fields={}, augmentations=by_identifier[:0])
    _check_set(lazy, metadata, paths, check_values=check_values)
    # One row for each puzzle: the identifiers of several folders are renumbered when they join.
    return replace(lazy, augmentations=by_identifier[lazy.puzzle_identifiers])


def load_split(
    split_dir: Path, *, fields: Collection[str] | None = None, check_values: bool = True
) -> tuple[PuzzleDatasetMetadata, dict[str, PuzzleSet]]:
    """Open all sets of a split, and check that they agree with `dataset.json` and the manifest.

    With `check_values` every token and label is read once, and, where DIR/manifest.json exists, the
    sha256 of every file of the split, of the files of names and tasks beside it and of the manifest
    itself is compared: then no flipped bit goes unseen.

    Args: fields: the further labels to open, by name (None: all). Of the others only the file's
        size, dtype and shape are checked.

    Raises: DatasetError: names the file at fault, or dataset.json where it declares no such field.
    """
    split_dir = Path(split_dir)
    metadata = load_metadata(split_dir)
    wanted = metadata.fields if fields is None else fields
    for name in wanted:
        if name not in metadata.fields:
            raise DatasetError(
                f"{split_dir / METADATA_NAME}: declares no field {name!r}, but"
                f" {', '.join(metadata.fields) or 'none'}"
            )
    stored = [name for name in wanted if not metadata.fields[name].derived]
    sets = {
        name: load_set(split_dir, name, metadata, fields=stored, check_values=check_values)
        for name in metadata.sets
    }
    _check_totals(metadata, sets, split_dir / METADATA_NAME)
    _check_identifiers_file(split_dir, metadata)
    if check_values:
        _check_manifest(split_dir, metadata, stored)
    return metadata, sets


def fingerprint(split_dir: Path) -> str:
    """sha256 (hex) over `dataset.json` and the files of its sets, in the order that it gives.

    Of a lazy set, `augmentations.npy` beside the split counts too.
    It depends on the content only, not on the folder's place or name.

    Raises: DatasetError: a file is missing or unreadable; names it.
    """
    split_dir = Path(split_dir)
    total = hashlib.sha256()
    for path in _split_files(split_dir, load_metadata(split_dir)):
        total.update(f"{path.name} {file_sha256(path)}\n".encode())
    return total.hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's content. Raises: DatasetError: the file cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"{path}: {_reason(error)}") from None


# Writing


def write_split(
    split_dir: Path, metadata: PuzzleDatasetMetadata, sets: Mapping[str, PuzzleSet]
) -> None:
    """Write one split: inputs, labels and further labels as uint8, the rest as int32.

    Everything is checked first, as on reading; each file is fsynced. The folder is created. Of lazy
    sets all but their augmentations is written: see `write_augmentations`.

    Raises: DatasetError: the arrays contradict `metadata` or do not fit their dtypes.
    """
    split_dir = Path(split_dir)
    if tuple(sets) != metadata.sets:
        raise DatasetError(f"{split_dir}: sets {list(sets)} given, {list(metadata.sets)} announced")
    for name, arrays in sets.items():
        if isinstance(arrays, LazyArcSet) != (metadata.format == LAZY_ARC):
            raise DatasetError(f"{split_dir}: set {name} has another format than its metadata")
        _check_set(arrays, metadata, _array_paths(split_dir, name, metadata), check_values=True)
        field_paths = _field_paths(split_dir, name, metadata)
        if arrays.fields.keys() != field_paths.keys():
            raise DatasetError(
                f"{split_dir}: set {name} has the fields {sorted(arrays.fields)}, announced are"
                f" {sorted(field_paths)}"
            )
        _check_field_shapes(arrays, metadata, field_paths)
        _check_field_values(arrays, metadata, field_paths)
    _check_totals(metadata, sets, split_dir / METADATA_NAME)

    split_dir.mkdir(parents=True, exist_ok=True)
    for name, arrays in sets.items():
        for part, path in _array_paths(split_dir, name, metadata).items():
            _write_array(path, getattr(arrays, part), _STORED_DTYPES[part])
        for part, path in _field_paths(split_dir, name, metadata).items():
            _write_array(path, arrays.fields[part], np.uint8)
    _write_bytes(split_dir / METADATA_NAME, metadata.to_json().encode())
    _fsync_directory(split_dir)


def write_puzzles(
    split_dir: Path,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    views: int = 1,
    fields: Mapping[str, tuple[LabelField, np.ndarray]] | None = None,
) -> None:
    """Write a split of puzzles that hold one example each and have no embedding of their own.

    Args:
        inputs, labels: integer [puzzles, seq_len]; 0 is padding and the label that is ignored.
        views: puzzles of a group, which stand together, the original first.
        fields: further labels by name, as they are declared and uint8 [puzzles, seq_len, ...].

    Raises: as `write_split`.
    """
    num_puzzles, seq_len = inputs.shape
    further = fields or {}
    metadata = PuzzleDatasetMetadata(
        pad_id=0,
        ignore_label_id=0,
        blank_identifier_id=0,
        vocab_size=vocab_size,
        seq_len=seq_len,
        num_puzzle_identifiers=1,
        total_groups=num_puzzles // views,
        mean_puzzle_examples=1.0,
        sets=("all",),
        total_puzzles=num_puzzles,
        fields={name: declared for name, (declared, _) in further.items()},
    )
    arrays = PuzzleSet(
        inputs=inputs,
        labels=labels,
        puzzle_identifiers=np.zeros(num_puzzles, dtype=np.int32),
        puzzle_indices=np.arange(num_puzzles + 1, dtype=np.int32),
        group_indices=np.arange(0, num_puzzles + 1, views, dtype=np.int32),
        fields={name: values for name, (_, values) in further.items()},
    )
    write_split(split_dir, metadata, {"all": arrays})


def write_augmentations(directory: Path, augmentations: np.ndarray) -> None:
    """Write DIR/augmentations.npy, which the lazy sets of all splits in DIR share.

    Args: augmentations: uint8 [identifiers, 10], the view, then the new colours of 1 to 9.

    Raises: DatasetError: a view above 7, or colours that are no permutation; names the row.
    """
    path = Path(directory) / AUGMENTATIONS_NAME
    _check_augmentations(augmentations, len(augmentations), path)
    _write_array(path, augmentations, np.uint8)


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Write a JSON file whose bytes depend on `value` alone (keys sorted), and fsync it.

    Names of files that are no UTF-8 are written as JSON's escapes.

    Args: compact: without white space, for files that are large and not for reading.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, **layout)
    # In a string of JSON that is the escape of the same lone surrogate.
    _write_bytes(Path(path), (text + "\n").encode("utf-8", "backslashreplace"))


def write_manifest(
    directory: Path,
    *,
    command: Sequence[str] | str,
    seed: int,
    sources: Mapping[str, str],
    counts: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
) -> None:
    """Write DIR/manifest.json, last of all files: how the set was built, and what it consists of.

    No time, host or path enters it on its own: the same command gives the same bytes.

    Args:
        directory: the folder being built (with train/ and test/).
        command: what was asked for, without the output folder if the bytes shall not depend on it.
        sources: sha256 by name of each input file.
        counts: what was read, dropped and written.
        files: sha256 by path relative to `directory`; computed for every file there if not given.
    """
    directory = Path(directory)
    if files is None:
        written = sorted(path for path in directory.rglob("*") if path.is_file())
        files = {path.relative_to(directory).as_posix(): file_sha256(path) for path in written}
    manifest = {
        "command": command if isinstance(command, str) else list(command),
        "seed": int(seed),
        "sources": dict(sources),
        "counts": dict(counts),
        "files": {name: digest for name, digest in files.items() if name != MANIFEST_NAME},
    }
    write_json(directory / MANIFEST_NAME, {**manifest, "sha256": _json_sha256(manifest)})


@contextlib.contextmanager
def atomic_build(output_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `output_dir` that takes its place when the block succeeds.

    A build that is killed leaves the old data set or the new one, never a mix: the two are
    exchanged by one system call where the file system can (Linux); elsewhere the old one is renamed
    away first, and put back by the next build should a kill hit between the two renames. Whoever
    has the old set open keeps reading the old files. Temporary folders of killed builds are removed
    by the next build of the same folder; a lock tells them from those of a running one.

    Raises: DatasetError: `output_dir` is a file, or a folder that holds something else than a data
        set; nothing is touched then.
    """
    output = Path(output_dir).resolve()
    _require_replaceable(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(output)
    with _locked_sibling(output) as temporary:
        try:
            yield temporary
            _fsync_tree(temporary)
            _require_replaceable(output)
            _swap_into_place(temporary, output)
        finally:
            # Holds the half-built set after an error, the old set after an exchange, else nothing.
            shutil.rmtree(temporary, ignore_errors=True)


# Checks


def _check_set(
    arrays: PuzzleSet,
    metadata: PuzzleDatasetMetadata,
    paths: Mapping[str, Path],
    *,
    check_values: bool,
) -> None:
    for name, path in paths.items():
        array, num_dims = getattr(arrays, name), 2 if name in ("inputs", "labels") else 1
        if array.dtype.kind not in "iu":
            raise DatasetError(f"{path}: dtype {array.dtype}, expected an integer type")
        if array.ndim != num_dims:
            raise DatasetError(
                f"{path}: shape {list(array.shape)}, expected {num_dims} dimension(s)"
            )
    if arrays.inputs.shape[1] != metadata.seq_len:
        raise DatasetError(
            f"{paths['inputs']}: {arrays.inputs.shape[1]} cells a row,"
            f" but seq_len is {metadata.seq_len}"
        )
    if arrays.labels.shape != arrays.inputs.shape:
        raise DatasetError(
            f"{paths['labels']}: shape {list(arrays.labels.shape)}, but inputs have"
            f" {list(arrays.inputs.shape)}"
        )
    _check_offsets(arrays.puzzle_indices, arrays.num_examples, paths["puzzle_indices"], "examples")
    _check_offsets(arrays.group_indices, arrays.num_puzzles, paths["group_indices"], "puzzles")
    if len(arrays.puzzle_indices) != arrays.num_puzzles + 1:
        raise DatasetError(
            f"{paths['puzzle_indices']}: {len(arrays.puzzle_indices)} offsets for"
            f" {arrays.num_puzzles} puzzles, expected {arrays.num_puzzles + 1}"
        )
    identifiers, path = arrays.puzzle_identifiers[:, None], paths["puzzle_identifiers"]
    _check_range(identifiers, metadata.num_puzzle_identifiers, None, path, "identifier")
    if isinstance(arrays, LazyArcSet):
        _check_sources(arrays, paths)
        if check_values:
            _check_canvases(arrays.inputs, paths["inputs"], may_be_empty=False)
            _check_canvases(arrays.labels, paths["labels"], may_be_empty=True)
    elif check_values:
        _check_range(arrays.inputs, metadata.vocab_size, None, paths["inputs"], "token")
        _check_range(
            arrays.labels, metadata.vocab_size, metadata.ignore_label_id, paths["labels"], "label"
        )


def _check_field_shapes(
    arrays: PuzzleSet, metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    for name, path in paths.items():
        channels, array = metadata.fields[name].channels, arrays.fields[name]
        if array.dtype != np.uint8:
            raise DatasetError(f"{path}: dtype {array.dtype}, expected uint8")
        expected = [arrays.num_examples, metadata.seq_len, *([channels] if channels else [])]
        if list(array.shape) != expected:
            raise DatasetError(f"{path}: shape {list(array.shape)}, expected {expected}")


def _check_field_values(
    arrays: PuzzleSet, metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    for name, array in arrays.fields.items():
        rows = array.reshape(len(array), math.prod(array.shape[1:]))
        _check_range(rows, metadata.fields[name].num_classes, None, paths[name], "value")


def _check_sources(arrays: LazyArcSet, paths: Mapping[str, Path]) -> None:
    for name in ("inputs", "labels"):
        dtype = getattr(arrays, name).dtype
        if dtype != np.uint8:
            raise DatasetError(f"{paths[name]}: dtype {dtype}, expected uint8")
    path = paths["source_indices"]
    _check_offsets(arrays.source_indices, len(arrays.inputs), path, "stored examples")
    if len(arrays.source_indices) != arrays.num_groups + 1:
        raise DatasetError(
            f"{path}: {len(arrays.source_indices)} offsets for {arrays.num_groups} groups,"
            f" expected {arrays.num_groups + 1}"
        )
    stored = np.repeat(np.diff(arrays.source_indices), np.diff(arrays.group_indices))
    sizes = np.diff(arrays.puzzle_indices)
    wrong = np.flatnonzero(sizes != stored)
    if wrong.size:
        puzzle = int(wrong[0])
        raise DatasetError(
            f"{paths['puzzle_indices']}: puzzle {puzzle} has {int(sizes[puzzle])} examples, but its"
            f" group has {int(stored[puzzle])} in {path.name}"
        )


def _check_canvases(rows: np.ndarray, path: Path, *, may_be_empty: bool) -> None:
    """Require one grid in the top left corner of each row, and its border."""
    step = _VALUES_PER_CHECK // rows.shape[1]
    for start in range(0, len(rows), step):
        piece = rows[start : start + step].reshape(-1, ARC_SIDE, ARC_SIDE)
        is_colour = piece >= ARC_FIRST_COLOUR_TOKEN
        heights = is_colour[:, :, 0].cumprod(axis=1).sum(axis=1)[:, None, None]
        widths = is_colour[:, 0].cumprod(axis=1).sum(axis=1)[:, None, None]
        row, column = np.ogrid[:ARC_SIDE, :ARC_SIDE]
        above, left = row < heights, column < widths
        border = ((row == heights) & left) | (above & (column == widths))
        good = (is_colour == (above & left)) & ((piece == ARC_BORDER_TOKEN) == border)
        good &= piece < _LAZY_ARC_FACTS["vocab_size"]
        good &= may_be_empty | (heights > 0)
        wrong = np.flatnonzero(~good.all(axis=(1, 2)))
        if wrong.size:
            raise DatasetError(
                f"{path}: row {start + int(wrong[0])} is no grid in the top left corner with its"
                " border"
            )


def _check_augmentations(rows: np.ndarray, count: int, path: Path) -> None:
    if rows.dtype != np.uint8 or rows.shape != (count, 10):
        raise DatasetError(f"{path}: {rows.dtype} {list(rows.shape)}, expected uint8 {[count, 10]}")
    wrong = np.flatnonzero(rows[:, 0] >= _NUM_VIEWS)
    if wrong.size:
        row = int(wrong[0])
        raise DatasetError(
            f"{path}: view {rows[row, 0]} in row {row}, expected 0 to {_NUM_VIEWS - 1}"
        )
    # Shifted by more than 15 a bit falls out of uint16: then one is missing too.
    bits = np.bitwise_or.reduce(np.left_shift(1, rows[:, 1:], dtype=np.uint16), axis=1)
    wrong = np.flatnonzero(bits != _COLOUR_BITS)
    if wrong.size:
        row = int(wrong[0])
        raise DatasetError(
            f"{path}: colours {rows[row, 1:].tolist()} in row {row}, expected 1 to 9 in any order"
        )


def _check_offsets(offsets: np.ndarray, count: int, path: Path, what: str) -> None:
    if len(offsets) == 0 or offsets[0] != 0:
        raise DatasetError(f"{path}: offsets must start at 0, found {offsets[:1].tolist()}")
    # A puzzle without examples or a group without puzzles could not be drawn.
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if falls.size:
        row = int(falls[0])
        raise DatasetError(
            f"{path}: offsets must ascend, found {int(offsets[row])} and then"
            f" {int(offsets[row + 1])} at row {row + 1}"
        )
    if offsets[-1] != count:
        raise DatasetError(
            f"{path}: offsets end at {int(offsets[-1])}, but there are {count} {what}"
        )


def _check_range(
    rows: np.ndarray, limit: int, also_allowed: int | None, path: Path, what: str
) -> None:
    """Require 0 <= value < limit (or == also_allowed) in `rows` [n, width], a piece at a time."""
    step = max(1, _VALUES_PER_CHECK // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        if piece.size == 0 or (piece.min() >= 0 and piece.max() < limit):
            continue
        wrong = (piece < 0) | (piece >= limit)
        if also_allowed is not None:
            wrong &= piece != also_allowed
        bad_rows, bad_columns = np.nonzero(wrong)
        if bad_rows.size:
            row, value = int(bad_rows[0]), int(piece[bad_rows[0], bad_columns[0]])
            inside = also_allowed is None or 0 <= also_allowed < limit
            extra = "" if inside else f" or {also_allowed}"
            raise DatasetError(
                f"{path}: {what} {value} in row {start + row}, expected 0 to {limit - 1}{extra}"
            )


def _check_totals(
    metadata: PuzzleDatasetMetadata, sets: Mapping[str, PuzzleSet], path: Path
) -> None:
    groups = sum(arrays.num_groups for arrays in sets.values())
    puzzles = sum(arrays.num_puzzles for arrays in sets.values())
    examples = sum(arrays.num_examples for arrays in sets.values())
    if metadata.total_groups != groups:
        raise DatasetError(
            f"{path}: total_groups is {metadata.total_groups}, the sets hold {groups}"
        )
    # TRM's builders write the number of groups there, or that of puzzles.
    if metadata.total_puzzles is not None and metadata.total_puzzles not in (puzzles, groups):
        raise DatasetError(
            f"{path}: total_puzzles is {metadata.total_puzzles}, the sets hold {puzzles} in "
            f"{groups} groups"
        )
    # The schedule's length comes from this number; 1 % leaves room for one rounded by hand.
    mean = metadata.mean_puzzle_examples
    if puzzles and not math.isclose(mean, examples / puzzles, rel_tol=0.01):
        raise DatasetError(
            f"{path}: mean_puzzle_examples is {mean}, the sets hold {examples / puzzles:.6g}"
        )


def _check_manifest(
    split_dir: Path, metadata: PuzzleDatasetMetadata, label_fields: Collection[str]
) -> None:
    path = split_dir.parent / MANIFEST_NAME
    if not path.exists():
        return
    manifest = _parse_json_object(_read_small_file(path), path)
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise DatasetError(f"{path}: files is {type(listed).__name__}, expected an object")
    # Older ones have no hash of their own.
    own = manifest.pop("sha256", None)
    if not manifest.keys() <= _MANIFEST_KEYS or own not in (None, _json_sha256(manifest)):
        raise DatasetError(f"{path}: is not what the build wrote; build the set again")
    beside = [split_dir.parent / name for name in (IDENTIFIERS_NAME, TEST_PUZZLES_NAME)]
    files = [file for file in beside if file.name in listed]
    for file in [*files, *_split_files(split_dir, metadata, label_fields)]:
        expected = listed.get(file.relative_to(split_dir.parent).as_posix())
        if expected is None:
            raise DatasetError(f"{path}: does not list {file}")
        if file_sha256(file) != expected:
            raise DatasetError(f"{file}: its sha256 is not the one in {path}; build the set again")


def _json_sha256(values: Mapping[str, Any]) -> str | None:
    """sha256 (hex) of JSON values, however they are laid out; None if they are nested too deep."""
    try:
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return None


def _check_identifiers_file(split_dir: Path, metadata: PuzzleDatasetMetadata) -> None:
    """Require of many identifiers that the file of names, if there is one, is long enough for them:
    each will have a row in a model's table.
    """
    if metadata.num_puzzle_identifiers <= _MAX_UNPROVEN_IDENTIFIERS:
        return
    names = split_dir.parent / IDENTIFIERS_NAME
    try:
        size = names.stat().st_size
    except OSError:
        return
    # A list of n names is at least n times `"",` and one bracket.
    if 3 * metadata.num_puzzle_identifiers + 1 > size:
        raise DatasetError(
            f"{split_dir / METADATA_NAME}: num_puzzle_identifiers is"
            f" {metadata.num_puzzle_identifiers}, but {names} has only {size} bytes for their names"
        )


def _parse_label_fields(values: Any) -> dict[str, LabelField]:
    if not isinstance(values, dict):
        raise DatasetError(f"fields is {_quoted(values)}, expected an object")
    known = sorted(field.name for field in fields(LabelField))
    parsed = {}
    for name, declared in values.items():
        # Unless the name is one, it may hold anything, line breaks too.
        key = f"fields.{name}" if _LABEL_FIELD_NAME.fullmatch(name) else f"field {_quoted(name)}"
        if not isinstance(declared, dict) or "num_classes" not in declared:
            raise DatasetError(f"{key} is {_quoted(declared)}, expected an object with num_classes")
        unknown = sorted(declared.keys() - set(known))
        if unknown:
            raise DatasetError(
                f"{key} has the key {_quoted(unknown[0])}; accepted: {', '.join(known)}"
            )
        parsed[name] = LabelField(**declared)
    return parsed


def _require_integer(name: str, value: Any, low: int, high: int) -> None:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not low <= value <= high:
        raise DatasetError(f"{name} is {_quoted(value)}, expected an integer from {low} to {high}")


def _require_plain_name(name: str) -> None:
    if not _PLAIN_NAME.fullmatch(name):
        raise DatasetError(
            f"set name {_quoted(name)}, expected letters, digits, '_', '-' and '.', the first one"
            " neither '-' nor '.'"
        )


def _require_replaceable(output: Path) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise DatasetError(f"{output}: exists and is not a folder")
    marks = (f"train/{METADATA_NAME}", f"test/{METADATA_NAME}", MANIFEST_NAME)
    if any(output.iterdir()) and not any((output / mark).is_file() for mark in marks):
        raise DatasetError(f"{output}: exists and is not a data set; refusing to replace it")


# Files


def _array_paths(
    split_dir: Path, set_name: str, metadata: PuzzleDatasetMetadata
) -> dict[str, Path]:
    stored = SET_FIELDS if metadata.format is None else LAZY_ARC_FIELDS
    return {name: split_dir / f"{set_name}__{name}.npy" for name in stored}


def _field_paths(
    split_dir: Path, set_name: str, metadata: PuzzleDatasetMetadata
) -> dict[str, Path]:
    return {
        name: split_dir / f"{set_name}__{name}.npy"
        for name, declared in metadata.fields.items()
        if not declared.derived
    }


def _split_files(
    split_dir: Path, metadata: PuzzleDatasetMetadata, label_fields: Collection[str] | None = None
) -> list[Path]:
    """Files of a split; of its further labels only those named (None: all)."""
    files = [split_dir / METADATA_NAME]
    for name in metadata.sets:
        files += _array_paths(split_dir, name, metadata).values()
        for part, path in _field_paths(split_dir, name, metadata).items():
            if label_fields is None or part in label_fields:
                files.append(path)
    if metadata.format == LAZY_ARC:
        files.append(split_dir.parent / AUGMENTATIONS_NAME)
    return files


def _map_array(path: Path) -> np.ndarray:
    """Map an integer `.npy` file read-only; the size check keeps a cut file from being a SIGBUS."""
    try:
        with open_regular(path) as file:
            dtype, shape, fortran_order = _read_npy_header(file, path)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
            expected = offset + dtype.itemsize * math.prod(shape)
            if size != expected:
                raise DatasetError(
                    f"{path}: {size} bytes, but its header promises {expected}; the file is damaged"
                )
            if math.prod(shape) == 0:
                return np.zeros(shape, dtype)
            mapped = np.memmap(file, dtype, "r", offset, shape, order="F" if fortran_order else "C")
    except OSError as error:
        raise DatasetError(f"{path}: {_reason(error)}") from None
    return mapped.view(np.ndarray)


def _read_npy_header(file: Any, path: Path) -> tuple[np.dtype, tuple[int, ...], bool]:
    prefix = file.read(8)
    length_bytes = {(1, 0): 2, (2, 0): 4, (3, 0): 4}.get(tuple(prefix[6:8]))
    if prefix[:6] != b"\x93NUMPY" or length_bytes is None:
        raise DatasetError(f"{path}: not a .npy file")
    length = int.from_bytes(file.read(length_bytes), "little")
    if length > _MAX_HEADER_BYTES:
        raise DatasetError(f"{path}: .npy header of {length} bytes, at most {_MAX_HEADER_BYTES}")
    try:
        with warnings.catch_warnings(action="ignore"):  # Of what damage makes of a literal.
            header = ast.literal_eval(file.read(length).decode("latin1").strip())
        descr, shape = header["descr"], header["shape"]
        fortran_order = header["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise DatasetError(f"{path}: its .npy header cannot be read; the file is damaged") from None
    if not isinstance(descr, str) or not _INTEGER_DTYPE.fullmatch(descr):
        found = _quoted(descr) if isinstance(descr, str) else f"a {type(descr).__name__}"
        raise DatasetError(f"{path}: dtype {found}, expected an integer type")
    is_shape = isinstance(shape, tuple) and len(shape) <= _MAX_DIMENSIONS
    if not is_shape or not all(type(n) is int and n >= 0 for n in shape):
        raise DatasetError(f"{path}: the shape in its .npy header is none; the file is damaged")
    dtype = np.dtype(descr)
    # Where one side is 0 the file's size says nothing about the others.
    if dtype.itemsize * math.prod(max(n, 1) for n in shape) > _MAX_ARRAY_BYTES:
        raise DatasetError(f"{path}: the shape in its .npy header fits no file; it is damaged")
    return dtype, shape, bool(fortran_order)


def _read_small_file(path: Path) -> bytes:
    try:
        return read_bounded(path, _MAX_JSON_BYTES)
    except OSError as error:
        raise DatasetError(f"{path}: {_reason(error)}") from None


def require_no_link(folder: Path) -> None:
    """Raise OSError when a link stands where a folder of ours is to be written: in somebody else's
    folder it may lead anywhere.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link, expected a folder", str(folder))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; a device or a pipe, which may have no end, is none.

    Raises: OSError: there is none, or it cannot be read.
    """
    # A pipe that nobody writes to would not open otherwise.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises: OSError: there is none, it cannot be read, or it is larger.
    """
    with open_regular(path) as file:
        # Not as much as may be: that would be allocated at once.
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1)
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file of names or tasks.

    Raises: DatasetError: missing, unreadable, larger than 512 MiB or no JSON; names it.
    """
    try:
        return json.loads(read_bounded(path, _MAX_NAMES_BYTES))
    except OSError as error:
        raise DatasetError(f"{path}: {_reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: not JSON: {error or type(error).__name__}") from None


def _parse_json_object(text: str | bytes, source: str | Path) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{source}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise DatasetError(f"{source}: {type(values).__name__}, expected a JSON object")
    return values


def _write_array(path: Path, array: np.ndarray, dtype: type[np.integer]) -> None:
    limits = np.iinfo(dtype)
    if array.dtype != dtype:
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise DatasetError(
                f"{path}: values from {array.min()} to {array.max()} do not fit {np.dtype(dtype)}"
            )
        array = array.astype(dtype)
    with open(path, "wb") as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _write_bytes(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a hidden file beside `path` that takes its place at the end, in one indivisible move.

    It is fsynced first, and its folder afterwards. After an error it is gone and `path` as it was.

    Raises: OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # Never through a link that somebody left there.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _fsync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        _fsync_directory(Path(folder))


# Replacing a folder


def _sibling(output: Path, kind: str) -> Path:
    return output.with_name(f".{output.name}.{kind}-{secrets.token_hex(4)}")


def _leftovers(output: Path, kind: str) -> list[Path]:
    pattern = re.compile(re.escape(f".{output.name}.{kind}-") + "[0-9a-f]{8}")
    return sorted(path for path in output.parent.iterdir() if pattern.fullmatch(path.name))


def _clear_leftovers(output: Path) -> None:
    """Remove what killed builds of this folder left; put back a set that one had moved away."""
    replaced = _leftovers(output, "replaced")
    if replaced and not output.exists():
        os.rename(replaced.pop(), output)
    for path in replaced:
        os.rename(path, _sibling(output, "building"))
    for path in _leftovers(output, "building"):
        with contextlib.suppress(OSError), _locked(path):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked_sibling(output: Path) -> Iterator[Path]:
    """Create a temporary folder beside `output` that stays locked as long as this process lives."""
    while True:
        path = _sibling(output, "building")
        path.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(path))
            except (BlockingIOError, FileNotFoundError):
                continue  # Another build took the fresh folder for a leftover before it was locked.
            except OSError:
                pass  # Some network file systems lock no folders: then nobody clears leftovers.
            yield path
            return


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "removed before it was locked", str(path))
        yield
    finally:
        os.close(descriptor)


def _swap_into_place(built: Path, output: Path) -> None:
    """Move `built` to `output`, for good; an old folder there is afterwards at `built`.

    After an error both are where they were.
    """
    with contextlib.ExitStack() as undo:
        if not output.exists():
            os.rename(built, output)
            undo.callback(os.rename, output, built)
        elif exchange(built, output):
            undo.callback(exchange, built, output)
        else:
            replaced = _sibling(output, "replaced")
            os.rename(output, replaced)
            undo.callback(os.rename, replaced, output)
            os.rename(built, output)
            undo.callback(os.rename, output, built)
            _fsync_directory(output.parent)
            # Under a name that is never put back: a kill may leave half of it.
            os.rename(replaced, built)
            undo.callback(os.rename, built, replaced)
        _fsync_directory(output.parent)
        undo.pop_all()


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one atomic step (Linux renameat2); False where that is not available."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_fdcwd, rename_exchange = -100, 2
    flags = ctypes.c_uint(rename_exchange)
    if renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def shown(value: object, limit: int = 60) -> str:
    """Write a value on one line of at most `limit` characters."""
    text = _text(value, str)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _quoted(value: object) -> str:
    return shown(_text(value, repr))


def _text(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "something nested very deep"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
