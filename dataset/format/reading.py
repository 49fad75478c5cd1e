"""Opening built data sets, with checks that the files match each other and the manifest."""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from dataset.dihedral import NUM_VIEWS
from dataset.format import schema
from dataset.format.files import file_sha256, is_folder, json_sha256, map_array, read_json_object
from dataset.format.schema import METADATA_NAME, LazyArcSet, PuzzleDatasetMetadata, PuzzleSet
from runtime.errors import DatasetError, disk_errors

_COLOUR_BITS = sum(1 << colour for colour in range(1, 10))
_VALUES_PER_CHECK = 2**22
_MAX_UNPROVEN_IDENTIFIERS = 2**16
_MANIFEST_KEYS = frozenset(("command", "seed", "sources", "counts", "files", "sha256"))


def load_metadata(split_dir: Path) -> PuzzleDatasetMetadata:
    """Read and check a split's `dataset.json`; raise DatasetError if it is missing or wrong."""
    if not is_folder(split_dir):
        raise DatasetError(f"{split_dir}: no such data set folder")
    return PuzzleDatasetMetadata.read(split_dir / METADATA_NAME)


def parse_names(names: object, source: str | Path) -> list[str]:
    """Check that parsed JSON is a list of names, and return it.

    Raises:
        DatasetError: it is not; the message begins with `source`.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DatasetError(f"{source}: expected a list of names")
    return names


def load_split(
    split_dir: Path, *, fields: Collection[str] | None = None, check_values: bool = True
) -> tuple[PuzzleDatasetMetadata, dict[str, PuzzleSet]]:
    """Open all sets of a split, and check that they match `dataset.json` and the manifest.

    Inputs, labels and fields are mapped read-only; the small arrays are read into memory. File
    sizes, headers, dtypes, shapes, offsets and identifiers are always checked.

    Args:
        split_dir: DIR/train or DIR/test.
        fields: names of the label fields to open (None: all). For the others, only the file's
            size, dtype and shape are checked.
        check_values: also check every token and label, and, if DIR/manifest.json exists, the sha256
            of every file of the split, of identifiers.json and test_puzzles.json, and of the
            manifest itself. This finds any flipped bit.
    Returns:
        (metadata, sets by name).
    Raises:
        DatasetError: names the wrong file, or dataset.json if it does not declare a field.
    """
    metadata, path = load_metadata(split_dir), split_dir / METADATA_NAME
    wanted = metadata.fields if fields is None else fields
    for name in wanted:
        if name not in metadata.fields:
            others = ", ".join(metadata.fields) or "none"
            raise DatasetError(f"{path}: no field {name!r}; declared fields: {others}")
    stored = [name for name in wanted if not metadata.fields[name].derived]
    sets = {
        name: _load_set(split_dir, name, metadata, stored, check_values=check_values)
        for name in metadata.sets
    }
    _check_totals(metadata, sets, path)
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
    _check_shapes(arrays, metadata, paths)
    fields = {name: arrays.pop(name) for name in metadata.fields if name in arrays}
    opened = {name: fields[name] for name in stored}
    for name in arrays.keys() - {"inputs", "labels"}:
        arrays[name] = np.array(arrays[name])
    identifiers, count = arrays["puzzle_identifiers"], metadata.num_puzzle_identifiers
    _check_range(identifiers[:, None], count, None, paths["puzzle_identifiers"], "identifier")
    if metadata.format is None:
        loaded = PuzzleSet(**arrays, fields=opened)
    else:
        path = split_dir.parent / schema.AUGMENTATIONS_NAME
        augmentations = map_array(path)
        _check_augmentations(augmentations, count, path)
        # Keep one row for each puzzle: joining folders renumbers the identifiers.
        loaded = LazyArcSet(**arrays, fields={}, augmentations=augmentations[identifiers])
    _check_offsets(paths, loaded, "puzzle_indices", loaded.num_examples)
    _check_offsets(paths, loaded, "group_indices", loaded.num_puzzles)
    if isinstance(loaded, LazyArcSet):
        _check_sources(loaded, paths)
    if check_values:
        _check_tokens(loaded, metadata, paths)
    return loaded


def fingerprint(split_dir: Path) -> str:
    """Return the sha256 (hex) over `dataset.json` and the files of its sets, in a fixed order.

    For lazy sets it includes `augmentations.npy`. The folder's path and the key `kind` do not
    count, so older sets without this key keep their fingerprint.

    Raises:
        DatasetError: a file is missing or unreadable.
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
    own = manifest.pop("sha256", None)  # Manifests of older versions have none.
    if not manifest.keys() <= _MANIFEST_KEYS or own not in (None, json_sha256(manifest)):
        raise DatasetError(f"{path}: was changed after the build; build the set again")
    beside = (schema.IDENTIFIERS_NAME, schema.TEST_PUZZLES_NAME)
    named = [split_dir.parent / name for name in beside if name in listed]
    for file in [*named, *metadata.files(split_dir, label_fields)]:
        expected = listed.get(file.relative_to(split_dir.parent).as_posix())
        if expected is None:
            raise DatasetError(f"{path}: does not list {file}")
        if file_sha256(file) != expected:
            differs = f"its sha256 differs from the one in {path}"
            raise DatasetError(f"{file}: {differs}; build the set again")


def _check_identifiers_file(split_dir: Path, metadata: PuzzleDatasetMetadata) -> None:
    """Require that identifiers.json is large enough for the declared number of identifiers.

    A model's table has a row for each, so a wrong number could exhaust the memory.
    """
    number, names = metadata.num_puzzle_identifiers, split_dir.parent / schema.IDENTIFIERS_NAME
    with disk_errors(names, DatasetError):
        if number <= _MAX_UNPROVEN_IDENTIFIERS or not names.exists():
            return
        size = names.stat().st_size
    # A list of n names has at least n times `"",` and one bracket.
    if 3 * number + 1 > size:
        found = f"{number}, but {names} has only {size} bytes for their names"
        raise DatasetError(f"{split_dir / METADATA_NAME}: num_puzzle_identifiers is {found}")


def _check_shapes(
    arrays: Mapping[str, np.ndarray], metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    """Check the shapes of a set's arrays, and the dtype of those that must be uint8."""
    sizes = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    rows, puzzles = [sizes["inputs"], metadata.seq_len], sizes["puzzle_identifiers"]
    groups = max(1, sizes["group_indices"]) - 1
    expected = {"inputs": rows, "labels": rows, "puzzle_identifiers": [puzzles]}
    expected |= {"puzzle_indices": [puzzles + 1], "group_indices": [groups + 1]}
    expected |= {"source_indices": [groups + 1], schema.RATINGS: [groups]}
    for name, declared in metadata.fields.items():
        expected[name] = [*rows, declared.channels] if declared.channels else rows
    narrow = {*metadata.fields, *(("inputs", "labels") if metadata.format else ())}
    for name, array in arrays.items():
        if list(array.shape) != expected[name]:
            found = f"shape {list(array.shape)}, expected {expected[name]}"
            raise DatasetError(f"{paths[name]}: {found}")
        if name in narrow and array.dtype != np.uint8:
            raise DatasetError(f"{paths[name]}: dtype {array.dtype}, expected uint8")


def _check_tokens(
    arrays: PuzzleSet, metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    """Check every token, every label, and every value of the open fields."""
    if isinstance(arrays, LazyArcSet):
        _check_canvases(arrays.inputs, paths["inputs"], may_be_empty=False)
        _check_canvases(arrays.labels, paths["labels"], may_be_empty=True)
        return
    vocab_size, ignored = metadata.vocab_size, metadata.ignore_label_id
    _check_range(arrays.inputs, vocab_size, None, paths["inputs"], "token")
    _check_range(arrays.labels, vocab_size, ignored, paths["labels"], "label")
    for name, array in arrays.fields.items():
        rows = array.reshape(len(array), math.prod(array.shape[1:]))
        _check_range(rows, metadata.fields[name].num_classes, None, paths[name], "value")


def _check_augmentations(rows: np.ndarray, count: int, path: Path) -> None:
    """Require uint8 [count, 10]: each row is a view and then 1 to 9 in any order."""
    if rows.dtype != np.uint8 or rows.shape != (count, 10):
        raise DatasetError(f"{path}: {rows.dtype} {list(rows.shape)}, expected uint8 {[count, 10]}")
    # A bit shifted by more than 15 is lost, so a bit is missing then too.
    bits = np.bitwise_or.reduce(np.left_shift(1, rows[:, 1:], dtype=np.uint16), axis=1)
    wrong = (rows[:, 0] >= NUM_VIEWS) | (bits != _COLOUR_BITS)
    if wrong.any():
        row = int(wrong.argmax())
        expected = f"a view, 0 to {NUM_VIEWS - 1}, and the colours 1 to 9 in any order"
        raise DatasetError(f"{path}: {rows[row].tolist()} in row {row}, expected {expected}")


def _check_totals(
    metadata: PuzzleDatasetMetadata, sets: Mapping[str, PuzzleSet], path: Path
) -> None:
    """Raise DatasetError if a total in `dataset.json`, at `path`, differs from the sets."""
    groups, puzzles, examples = (
        sum(getattr(arrays, f"num_{what}") for arrays in sets.values())
        for what in ("groups", "puzzles", "examples")
    )
    mean = examples / max(1, puzzles)
    for name, accepted in (
        ("total_groups", (groups,)),
        ("total_puzzles", (puzzles, groups, None)),  # TRM's builders write the number of groups.
        ("mean_puzzle_examples", (mean,)),
    ):
        found = getattr(metadata, name)
        # The schedule's length depends on the mean; 1 % is the tolerance for manual rounding.
        close = puzzles == 0 or math.isclose(found or 0, mean, rel_tol=0.01)
        if found not in accepted and not (name == "mean_puzzle_examples" and close):
            raise DatasetError(f"{path}: {name} is {found}, but the sets have {accepted[0]:.10g}")


def _check_sources(arrays: LazyArcSet, paths: Mapping[str, Path]) -> None:
    _check_offsets(paths, arrays, "source_indices", len(arrays.inputs))
    stored = np.repeat(np.diff(arrays.source_indices), np.diff(arrays.group_indices))
    sizes = np.diff(arrays.puzzle_indices)
    wrong = np.flatnonzero(sizes != stored)
    if wrong.size:
        puzzle = int(wrong[0])
        found = f"puzzle {puzzle} has {int(sizes[puzzle])} examples"
        expected = f"its group has {int(stored[puzzle])} stored ones"
        raise DatasetError(f"{paths['puzzle_indices']}: {found}, but {expected}")


def _check_canvases(rows: np.ndarray, path: Path, *, may_be_empty: bool) -> None:
    """Require a grid with its border in the top left corner of each row."""
    step = _VALUES_PER_CHECK // rows.shape[1]
    for start in range(0, len(rows), step):
        piece = rows[start : start + step].reshape(-1, schema.ARC_SIDE, schema.ARC_SIDE)
        is_colour = piece >= schema.ARC_FIRST_COLOUR_TOKEN
        heights = is_colour[:, :, 0].cumprod(axis=1).sum(axis=1)[:, None, None]
        widths = is_colour[:, 0].cumprod(axis=1).sum(axis=1)[:, None, None]
        row, column = np.ogrid[: schema.ARC_SIDE, : schema.ARC_SIDE]
        above, left = row < heights, column < widths
        border = ((row == heights) & left) | (above & (column == widths))
        good = (is_colour == (above & left)) & ((piece == schema.ARC_BORDER_TOKEN) == border)
        good &= piece < schema.ARC_VOCAB_SIZE
        good &= may_be_empty | (heights > 0)
        wrong = np.flatnonzero(~good.all(axis=(1, 2)))
        if wrong.size:
            expected = "expected one grid with its border in the top left corner"
            raise DatasetError(f"{path}: row {start + int(wrong[0])} is wrong; {expected}")


def _check_offsets(paths: Mapping[str, Path], arrays: PuzzleSet, name: str, end: int) -> None:
    """Require offsets that start at 0, ascend and end at `end`, the number of items."""
    offsets, problem = getattr(arrays, name), None
    # Equal offsets would be a puzzle without examples, or a group without puzzles.
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if offsets[0] != 0:
        problem = f"start at 0, found {int(offsets[0])}"
    elif falls.size:
        row = int(falls[0])
        found = f"{int(offsets[row])} and then {int(offsets[row + 1])}"
        problem = f"ascend, found {found} at row {row + 1}"
    elif offsets[-1] != end:
        problem = f"end at {end}, found {int(offsets[-1])}"
    if problem:
        raise DatasetError(f"{paths[name]}: offsets must {problem}")


def _check_range(
    rows: np.ndarray, limit: int, also_allowed: int | None, path: Path, what: str
) -> None:
    """Require 0 <= value < limit or value == also_allowed in `rows` [n, width], in chunks."""
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
