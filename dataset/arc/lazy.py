"""Readers of lazy ARC sets, which augment the stored pairs when a batch is drawn.

`dataset.format.schema.LazyArcSet` stores every pair once, in the top left corner of its canvas.
Compiled code recolours, turns and moves it into the row that the published builder would write.
"""

from math import isqrt

import numpy as np

from dataset.compiled import compiled
from dataset.format import schema
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_PALETTE, LazyArcSet
from runtime.streams import Stream, random_words

# Constants of the kernels must be defined in this file: see `dataset.compiled`.
_BORDER, _FIRST_COLOUR = 1, 2
assert (_BORDER, _FIRST_COLOUR) == (schema.ARC_BORDER_TOKEN, ARC_FIRST_COLOUR_TOKEN)

# By view: 1 if its first cell is in the last stored row, 1 if it is in the last stored column, and
# the steps, in stored rows and columns, to the cell below and to the cell on the right.
_STEPS = (
    *((0, 0, 1, 0, 0, 1), (0, 1, 0, -1, 1, 0), (1, 1, -1, 0, 0, -1), (1, 0, 0, 1, -1, 0)),
    *((0, 1, 1, 0, 0, -1), (1, 0, -1, 0, 0, 1), (0, 0, 0, 1, 1, 0), (1, 1, 0, -1, -1, 0)),
)

# Red, green and blue by token; unknown for padding and border.
_PIXELS = np.full((ARC_FIRST_COLOUR_TOKEN + len(ARC_PALETTE), 3), schema.IGNORE_LABEL_ID, np.int32)
_PIXELS[ARC_FIRST_COLOUR_TOKEN:] = [list(bytes.fromhex(colour[1:])) for colour in ARC_PALETTE]


def read_rows(
    arrays: LazyArcSet, rows: np.ndarray | slice, shifts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as a batch: (inputs, labels), int32 [b, S]; labels are -100 in the padding.

    Args:
        rows: the examples, numbered as in `arrays.puzzle_indices`: int64 [b], or a slice of step 1.
        shifts: uint64 [b] random words. The high half chooses the row and the low half the column
            where both grids begin, uniformly among the places that fit both. 0 or None: top left.
    """
    chosen = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    shape = (len(chosen), arrays.inputs.shape[1])
    inputs = np.zeros(shape, dtype=np.int32)
    labels = np.full(shape, schema.IGNORE_LABEL_ID, dtype=np.int32)
    draw_rows(arrays, chosen, shifts, inputs, labels)
    return inputs, labels


def draw_rows(
    arrays: LazyArcSet,
    rows: np.ndarray,
    shifts: np.ndarray | None,
    inputs: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Draw grids and borders onto the canvases `inputs` and `labels`, [b, S] of any integer type.

    For `rows`, int64 [b], and `shifts` see `read_rows`.
    """
    # With another dtype, searchsorted would convert all offsets at every call.
    rows = rows.astype(arrays.puzzle_indices.dtype, copy=False)
    puzzles = np.searchsorted(arrays.puzzle_indices, rows, side="right") - 1
    groups = np.searchsorted(arrays.group_indices, puzzles, side="right") - 1
    stored = arrays.source_indices[groups] + (rows - arrays.puzzle_indices[puzzles])
    if shifts is None:
        shifts = np.zeros(len(rows), dtype=np.uint64)
    grids, answers = arrays.inputs[stored], arrays.labels[stored]
    side = isqrt(arrays.inputs.shape[1])
    _draw(grids, answers, side, arrays.augmentations[puzzles], shifts, inputs, labels)


def colour_pixels(labels: np.ndarray) -> np.ndarray:
    """Return the field `pixels`: red, green and blue of each cell, int32 [b, cells, 3].

    `labels` are ARC tokens or -100, integer [b, cells]. Cells without a colour become -100.
    """
    return np.take(_PIXELS, labels, axis=0, mode="clip")


def unshifted_rows(arrays: LazyArcSet, seed: int) -> np.ndarray:
    """Choose one example of each puzzle that is never shifted; return int64 [puzzles], ascending.

    The published builder does so too, so a puzzle with one example never moves. The choice depends
    only on the seed and the puzzle's identifier.
    """
    identifiers = arrays.puzzle_identifiers
    num_words = int(identifiers.max(initial=-1)) + 1
    words = random_words(seed, Stream.ARC_UNSHIFTED, (0, 0, 0, 0), num_words)
    starts = arrays.puzzle_indices[:-1].astype(np.int64)
    sizes = np.diff(arrays.puzzle_indices).astype(np.uint64)
    half = np.uint64(32)
    return starts + (((words[identifiers] >> half) * sizes) >> half).astype(np.int64)


@compiled
def _draw(stored_inputs, stored_labels, side, augmentations, shifts, inputs, labels):
    for row in range(len(stored_inputs)):
        view = augmentations[row, 0]
        height_in, width_in = _sides(stored_inputs[row], side)
        height_out, width_out = _sides(stored_labels[row], side)
        height, width = max(height_in, height_out), max(width_in, width_out)
        if view in (1, 3, 6, 7):
            height, width = width, height
        # A half word times the number of choices, divided by 2**32.
        half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
        top = np.int64(((shifts[row] >> half) * np.uint64(side - height + 1)) >> half)
        left = np.int64(((shifts[row] & mask) * np.uint64(side - width + 1)) >> half)
        colours = augmentations[row]
        place = side, top, left
        _place(stored_inputs[row], height_in, width_in, view, colours, place, inputs[row])
        _place(stored_labels[row], height_out, width_out, view, colours, place, labels[row])


@compiled
def _sides(canvas, side):
    height = 0
    while height < side and canvas[height * side] >= _FIRST_COLOUR:
        height += 1
    width = 0
    while width < side and canvas[width] >= _FIRST_COLOUR:
        width += 1
    return height, width


@compiled
def _place(stored, height, width, view, colours, place, canvas):
    if height == 0:
        return
    side, top, left = place
    last_row, last_column, row_down, column_down, row_right, column_right = _STEPS[view]
    down, right = row_down * side + column_down, row_right * side + column_right
    first = last_row * (height - 1) * side + last_column * (width - 1)
    if view in (1, 3, 6, 7):
        height, width = width, height

    for r in range(height):
        source, target = first + r * down, (top + r) * side + left
        for c in range(width):
            token = stored[source]
            # colours[0] is the view; colour 0 (token 2) never changes.
            if token > _FIRST_COLOUR:
                token = colours[token - _FIRST_COLOUR] + _FIRST_COLOUR
            canvas[target + c] = token
            source += right
        if left + width < side:
            canvas[target + width] = _BORDER
    if top + height < side:
        target = (top + height) * side + left
        for c in range(width):
            canvas[target + c] = _BORDER
