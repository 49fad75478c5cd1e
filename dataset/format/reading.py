"""Open built data sets, and check that their files agree with each other and the manifest."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataset.format import checks, schema
from dataset.format.files import file_sha256, json_sha256, map_array, read_json_object
from dataset.format.schema import METADATA_NAME, LazyArcSet, PuzzleDatasetMetadata, PuzzleSet
from runtime.errors import DatasetError, disk_errors

_MAX_UNPROVEN_IDENTIFIERS = 2**16
_MANIFEST_KEYS = frozenset(("command", "seed", "sources", "counts", "files", "sha256"))


def load_metadata(split_dir: Path) -> PuzzleDatasetMetadata:
    """Read and check `dataset.json` of one split.

    Raises:
        DatasetError: the folder or file is missing or wrong; names it.
    """
    if not split_dir.is_dir():
        raise DatasetError(f"{split_dir}: no such data set folder")
    return PuzzleDatasetMetadata.read(split_dir / METADATA_NAME)


def load_split(
    split_dir: Path, *, fields: Collection[str] | None = None, check_values: bool = True
) -> tuple[PuzzleDatasetMetadata, dict[str, PuzzleSet]]:
    """Open all sets of a split, and check that they agree with `dataset.json` and the manifest.

    Inputs, labels and fields are mapped read-only, the small arrays are in memory. File sizes,
    headers, dtypes, shapes, offsets and identifiers are always checked.

    Args:
        split_dir: DIR/train or DIR/test.
        fields: the further labels to open, by name (None: all). Of the others only the file's size,
            dtype and shape are checked.
        check_values: also read every token and label once, and, where DIR/manifest.json exists,
            compare the sha256 of every file of the split, of the files of names and tasks beside it
            and of the manifest itself: then no flipped bit goes unseen.
    Returns:
        (what dataset.json says, the sets by name).
    Raises:
        DatasetError: names the file at fault, or dataset.json where it declares no such field.
    """
    metadata, path = load_metadata(split_dir), split_dir / METADATA_NAME
    wanted = metadata.fields if fields is None else fields
    for name in wanted:
        if name not in metadata.fields:
            others = ", ".join(metadata.fields) or "none"
            raise DatasetError(f"{path}: declares no field {name!r}, but {others}")
    stored = [name for name in wanted if not metadata.fields[name].derived]
    sets = {
        name: _load_set(split_dir, name, metadata, stored, check_values=check_values)
        for name in metadata.sets
    }
    checks.check_totals(metadata, sets, path)
    _check_identifiers_file(split_dir, metadata)
    if check_values:
        _check_manifest(split_dir, metadata, stored)
    return metadata, sets


def _load_set(
    split_dir: Path,
    set_name: str,
    metadata: PuzzleDatasetMetadata,
    stored: Collection[str],
    *,
    check_values: bool,
) -> PuzzleSet:
    paths = metadata.array_paths(split_dir, set_name)
    arrays = {name: map_array(path) for name, path in paths.items()}
    checks.check_shapes(arrays, metadata, paths)
    fields = {name: arrays.pop(name) for name in metadata.fields if name in arrays}
    opened = {name: fields[name] for name in stored}
    for name in arrays.keys() - {"inputs", "labels"}:
        arrays[name] = np.array(arrays[name])
    if metadata.format is None:
        loaded = PuzzleSet(**arrays, fields=opened)
        checks.check_set(loaded, metadata, paths)
    else:
        path = split_dir.parent / schema.AUGMENTATIONS_NAME
        by_identifier = map_array(path)
        checks.check_augmentations(by_identifier, metadata.num_puzzle_identifiers, path)
        loaded = LazyArcSet(**arrays, fields={}, augmentations=by_identifier[:0])
        checks.check_set(loaded, metadata, paths)
        # One row for each puzzle: the identifiers of several folders are renumbered when they join.
        loaded = replace(loaded, augmentations=by_identifier[loaded.puzzle_identifiers])
    if check_values:
        checks.check_values(loaded, metadata, paths)
    return loaded


def fingerprint(split_dir: Path) -> str:
    """sha256 (hex) over `dataset.json` and the files of its sets, in the order that it gives.

    Of a lazy set, `augmentations.npy` beside the split counts too; neither the folder's path nor
    the kind of the puzzles does: a set is the same as before it said its kind.

    Raises:
        DatasetError: a file is missing or unreadable; names it.
    """
    total = hashlib.sha256()
    for path in load_metadata(split_dir).files(split_dir):
        digest = file_sha256(path)
        if path.name == METADATA_NAME:
            values = read_json_object(path)
            if values.pop("kind", None) is not None:
                digest = hashlib.sha256(f"{json.dumps(values, indent=2)}\n".encode()).hexdigest()
        total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()


def _check_manifest(
    split_dir: Path, metadata: PuzzleDatasetMetadata, label_fields: Collection[str]
) -> None:
    path = split_dir.parent / schema.MANIFEST_NAME
    with disk_errors(path, DatasetError):
        if not path.exists():
            return
    manifest = read_json_object(path)
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise DatasetError(f"{path}: files is {type(listed).__name__}, expected an object")
    # Older ones have no hash of their own.
    own = manifest.pop("sha256", None)
    if not manifest.keys() <= _MANIFEST_KEYS or own not in (None, json_sha256(manifest)):
        raise DatasetError(f"{path}: is not what the build wrote; build the set again")
    beside = (schema.IDENTIFIERS_NAME, schema.TEST_PUZZLES_NAME)
    named = [split_dir.parent / name for name in beside if name in listed]
    for file in [*named, *metadata.files(split_dir, label_fields)]:
        expected = listed.get(file.relative_to(split_dir.parent).as_posix())
        if expected is None:
            raise DatasetError(f"{path}: does not list {file}")
        if file_sha256(file) != expected:
            raise DatasetError(f"{file}: its sha256 is not the one in {path}; build the set again")


def _check_identifiers_file(split_dir: Path, metadata: PuzzleDatasetMetadata) -> None:
    """Require that the file of names, if any, is long enough for many identifiers: each will have a
    row in a model's table.
    """
    number, names = metadata.num_puzzle_identifiers, split_dir.parent / schema.IDENTIFIERS_NAME
    with disk_errors(names, DatasetError):
        if number <= _MAX_UNPROVEN_IDENTIFIERS or not names.exists():
            return
        size = names.stat().st_size
    # A list of n names is at least n times `"",` and one bracket.
    if 3 * number + 1 > size:
        found = f"{number}, but {names} has only {size} bytes for their names"
        raise DatasetError(f"{split_dir / METADATA_NAME}: num_puzzle_identifiers is {found}")
