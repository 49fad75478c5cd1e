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

`schema` has the types, `checks` what must hold of them, `arrays` and `runtime.files` how files are
read and written.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dataset.format.arrays import (
    file_sha256,
    json_sha256,
    map_array,
    parse_json_object,
    read_small_file,
    write_array,
    write_json,
)
from dataset.format.checks import (
    check_augmentations,
    check_field_shapes,
    check_field_values,
    check_set,
    check_totals,
)
from dataset.format.schema import (
    LAZY_ARC,
    LAZY_ARC_FIELDS,
    SET_FIELDS,
    LabelField,
    LazyArcSet,
    PuzzleDatasetMetadata,
    PuzzleSet,
    require_plain_name,
)
from runtime.errors import DatasetError
from runtime.files import (
    clear_leftovers,
    fsync,
    fsync_tree,
    locked_sibling,
    swap_into_place,
    write_bytes,
)

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
_MAX_UNPROVEN_IDENTIFIERS = 2**16
_MANIFEST_KEYS = frozenset(("command", "seed", "sources", "counts", "files", "sha256"))


# Reading


def load_metadata(split_dir: Path) -> PuzzleDatasetMetadata:
    """Read and check `dataset.json` of one split, such as DIR/train.

    Raises: DatasetError: the folder or file is missing or wrong; names it.
    """
    split_dir = Path(split_dir)
    if not split_dir.is_dir():
        raise DatasetError(f"{split_dir}: no such data set folder")
    path = split_dir / METADATA_NAME
    return PuzzleDatasetMetadata.from_json(read_small_file(path), path)


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
    require_plain_name(set_name)
    paths = _array_paths(split_dir, set_name, metadata)
    arrays = {name: map_array(path) for name, path in paths.items()}
    for name in arrays.keys() - {"inputs", "labels"}:
        arrays[name] = np.array(arrays[name])
    if metadata.format is None:
        field_paths = _field_paths(split_dir, set_name, metadata)
        further = {name: map_array(path) for name, path in field_paths.items()}
        loaded = PuzzleSet(**arrays, fields=further)
        check_set(loaded, metadata, paths, check_values=check_values)
        check_field_shapes(loaded, metadata, field_paths)
        if fields is not None:
            loaded = replace(loaded, fields={name: further[name] for name in fields})
        if check_values:
            check_field_values(loaded, metadata, field_paths)
        return loaded
    path = split_dir.parent / AUGMENTATIONS_NAME
    by_identifier = map_array(path)
    check_augmentations(by_identifier, metadata.num_puzzle_identifiers, path)
    lazy = LazyArcSet(**arrays, fields={}, augmentations=by_identifier[:0])
    check_set(lazy, metadata, paths, check_values=check_values)
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
    check_totals(metadata, sets, split_dir / METADATA_NAME)
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


def _check_manifest(
    split_dir: Path, metadata: PuzzleDatasetMetadata, label_fields: Collection[str]
) -> None:
    path = split_dir.parent / MANIFEST_NAME
    if not path.exists():
        return
    manifest = parse_json_object(read_small_file(path), path)
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise DatasetError(f"{path}: files is {type(listed).__name__}, expected an object")
    # Older ones have no hash of their own.
    own = manifest.pop("sha256", None)
    if not manifest.keys() <= _MANIFEST_KEYS or own not in (None, json_sha256(manifest)):
        raise DatasetError(f"{path}: is not what the build wrote; build the set again")
    beside = [split_dir.parent / name for name in (IDENTIFIERS_NAME, TEST_PUZZLES_NAME)]
    files = [file for file in beside if file.name in listed]
    for file in [*files, *_split_files(split_dir, metadata, label_fields)]:
        expected = listed.get(file.relative_to(split_dir.parent).as_posix())
        if expected is None:
            raise DatasetError(f"{path}: does not list {file}")
        if file_sha256(file) != expected:
            raise DatasetError(f"{file}: its sha256 is not the one in {path}; build the set again")


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
        check_set(arrays, metadata, _array_paths(split_dir, name, metadata), check_values=True)
        field_paths = _field_paths(split_dir, name, metadata)
        if arrays.fields.keys() != field_paths.keys():
            raise DatasetError(
                f"{split_dir}: set {name} has the fields {sorted(arrays.fields)}, announced are"
                f" {sorted(field_paths)}"
            )
        check_field_shapes(arrays, metadata, field_paths)
        check_field_values(arrays, metadata, field_paths)
    check_totals(metadata, sets, split_dir / METADATA_NAME)

    split_dir.mkdir(parents=True, exist_ok=True)
    for name, arrays in sets.items():
        for part, path in _array_paths(split_dir, name, metadata).items():
            write_array(path, getattr(arrays, part), _STORED_DTYPES[part])
        for part, path in _field_paths(split_dir, name, metadata).items():
            write_array(path, arrays.fields[part], np.uint8)
    write_bytes(split_dir / METADATA_NAME, metadata.to_json().encode())
    fsync(split_dir)


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
    check_augmentations(augmentations, len(augmentations), path)
    write_array(path, augmentations, np.uint8)


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
    write_json(directory / MANIFEST_NAME, {**manifest, "sha256": json_sha256(manifest)})


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
    clear_leftovers(output)
    with locked_sibling(output) as temporary:
        try:
            yield temporary
            fsync_tree(temporary)
            _require_replaceable(output)
            swap_into_place(temporary, output)
        finally:
            # Holds the half-built set after an error, the old set after an exchange, else nothing.
            shutil.rmtree(temporary, ignore_errors=True)


def _require_replaceable(output: Path) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise DatasetError(f"{output}: exists and is not a folder")
    marks = (f"train/{METADATA_NAME}", f"test/{METADATA_NAME}", MANIFEST_NAME)
    if any(output.iterdir()) and not any((output / mark).is_file() for mark in marks):
        raise DatasetError(f"{output}: exists and is not a data set; refusing to replace it")


# The files of a split


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
