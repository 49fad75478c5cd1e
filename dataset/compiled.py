"""What the compiled kernels share: the decorator, and the mixing step of their random numbers.

numba's cache notices changes of a function's own file only: a kernel would go on running with an
outdated copy of what it takes from another file. So a file of kernels defines the constants that it
freezes and calls no compiled function of another file but `mix`, which cannot change: built data
sets depend on it. Whoever changes the decorator removes the cached `*.nbi` files.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile, keeping the result on disk unless there is no folder for it that can be written.

    What is compiled runs without Python's lock, so that threads run side by side.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # what numba raises when the installation and the home are read-only
        return numba.njit(nogil=True)(function)


@compiled
def mix(value):
    """Scramble a uint64, one to one: the output step of SplitMix64 (`dataset.sudoku.kernels`)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
