"""The peak of a device: how many operations (FLOP) it can do in a second, published or measured."""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from runtime.accelerators import ACCELERATORS

_MAX_WIDTH = 2048
_WARM_UP_CALLS, _MIN_SAMPLES = 2, 3


class Timing(NamedTuple):
    """Wall-clock seconds of one call: the median and the best of `samples` samples."""

    median: float
    best: float
    samples: int


def peak_of(device: torch.device, dtype: str) -> float | None:
    """Return a device's FLOP/s in a number format: measured in at most 0.3 s for a CPU; published
    for bfloat16 on a GPU, or None.
    """
    if device.type == "cpu":
        return measured_peak(device, dtype, 0.25)
    name = torch.cuda.get_device_name(device) if dtype == "bfloat16" else ""
    known = (one.peak for one in ACCELERATORS.values() if re.fullmatch(one.reported, name))
    return next(known, None)


def measured_peak(device: torch.device, dtype: str, seconds: float) -> float:
    """Return the best FLOP/s of square matrix products, as wide as the time allows."""
    best, width, start = 0.0, 256, time.perf_counter()
    while True:
        rates = product_rates(dtype, device, (width,), seconds / 10)
        best, width = max(best, rates[width]), 2 * width
        needed = (_WARM_UP_CALLS + _MIN_SAMPLES) * 2 * width**3 / rates[width // 2]
        if width > _MAX_WIDTH or time.perf_counter() - start + needed > seconds:
            return best


def product_rates(
    dtype: str, device: torch.device, widths: Sequence[int], seconds: float
) -> dict[int, float]:
    """Return the best FLOP/s of square matrix products by width, measured for about `seconds`. It
    leaves torch's random state alone.
    """
    draws, rates = torch.Generator(device).manual_seed(0), {}
    for width in widths:
        drawn = torch.randn(2, width, width, generator=draws, device=device)
        a, b = drawn.to(getattr(torch, dtype))
        product = partial(torch.mm, a, b, out=torch.empty_like(a))
        rates[width] = 2 * width**3 / measure(product, seconds / len(widths), device).best
    return rates


def measure(call: Callable[[], object], seconds: float, device: torch.device) -> Timing:
    """Time `call` for about `seconds`, after a few calls that warm up caches and the compiler.

    On CUDA a sample is ten calls, and the host waits for the device before and after them. So it
    can run ahead as it does in training.
    """
    calls = 10 if device.type == "cuda" else 1
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    for _ in range(_WARM_UP_CALLS):
        call()
    wait()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < _MIN_SAMPLES or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        samples.append((time.perf_counter() - begin) / calls)
    return Timing(statistics.median(samples), min(samples), len(samples))
