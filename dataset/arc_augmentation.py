"""The augmentations of ARC tasks: eight views of a grid, permutations of its colours, and the names
that say which of them a puzzle is.

A name is "TASK|||t3|||0192837465": the view's number, then the new colour of each old one, 0 to 9.
Colour 0 stays itself. An older form has "_" where this one has "|||".
"""

import re

import numpy as np

NUM_VIEWS = 8
"""0 to 3 are quarter turns counter-clockwise, 4 flips left-right, 5 up-down, 6 transposes, 7 is a
quarter turn counter-clockwise and then a left-right flip."""

INVERSE_VIEWS = (0, 3, 2, 1, 4, 5, 6, 7)
"""The view that undoes each view."""

_IDENTITY = np.arange(10, dtype=np.uint8)
_NAME = re.compile(r"(.+?)(?:\|\|\|t([0-9]+)\|\|\||_t([0-9]+)_)([0-9]+)", re.DOTALL)


def view_grid(grid: np.ndarray, view: int) -> np.ndarray:
    """Turn or flip a grid [h, w]; a view of the same memory."""
    if view < 4:
        return np.rot90(grid, view)
    if view == 4:
        return np.fliplr(grid)
    if view == 5:
        return np.flipud(grid)
    if view == 6:
        return grid.T
    return np.fliplr(np.rot90(grid))


def format_identifier(task: str, view: int, colours: np.ndarray) -> str:
    """Name the puzzle that a task becomes; colours: uint8 [10], new = colours[old]."""
    return f"{task}|||t{view}|||{''.join(str(colour) for colour in colours.tolist())}"


def parse_identifier(name: str) -> tuple[str, int, np.ndarray]:
    """Return (task, view, colours uint8 [10]) of a name; a plain name is the task itself.

    Raises: ValueError: the view or the colours are none.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        if "|||" in name:
            raise ValueError(f"{name!r} is no puzzle's name; accepted: TASK or TASK|||t3|||0192...")
        return name, 0, _IDENTITY
    view = int(match[2] or match[3])
    colours = np.array([int(digit) for digit in match[4]], dtype=np.uint8)
    if view >= NUM_VIEWS or sorted(colours.tolist()) != list(range(10)) or colours[0]:
        raise ValueError(f"{name!r} has no view t0 to t7 followed by a permutation of 0 to 9")
    return match[1], view, colours


def augment_grid(grid: np.ndarray, view: int, colours: np.ndarray) -> np.ndarray:
    """Replace the colours of a grid uint8 [h, w], then turn or flip it."""
    return view_grid(colours[grid], view)


def undo_grid(grid: np.ndarray, view: int, colours: np.ndarray) -> np.ndarray:
    """Return the grid that `augment_grid` made this one of."""
    return np.argsort(colours).astype(np.uint8)[view_grid(grid, INVERSE_VIEWS[view])]
