"""What must be equal for a resumed run to end in the same bits."""

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from runtime.ranks import Ranks


def environment(ranks: Ranks, forward_dtype: str, *, compiled: bool) -> dict[str, Any]:
    """Describe this process, as JSON."""
    on_gpu = ranks.device.type == "cuda"
    return {
        "compiled": compiled,
        "device": ranks.device.type,
        "device_name": torch.cuda.get_device_name(ranks.device) if on_gpu else platform.machine(),
        "forward_dtype": forward_dtype,
        "num_threads": torch.get_num_threads(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "world_size": ranks.world_size,
    }


def environment_changes(
    saved: Mapping[str, Any], present: Mapping[str, Any], *, any_world_size: bool = False
) -> list[str]:
    """Return 'name: saved -> present' for what differs and may change bits; with `any_world_size`
    the number of ranks does not.
    """
    changes_nothing = {"python", "numpy", *(["world_size"] if any_world_size else [])}
    return [
        f"{name}: {saved.get(name)} -> {value}"
        for name, value in present.items()
        if name not in changes_nothing and saved.get(name) != value
    ]
