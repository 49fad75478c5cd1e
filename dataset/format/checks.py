"""What must hold of a set's arrays, so that whoever reads them need not look again."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dataset.dihedral import NUM_VIEWS
from dataset.format import schema
from dataset.format.schema import LazyArcSet, PuzzleDatasetMetadata, PuzzleSet
from runtime.errors import DatasetError

_COLOUR_BITS = sum(1 << colour for colour in range(1, 10))
_VALUES_PER_CHECK = 2**22


def check_shapes(
    arrays: Mapping[str, np.ndarray], metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    """Check the shapes of a set's arrays, and the dtypes that are not free.

    Raises:
        DatasetError: the first thing that is wrong, with the file of `paths`.
    """
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


def check_set(
    arrays: PuzzleSet, metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    """Check offsets and identifiers of arrays that have the right shapes.

    Raises:
        DatasetError: the first thing that is wrong, with the file of `paths`, row and value.
    """
    _check_offsets(paths, arrays, "puzzle_indices", arrays.num_examples)
    _check_offsets(paths, arrays, "group_indices", arrays.num_puzzles)
    identifiers, path = arrays.puzzle_identifiers[:, None], paths["puzzle_identifiers"]
    _check_range(identifiers, metadata.num_puzzle_identifiers, None, path, "identifier")
    if isinstance(arrays, LazyArcSet):
        _check_sources(arrays, paths)


def check_values(
    arrays: PuzzleSet, metadata: PuzzleDatasetMetadata, paths: Mapping[str, Path]
) -> None:
    """Check every token, every label, and every value of the fields that are open; raise as
    `check_set`.
    """
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


def check_augmentations(rows: np.ndarray, count: int, path: Path) -> None:
    """Raise DatasetError unless `rows` are uint8 [count, 10], a view and 1 to 9; names the row."""
    if rows.dtype != np.uint8 or rows.shape != (count, 10):
        raise DatasetError(f"{path}: {rows.dtype} {list(rows.shape)}, expected uint8 {[count, 10]}")
    # Shifted by more than 15 a bit falls out of uint16: then one is missing too.
    bits = np.bitwise_or.reduce(np.left_shift(1, rows[:, 1:], dtype=np.uint16), axis=1)
    wrong = (rows[:, 0] >= NUM_VIEWS) | (bits != _COLOUR_BITS)
    if wrong.any():
        row = int(wrong.argmax())
        expected = f"a view, 0 to {NUM_VIEWS - 1}, and the colours 1 to 9 in any order"
        raise DatasetError(f"{path}: {rows[row].tolist()} in row {row}, expected {expected}")


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


def _check_offsets(paths: Mapping[str, Path], arrays: PuzzleSet, name: str, end: int) -> None:
    """Require offsets of each owner's first item, which end at the number of items."""
    offsets, problem = getattr(arrays, name), None
    # A puzzle without examples or a group without puzzles could not be drawn.
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
