"""The decorator of all compiled kernels, threads that run them, and the mixing step of their random
numbers.

numba's cache notices changes in a function's own file only. A kernel that used another file would
keep running with an outdated copy of it. So each file of kernels defines its own constants, and the
only compiled function that it calls from another file is `mix`. `mix` cannot change, because built
data sets depend on it. If you change the decorator, delete the cached `*.nbi` files.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numba
import numpy as np

from runtime.process import num_processors

Item = TypeVar("Item")
Result = TypeVar("Result")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that releases Python's lock; cache it on disk if a folder is writable."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba raises it when the installation and the home are read-only
        return numba.njit(nogil=True)(function)


def in_order(
    call: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[Result]:
    """Yield call(item) for each item, in order; threads make a few calls in advance.

    Args:
        workers: number of threads; None: the usable processors.
    """
    workers, left = workers or num_processors(), iter(items)
    with ThreadPoolExecutor(workers) as pool:
        ahead = deque(pool.submit(call, item) for item in islice(left, 2 * workers))
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(pool.submit(call, item) for item in islice(left, 1))


@compiled
def mix(value):
    """Scramble a uint64, one to one: the output step of SplitMix64 (`dataset.sudoku.kernels`)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
