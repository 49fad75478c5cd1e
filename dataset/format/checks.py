"""What must hold of a set's arrays, so that whoever reads them need not look again."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from dataset.dihedral import NUM_VIEWS
from dataset.format import schema
from dataset.format.schema import LazyArcSet, PuzzleDatasetMetadata, PuzzleSet
from runtime.errors import DatasetError

_COLOUR_BITS = sum(1 << colour for colour in range(1, 10))
_VALUES_PER_CHECK = 2**22


def check_set(
    arrays: PuzzleSet,
    metadata: PuzzleDatasetMetadata,
    paths: Mapping[str, Path],
    *,
    check_values: bool,
) -> None:
    """Check shapes, offsets and identifiers of integers; with `check_values` all tokens and labels.

    Raises:
        DatasetError: the first thing that is wrong, with the file of `paths`, row and value.
    """
    for name, path in paths.items():
        num_dims = 2 if name in ("inputs", "labels") else 1
        if name not in arrays.fields and getattr(arrays, name).ndim != num_dims:
            shape = list(getattr(arrays, name).shape)
            raise DatasetError(f"{path}: shape {shape}, expected {num_dims} dimension(s)")
    shape, of_labels = list(arrays.inputs.shape), list(arrays.labels.shape)
    if shape[1] != metadata.seq_len:
        cells = f"{shape[1]} cells a row, but seq_len is {metadata.seq_len}"
        raise DatasetError(f"{paths['inputs']}: {cells}")
    if of_labels != shape:
        raise DatasetError(f"{paths['labels']}: shape {of_labels}, but inputs have {shape}")
    _check_offsets(paths, arrays, "puzzle_indices", arrays.num_examples, arrays.num_puzzles)
    _check_offsets(paths, arrays, "group_indices", arrays.num_puzzles, None)
    if arrays.ratings is not None and len(arrays.ratings) != arrays.num_groups:
        found = f"{len(arrays.ratings)} ratings for {arrays.num_groups} groups"
        raise DatasetError(f"{paths[schema.RATINGS]}: {found}")
    identifiers, path = arrays.puzzle_identifiers[:, None], paths["puzzle_identifiers"]
    _check_range(identifiers, metadata.num_puzzle_identifiers, None, path, "identifier")
    if isinstance(arrays, LazyArcSet):
        _check_sources(arrays, paths)
        if check_values:
            _check_canvases(arrays.inputs, paths["inputs"], may_be_empty=False)
            _check_canvases(arrays.labels, paths["labels"], may_be_empty=True)
    elif check_values:
        vocab_size, ignored = metadata.vocab_size, metadata.ignore_label_id
        _check_range(arrays.inputs, vocab_size, None, paths["inputs"], "token")
        _check_range(arrays.labels, vocab_size, ignored, paths["labels"], "label")


def check_fields(
    arrays: PuzzleSet,
    metadata: PuzzleDatasetMetadata,
    paths: Mapping[str, Path],
    *,
    check_values: Collection[str],
) -> None:
    """Check dtype and shape of the further labels, and every value of those in `check_values`.

    Raises:
        DatasetError: the first thing that is wrong, with the file of `paths`, the row and value.
    """
    for name, array in arrays.fields.items():
        declared, path = metadata.fields[name], paths[name]
        if array.dtype != np.uint8:
            raise DatasetError(f"{path}: dtype {array.dtype}, expected uint8")
        channels = [declared.channels] if declared.channels else []
        expected = [arrays.num_examples, metadata.seq_len, *channels]
        if list(array.shape) != expected:
            raise DatasetError(f"{path}: shape {list(array.shape)}, expected {expected}")
        if name in check_values:
            rows = array.reshape(len(array), math.prod(array.shape[1:]))
            _check_range(rows, declared.num_classes, None, path, "value")


def check_augmentations(rows: np.ndarray, count: int, path: Path) -> None:
    """Raise DatasetError unless `rows` are uint8 [count, 10], a view and 1 to 9; names the row."""
    if rows.dtype != np.uint8 or rows.shape != (count, 10):
        raise DatasetError(f"{path}: {rows.dtype} {list(rows.shape)}, expected uint8 {[count, 10]}")
    # Shifted by more than 15 a bit falls out of uint16: then one is missing too.
    bits = np.bitwise_or.reduce(np.left_shift(1, rows[:, 1:], dtype=np.uint16), axis=1)
    for wrong, what, expected in (
        (rows[:, 0] >= NUM_VIEWS, "view {0[0]}", f"0 to {NUM_VIEWS - 1}"),
        (bits != _COLOUR_BITS, "colours {1}", "1 to 9 in any order"),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            found = what.format(rows[row], rows[row, 1:].tolist())
            raise DatasetError(f"{path}: {found} in row {row}, expected {expected}")


def check_totals(
    metadata: PuzzleDatasetMetadata, sets: Mapping[str, PuzzleSet], path: Path
) -> None:
    """Raise DatasetError, naming `path`, where the metadata's totals are not those of the sets."""
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
        # The schedule's length comes from the mean; 1 % leaves room for one rounded by hand.
        close = puzzles == 0 or math.isclose(found or 0, mean, rel_tol=0.01)
        if found not in accepted and not (name == "mean_puzzle_examples" and close):
            raise DatasetError(f"{path}: {name} is {found}, the sets hold {accepted[0]:.10g}")


def _check_sources(arrays: LazyArcSet, paths: Mapping[str, Path]) -> None:
    for name in ("inputs", "labels"):
        dtype = getattr(arrays, name).dtype
        if dtype != np.uint8:
            raise DatasetError(f"{paths[name]}: dtype {dtype}, expected uint8")
    _check_offsets(paths, arrays, "source_indices", len(arrays.inputs), arrays.num_groups)
    stored = np.repeat(np.diff(arrays.source_indices), np.diff(arrays.group_indices))
    sizes = np.diff(arrays.puzzle_indices)
    wrong = np.flatnonzero(sizes != stored)
    if wrong.size:
        puzzle = int(wrong[0])
        found = f"puzzle {puzzle} has {int(sizes[puzzle])} examples"
        expected = f"its group has {int(stored[puzzle])} stored ones"
        raise DatasetError(f"{paths['puzzle_indices']}: {found}, but {expected}")


def _check_canvases(rows: np.ndarray, path: Path, *, may_be_empty: bool) -> None:
    """Require one grid in the top left corner of each row, and its border."""
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
            what = "is no grid in the top left corner with its border"
            raise DatasetError(f"{path}: row {start + int(wrong[0])} {what}")


def _check_offsets(
    paths: Mapping[str, Path], arrays: PuzzleSet, name: str, end: int, owners: int | None
) -> None:
    """Require offsets of each owner's first item, which end at the number of items."""
    offsets, problem = getattr(arrays, name), None
    # A puzzle without examples or a group without puzzles could not be drawn.
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if len(offsets) == 0 or offsets[0] != 0:
        problem = f"start at 0, found {offsets[:1].tolist()}"
    elif falls.size:
        row = int(falls[0])
        found = f"{int(offsets[row])} and then {int(offsets[row + 1])}"
        problem = f"ascend, found {found} at row {row + 1}"
    elif offsets[-1] != end:
        problem = f"end at {end}, found {int(offsets[-1])}"
    elif owners is not None and len(offsets) != owners + 1:
        problem = f"be {owners + 1}, found {len(offsets)}"
    if problem:
        raise DatasetError(f"{paths[name]}: offsets must {problem}")


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
