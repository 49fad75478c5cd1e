"""Choose device and number format, and set up the host. Each entry point does this once."""

import ctypes
import itertools
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import torch

from runtime.compiler import cpu_flags
from runtime.errors import ConfigError

# Parameters of glibc's mallopt. By default the kernel hands out and takes back every large tensor
# page by page, which takes a tenth of a training step on a CPU.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BELOW = 2**30


def resolve_device(device: str) -> Literal["cpu", "cuda"]:
    """Return the device type; `auto` is cuda if torch sees a CUDA device, else cpu. If the
    setting is cuda but torch sees no CUDA device, raise ConfigError.
    """
    has_cuda = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError("device=cuda: torch sees no CUDA device; use device=cpu or device=auto")
    return "cuda" if has_cuda else "cpu"


def resolve_dtype(forward_dtype: str, device: str) -> str:
    """Return the configured forward dtype, or float32 instead of bfloat16 on a CPU that does not
    multiply bfloat16 in hardware.

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
    """Raise ConfigError if a model does not fit into this machine's memory.

    Args:
        model: a model on the device `meta`.
        source: the file or setting that asks for the model, for the message.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    wanted = sum(tensor.numel() * tensor.itemsize for tensor in tensors) / 1e9
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if wanted > available:
        sizes = f"the model takes {wanted:,.0f} GB, this machine has {available:,.0f} GB"
        raise ConfigError(f"{source}: {sizes}")


def memory_in_use(device: torch.device) -> dict[str, float]:
    """Return the memory in GiB, by name: of this process, and of its tensors on a GPU (allocated
    now, reserved by torch, and the most that was ever allocated). It does not wait for the GPU.
    """
    used = {}
    with suppress(OSError):  # Another system than Linux.
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        used["process_gib"] = pages * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cuda":
        kept = torch.cuda.memory_stats(device)
        used["cuda_allocated_gib"] = kept.get("allocated_bytes.all.current", 0)
        used["cuda_reserved_gib"] = kept.get("reserved_bytes.all.current", 0)
        used["cuda_peak_gib"] = kept.get("allocated_bytes.all.peak", 0)
    return {name: size / 2**30 for name, size in used.items()}


def prepare_host(num_threads: int | None) -> None:
    """Set torch's number of threads (None: keep it), flush denormal numbers, tune the allocator,
    and keep a GPU's convolutions in float32 from rounding to TF32, as products do not.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.allow_tf32 = False
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL("libc.so.6").mallopt
        except (OSError, AttributeError):
            return  # Another C library.
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def seeded_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch with 0 <= seed < 2**64 in the block, and restore its random state afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def require_deterministic_algorithms() -> None:
    """Restrict CUDA to algorithms that give the same bits each time; operations without one raise
    RuntimeError. Call it before the first matrix product.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs this.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[assignment]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore after the block what a run changes in its process: environment variables, random
    states, filters of warnings, torch's threads, denormal numbers, TF32 and deterministic
    algorithms. Signal handlers and Hydra's state are restored where they change; the allocator
    stays tuned.
    """
    variables, state, threads = dict(os.environ), random.getstate(), torch.get_num_threads()
    exact = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    flushed = sys.float_info.min / 2 == 0
    rounds = torch.backends.cudnn.allow_tf32
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    random.seed()  # Random names of runs must differ, even if the caller's state is seeded.
    try:
        with torch.random.fork_rng(gpus), warnings.catch_warnings():
            yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        random.setstate(state)
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)
        torch.backends.cudnn.allow_tf32 = rounds
        torch.use_deterministic_algorithms(exact, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[assignment]
