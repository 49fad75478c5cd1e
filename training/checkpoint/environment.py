"""The software and hardware that must stay the same for a resumed run to end in the same bits."""

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast, get_args

import numpy as np
import torch

from runtime.compiler import describe_compiler
from runtime.ranks import Ranks
from runtime.schema import CompiledForm

# The version of our own numerics; checkpoints without one have version 1. If your change makes a
# step compute other bits from the same settings (another order of additions, a fused kernel, other
# casts, another use of random numbers), raise it by 1, once a release: a resumed run then says so.
NUMERICS = 2


def environment(ranks: Ranks, forward_dtype: str, *, compiled: CompiledForm) -> dict[str, Any]:
    """Return a description of this process that can be saved as JSON."""
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    on_gpu = ranks.device.type == "cuda"
    return {
        "compiled": compiled,
        "compiler": describe_compiler(ranks.device.type) if compiled else None,
        "device": ranks.device.type,
        "device_name": torch.cuda.get_device_name(ranks.device) if on_gpu else cpu,
        "forward_dtype": forward_dtype,
        "num_threads": torch.get_num_threads(),
        "numba": None if on_gpu else version("numba"),  # numba compiles the optimizer.
        "numerics": NUMERICS,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "world_size": ranks.world_size,
    }


def environment_changes(
    saved: Mapping[str, Any], present: Mapping[str, Any], *, any_world_size: bool = False
) -> list[str]:
    """Return 'name: saved -> present' for each difference that may change bits. With
    `any_world_size`, the number of ranks changes none.
    """
    changes_nothing = {"python", "numpy", *(["world_size"] if any_world_size else [])}
    saved = {"numerics": 1} | dict(saved) | {"compiled": _form(saved.get("compiled"))}
    return [
        f"{name}: {saved.get(name)} -> {value}"
        for name, value in present.items()
        if name not in changes_nothing and saved.get(name) != value
    ]


def saved_compiling(saved: Mapping[str, Any], device: str) -> CompiledForm | None:
    """Return the part of the model that the saved run compiled, or None if it ran on another type
    of device or its checkpoint does not say.
    """
    form = _form(saved.get("compiled"))
    known = saved.get("device") == device and form in get_args(CompiledForm)
    return cast(CompiledForm, form) if known else None


def _form(compiled: object) -> object:
    return "model" if compiled is True else compiled  # Earlier versions wrote True.
