"""Device, number format and host settings: decided once, at the edge, and passed down."""

import ctypes
import itertools
import os
import sys
from typing import Literal, TypeVar

import torch

from runtime.errors import ConfigError

# glibc's mallopt parameters. Above its mmap threshold every large tensor would be fetched from and
# handed back to the kernel, page fault by page fault: a tenth of a CPU training step.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BELOW = 2**30

DtypeT = TypeVar("DtypeT", bound=str)


def resolve_device(device: str) -> Literal["cpu", "cuda"]:
    """Turn `auto` into the device at hand.

    Raises:
        ConfigError: cuda was asked for and is not there.
    """
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda: torch sees no CUDA device here; use device=cpu or device=auto"
        )
    return "cuda"


def resolve_dtype(forward_dtype: DtypeT, device: str) -> DtypeT | Literal["float32"]:
    """Return the forward dtype to use on `device` in place of the one asked for.

    bfloat16 becomes float32 on a CPU without bfloat16 products in hardware.

    Raises:
        ConfigError: float16 on a CPU.
    """
    if device != "cpu":
        return forward_dtype
    if forward_dtype == "float16":
        raise ConfigError(
            "arch.forward_dtype=float16 does not run on a CPU; use bfloat16 or float32"
        )
    if forward_dtype == "bfloat16" and not cpu_has_bfloat16():
        return "float32"
    return forward_dtype


def resolve_compile(setting: Literal["auto"] | bool, device: str) -> bool:
    """Return whether to compile the model: `auto` compiles on a GPU, not on a CPU."""
    return device == "cuda" if setting == "auto" else setting


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices in hardware (AVX512-BF16, AMX, or Arm's
    BF16).
    """
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    if any(getattr(torch.cpu, check, lambda: False)() for check in checks):
        return True
    try:
        with open("/proc/cpuinfo") as info:
            flags = next((line for line in info if line.startswith("Features")), "")
    except OSError:
        return False
    return "bf16" in flags.split()


def require_room(model: torch.nn.Module, source: object) -> None:
    """Check that a model, built on the device `meta`, fits into the memory of this machine.

    Raises:
        ConfigError: it does not; names `source`, which asks for it.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    wanted = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > there:
        raise ConfigError(
            f"{source}: the model takes {wanted / 1e9:,.0f} GB, this machine has "
            f"{there / 1e9:,.0f} GB"
        )


def prepare_host(num_threads: int | None) -> None:
    """Set threads and allocator of this process for training on it."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL("libc.so.6").mallopt
        except (OSError, AttributeError):
            return  # Another C library: nothing to set.
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
