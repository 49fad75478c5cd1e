"""A CPU kernel of AdamATan2 and the moving average, which reads and writes each number once.

Compiled by numba, and cached on disk if possible. `contract` allows the compiler fused
multiply-adds and nothing else. Each number is computed on its own and the pieces have a fixed size,
so the bits do not depend on the number of threads.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from numpy import float32
from torch import Tensor

if TYPE_CHECKING:
    from training.optim.adam_atan2 import StepNumbers

# Numbers in a thread's piece, and in a block of it that stays in the cache for the average.
PIECE, _BLOCK = 1 << 18, 1 << 13

_ZERO, _RIGHT_ANGLE = float32(0), float32(np.pi / 2)
# atan(r) / r = 1 + z * (C0 + C1 z + ... + C7 z^7) with z = r^2, r in [0, 1]. A fit by Lawson's
# reweighted least squares; its largest relative error, 2^-25.8, is close to the smallest possible.
_C0, _C1 = float32(-0.333331527), float32(0.199937728)
_C2, _C3 = float32(-0.142110553), float32(0.106660048)
_C4, _C5 = float32(-0.0755221462), float32(0.043211865)
_C6, _C7 = float32(-0.0163679307), float32(0.00292069292)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba raises it if both the installation and the home are read-only
        return numba.njit(**options)(function)


@_compiled
def _step(p, g, m, v, numbers):
    for i in range(len(p)):
        grad = g[i] * numbers.factor
        m[i] += (grad - m[i]) * numbers.new_in_avg
        v[i] += (grad * grad - v[i]) * numbers.new_in_avg_sq
        y, x = abs(m[i]), np.sqrt(v[i]) * numbers.root
        smaller, larger = (y, x) if y < x else (x, y)
        r = smaller / larger
        r = r if larger != _ZERO else _ZERO
        z = r * r
        zz = z * z
        low = (_C0 + _C1 * z) + (_C2 + _C3 * z) * zz
        high = (_C4 + _C5 * z) + (_C6 + _C7 * z) * zz
        angle = r + r * z * (low + high * (zz * zz))
        angle = _RIGHT_ANGLE - angle if y > x else angle
        angle = angle if m[i] > _ZERO else -angle
        p[i] = p[i] * numbers.kept - numbers.rate * angle


@_compiled
def _average(average, p, new):
    for i in range(len(p)):
        average[i] += (p[i] - average[i]) * new


@_compiled
def _piece(p, g, m, v, average, numbers, start, stop):
    # Two loops, because the compiler vectorises only loops over few arrays.
    for first in range(start, stop, _BLOCK):
        part = slice(first, min(first + _BLOCK, stop))
        _step(p[part], g[part], m[part], v[part], numbers)
        if len(average):
            _average(average[part], p[part], numbers.new_in_average)


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "optimizer")


def arrays_of(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, average: Tensor | None
) -> list[np.ndarray]:
    """Return views of contiguous float32 CPU tensors of one size, as arrays for `step_`."""
    flat = [t.view(-1).numpy() for t in (p, g, m, v, *([] if average is None else [average]))]
    return flat if average is not None else [*flat, flat[0][:0]]


def step_(arrays: list[np.ndarray], numbers: "StepNumbers") -> None:
    """Update the weights by AdamATan2, then their average if there is one.

    Args:
        arrays: the result of `arrays_of`. All but the gradient change.
    """
    size = len(arrays[0])
    starts = iter(range(0, size, PIECE))

    def work() -> None:
        for start in starts:
            _piece(*arrays, numbers, start, min(start + PIECE, size))

    helpers = min(torch.get_num_threads(), -(-size // PIECE)) - 1
    jobs = [_threads(helpers).submit(work) for _ in range(helpers)]
    work()
    for job in jobs:
        if not job.cancel():  # A job that has not begun would find no work.
            job.result()
