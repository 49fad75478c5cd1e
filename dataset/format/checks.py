"""What must hold of a set's arrays, so that whoever reads them need not look again."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from dataset.dihedral import NUM_VIEWS
from dataset.format.schema import (
    ARC_BORDER_TOKEN,
    ARC_FIRST_COLOUR_TOKEN,
    ARC_SIDE,
    LAZY_ARC_FACTS,
    LazyArcSet,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
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
    """Check dtypes, shapes, offsets and identifiers; with `check_values` every token and label.

    Args:
        arrays: what was read or shall be written.
        metadata: what dataset.json says.
        paths: the file of each array, for the messages.
        check_values: whether every token and label is read.
    Raises:
        DatasetError: the first thing that is wrong, with the file, row and value.
    """
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


def check_fields(
    arrays: PuzzleSet,
    metadata: PuzzleDatasetMetadata,
    paths: Mapping[str, Path],
    *,
    check_values: Collection[str],
) -> None:
    """Check dtype and shape of the further labels, and every value of some.

    Args:
        arrays: with the fields that `paths` has.
        metadata: declares them.
        paths: the file of each field, for the messages.
        check_values: names of the fields whose values are read.
    Raises:
        DatasetError: the first thing that is wrong, with the file, row and value.
    """
    for name, path in paths.items():
        declared, array = metadata.fields[name], arrays.fields[name]
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
    """Require uint8 [count, 10], a view and a permutation of 1 to 9 in each row.

    Raises:
        DatasetError: names the row.
    """
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
    """Compare the totals of the metadata with the sets.

    Raises:
        DatasetError: they differ; names `path`.
    """
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
        good &= piece < LAZY_ARC_FACTS["vocab_size"]
        good &= may_be_empty | (heights > 0)
        wrong = np.flatnonzero(~good.all(axis=(1, 2)))
        if wrong.size:
            raise DatasetError(
                f"{path}: row {start + int(wrong[0])} is no grid in the top left corner with its"
                " border"
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
