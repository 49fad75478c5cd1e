"""The peak of a device: how many operations (FLOP) it can do in a second, published or measured."""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

# Dense products of bfloat16 with float32 sums, FLOP/s, by the name that torch gives to the device.
# A part of a device (MIG) and other variants (Laptop, Ti, D) match no name.
PUBLISHED = {
    # NVIDIA's data sheets. Half of the figures with sparsity: H100 and H200 1,979 (SXM), 1,671
    # (NVL) and 1,513 (PCIe) TFLOPS; L4 242; eight B200 36,000 (nvidia.com/en-us/data-center/hgx).
    r"NVIDIA A100[- ](SXM4|PCIE|80GB PCIe)(-\d+GB)?": 312e12,
    r"NVIDIA H100 \d+GB HBM3|NVIDIA H200": 989e12,
    r"NVIDIA H[12]00 NVL": 835e12,
    r"NVIDIA H100 PCIe": 756e12,
    r"NVIDIA B200": 2250e12,
    r"NVIDIA L4": 121e12,
    r"NVIDIA L40S": 362e12,
    # NVIDIA's whitepapers on the Ampere GA102, Ada and RTX Blackwell architectures, appendix A: 71,
    # 165.2 and 209.5 "Peak BF16 Tensor TFLOPS with FP32 Accumulate".
    r"NVIDIA GeForce RTX 3090": 71e12,
    r"NVIDIA GeForce RTX 4090": 165e12,
    r"NVIDIA GeForce RTX 5090": 209e12,
    # AMD's data sheet: 1,307.4 TFLOPS.
    r"AMD Instinct MI300X( OAM)?": 1307e12,
}
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
    return next((peak for form, peak in PUBLISHED.items() if re.fullmatch(form, name)), None)


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
