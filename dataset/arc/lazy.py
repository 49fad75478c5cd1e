"""Rows of lazy ARC sets: the stored pair recoloured, viewed, and moved on the canvas.

`dataset.format.schema.LazyArcSet` keeps every pair once, in the top left corner of its canvas. Here
it is turned, by compiled code, into the row that the published builder would have written.
"""

import numpy as np

from dataset.compiled import compiled
from dataset.format import schema
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_PALETTE, ARC_SIDE, LazyArcSet
from runtime.streams import Stream, random_words

# The kernels freeze these, so they are defined in this file: see `dataset.compiled`.
_SIDE, _BORDER, _FIRST_COLOUR = 30, 1, 2
assert (_SIDE, _FIRST_COLOUR) == (ARC_SIDE, ARC_FIRST_COLOUR_TOKEN)
assert _BORDER == schema.ARC_BORDER_TOKEN

# By view: whether its first cell is in the last stored row, and column, and how far away the stored
# cells are that come below and to the right.
_STEPS = (
    *((0, 0, _SIDE, 1), (0, 1, -1, _SIDE), (1, 1, -_SIDE, -1), (1, 0, 1, -_SIDE)),
    *((0, 1, _SIDE, -1), (1, 0, -_SIDE, 1), (0, 0, 1, _SIDE), (1, 1, -1, -_SIDE)),
)

# By token; those of padding and border are unknown.
_PIXELS = np.full((ARC_FIRST_COLOUR_TOKEN + len(ARC_PALETTE), 3), schema.IGNORE_LABEL_ID, np.int32)
_PIXELS[ARC_FIRST_COLOUR_TOKEN:] = [list(bytes.fromhex(colour[1:])) for colour in ARC_PALETTE]


def read_rows(
    arrays: LazyArcSet, rows: np.ndarray | slice, shifts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Make rows for a batch, the padding of the labels ignored.

    Args:
        rows: int64 [b], or a slice of step 1, of the examples that `arrays.puzzle_indices` counts.
        shifts: uint64 [b] random words; the high and the low half choose the row and the column
            where both grids begin, uniformly among those that fit both. 0, as None: top left.
    Returns:
        (inputs, labels), int32 [b, 900]; labels are -100 outside the grid and its border.
    """
    chosen = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    inputs = np.zeros((len(chosen), ARC_SIDE * ARC_SIDE), dtype=np.int32)
    labels = np.full((len(chosen), ARC_SIDE * ARC_SIDE), schema.IGNORE_LABEL_ID, dtype=np.int32)
    draw_rows(arrays, chosen, shifts, inputs, labels)
    return inputs, labels


def draw_rows(
    arrays: LazyArcSet,
    rows: np.ndarray,
    shifts: np.ndarray | None,
    inputs: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Draw grids and borders onto canvases `inputs` and `labels`, [b, 900] of any integer type;
    rows, int64 [b], and shifts as for `read_rows`.
    """
    # Of another type, the rows would have all the offsets converted for them, at every call.
    rows = rows.astype(arrays.puzzle_indices.dtype, copy=False)
    puzzles = np.searchsorted(arrays.puzzle_indices, rows, side="right") - 1
    groups = np.searchsorted(arrays.group_indices, puzzles, side="right") - 1
    stored = arrays.source_indices[groups] + (rows - arrays.puzzle_indices[puzzles])
    if shifts is None:
        shifts = np.zeros(len(rows), dtype=np.uint64)
    grids, answers = arrays.inputs[stored], arrays.labels[stored]
    _draw(grids, answers, arrays.augmentations[puzzles], shifts, inputs, labels)


def colour_pixels(labels: np.ndarray) -> np.ndarray:
    """Return red, green and blue of each cell's colour, the field `pixels`.

    Args:
        labels: integer [b, cells] tokens of ARC, or -100.
    Returns:
        int32 [b, cells, 3], 0 to 255; -100 where the token is no colour.
    """
    return np.take(_PIXELS, labels, axis=0, mode="clip")


def unshifted_rows(arrays: LazyArcSet, seed: int) -> np.ndarray:
    """Choose the example of each puzzle that is never shifted; int64 [puzzles], ascending rows.

    One of each, as in the published builder: so a puzzle with one example never moves. The choice
    depends on the seed and the puzzle's identifier alone.
    """
    identifiers = arrays.puzzle_identifiers
    num_words = int(identifiers.max(initial=-1)) + 1
    words = random_words(seed, Stream.ARC_UNSHIFTED, (0, 0, 0, 0), num_words)
    starts = arrays.puzzle_indices[:-1].astype(np.int64)
    sizes = np.diff(arrays.puzzle_indices).astype(np.uint64)
    half = np.uint64(32)
    return starts + (((words[identifiers] >> half) * sizes) >> half).astype(np.int64)


@compiled
def _draw(stored_inputs, stored_labels, augmentations, shifts, inputs, labels):
    for row in range(len(stored_inputs)):
        view = augmentations[row, 0]
        height_in, width_in = _sides(stored_inputs[row])
        height_out, width_out = _sides(stored_labels[row])
        height, width = max(height_in, height_out), max(width_in, width_out)
        if view in (1, 3, 6, 7):
            height, width = width, height
        # The half of the word, times the number of choices, over 2**32.
        half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
        top = np.int64(((shifts[row] >> half) * np.uint64(_SIDE - height + 1)) >> half)
        left = np.int64(((shifts[row] & mask) * np.uint64(_SIDE - width + 1)) >> half)
        colours = augmentations[row]
        _place(stored_inputs[row], height_in, width_in, view, colours, top, left, inputs[row])
        _place(stored_labels[row], height_out, width_out, view, colours, top, left, labels[row])


@compiled
def _sides(canvas):
    height = 0
    while height < _SIDE and canvas[height * _SIDE] >= _FIRST_COLOUR:
        height += 1
    width = 0
    while width < _SIDE and canvas[width] >= _FIRST_COLOUR:
        width += 1
    return height, width


@compiled
def _place(stored, height, width, view, colours, top, left, canvas):
    if height == 0:
        return
    last_row, last_column, down, right = _STEPS[view]
    first = last_row * (height - 1) * _SIDE + last_column * (width - 1)
    if view in (1, 3, 6, 7):
        height, width = width, height

    for r in range(height):
        source, target = first + r * down, (top + r) * _SIDE + left
        for c in range(width):
            token = stored[source]
            # colours[0] is the view; colour 0, token 2, stays.
            if token > _FIRST_COLOUR:
                token = colours[token - _FIRST_COLOUR] + _FIRST_COLOUR
            canvas[target + c] = token
            source += right
        if left + width < _SIDE:
            canvas[target + width] = _BORDER
    if top + height < _SIDE:
        target = (top + height) * _SIDE + left
        for c in range(width):
            canvas[target + c] = _BORDER
