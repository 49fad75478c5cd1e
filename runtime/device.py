"""Device, number format and settings of the host: decided once by the entry points."""

import ctypes
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from runtime.compiler import cpu_flags
from runtime.errors import ConfigError

# Parameters of glibc's mallopt. By default every large tensor is fetched from the kernel and handed
# back, page by page, which takes a tenth of a training step on a CPU.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BELOW = 2**30


def resolve_device(device: str) -> Literal["cpu", "cuda"]:
    """Return the device type to use; `auto` is cuda where torch sees a CUDA device, else cpu.

    Raises:
        ConfigError: the setting is cuda, and there is no such device.
    """
    has_cuda = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError("device=cuda: torch sees no CUDA device; use device=cpu or device=auto")
    return "cuda" if has_cuda else "cpu"


def resolve_dtype(forward_dtype: str, device: str) -> str:
    """Return the forward dtype to use: the configured one, but float32 instead of bfloat16 on a CPU
    that does not multiply bfloat16 in hardware.

    Raises:
        ConfigError: float16 on a CPU.
    """
    if device != "cpu":
        return forward_dtype
    if forward_dtype == "float16":
        raise ConfigError("arch.forward_dtype=float16: no CPU runs it; use bfloat16 or float32")
    if forward_dtype == "bfloat16" and not cpu_has_bfloat16():
        return "float32"
    return forward_dtype


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices (AVX512-BF16, AMX or Arm's BF16)."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    found = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return found or "bf16" in cpu_flags()


def require_room(model: torch.nn.Module, source: object) -> None:
    """Check that a model fits into the memory of this machine.

    Args:
        model: built on the device `meta`.
        source: what asks for the model, for the message.
    Raises:
        ConfigError: it does not fit.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    wanted = sum(tensor.numel() * tensor.itemsize for tensor in tensors) / 1e9
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if wanted > available:
        sizes = f"the model takes {wanted:,.0f} GB, this machine has {available:,.0f} GB"
        raise ConfigError(f"{source}: {sizes}")


def prepare_host(num_threads: int | None) -> None:
    """Set torch's threads (None: its own choice), denormal numbers and the allocator."""
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


@contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch draw from `seed`, 0 to 2**64 - 1, in the block, and go on as before after it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def ask_for_equal_bits() -> None:
    """Let CUDA take only algorithms that give the same bits each time, before its first product.
    An operation that has none raises RuntimeError.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # What cuBLAS asks for.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[assignment]
