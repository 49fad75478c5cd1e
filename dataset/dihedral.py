"""The eight ways to turn or mirror a grid, numbered as in the published data sets."""

from math import isqrt

import numpy as np

NUM_VIEWS = 8
INVERSE_VIEWS = (0, 3, 2, 1, 4, 5, 6, 7)
"""INVERSE_VIEWS[v] undoes view v."""


def dihedral_view(grids: np.ndarray, view: int) -> np.ndarray:
    """Turn or mirror grids, [..., rows, columns]; the result may share their memory.

    Views 0 to 3 are 0 to 3 quarter turns counter-clockwise, 4 swaps left and right, 5 swaps up and
    down, 6 transposes, and 7 is a quarter turn counter-clockwise and then view 4.
    """
    if view == 6:
        return np.swapaxes(grids, -2, -1)
    if view in (4, 5):
        return np.flip(grids, axis=-1 if view == 4 else -2)
    turned = np.rot90(grids, view % 6, axes=(-2, -1))
    return np.flip(turned, axis=-1) if view == 7 else turned


def view_cells(size: int) -> np.ndarray:
    """Return int64 [8, cells]: [v, i] is the old position of cell i in view v of a square grid."""
    grid = np.arange(size * size).reshape(size, size)
    return np.stack([dihedral_view(grid, view).ravel() for view in range(NUM_VIEWS)])


def all_views(boards: np.ndarray) -> np.ndarray:
    """Return all eight views of each square board, uint8 [N, cells]: [N * 8, cells]."""
    cells = boards.shape[1]
    return boards[:, view_cells(isqrt(cells))].reshape(-1, cells)


def view_keys(boards: np.ndarray) -> list[bytes]:
    """Return a key for each board, uint8 [N, cells]; all views of a board have the same key."""
    views = all_views(boards).reshape(len(boards), NUM_VIEWS, -1)
    return [min(map(bytes, board)) for board in views]
