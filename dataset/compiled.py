"""What the compiled kernels share: the decorator, and the mixing step of their random numbers.

numba's cache notices changes of a function's own file only: a kernel that calls `mix` from another
file would go on running an outdated copy. So nothing else belongs here; `mix` cannot change,
because the built data sets depend on it.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile, keeping the result on disk unless there is no folder for it that can be written."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # what numba raises when the installation and the home are read-only
        return numba.njit(function)


@compiled
def mix(value):
    """Scramble a uint64, one to one: the output step of SplitMix64 (see `sudoku_kernels`)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
