"""The kernel that makes the steps of AdamATan2: ours, or the CUDA kernel of the package
`adam-atan2`.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from runtime.errors import ConfigError
from training.config.schema import OptimizerConfig
from training.optim.adam_atan2 import AdamATan2, Piece

_MODULE, _FUNCTION = "adam_atan2_backend", "adam_atan2_cuda_impl_"
# Takes lists of parameters, gradients, `exp_avg`, `exp_avg_sq` and step counts that include this
# step; then lr, beta1, beta2 and weight decay.
Kernel = Callable[..., None]


def adam_atan2(
    config: OptimizerConfig, groups: list[dict[str, Any]], betas: tuple[float, float]
) -> Optimizer:
    """Build AdamATan2, with the package's kernel if `optimizer.kernel` asks for it."""
    if config.kernel == "ours":
        return AdamATan2(groups, betas=betas)
    kernel = package_kernel(groups[0]["params"][0].device)
    return PackageAdamATan2(groups, kernel, betas=betas)


class PackageAdamATan2(AdamATan2):
    """AdamATan2 whose steps `kernel` makes. In each step the host waits for `skip`."""

    def __init__(self, params: Iterable[Any], kernel: Kernel, **settings: Any) -> None:
        super().__init__(params, **settings)
        self._kernel = kernel

    def _step_piece(self, piece: Piece, group: dict[str, Any], factor: Tensor | None) -> None:
        if self.skip is not None and self.skip:
            return
        piece.steps.add_(1)
        lists = ([piece.p], [piece.g], [piece.m], [piece.v], [piece.steps[0]])
        self._kernel(*lists, group["lr"], *group["betas"], group["weight_decay"])


def package_kernel(device: torch.device) -> Kernel:
    """Load the package's kernel; ConfigError: the device is not CUDA, or the package is missing."""
    where = "optimizer.kernel=package"
    if device.type != "cuda":
        raise ConfigError(f"{where} runs on CUDA only, not on {device.type}; use ours")
    try:
        return getattr(importlib.import_module(_MODULE), _FUNCTION)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {_MODULE}.{_FUNCTION} cannot be loaded ({error}); install it with CUDA's "
            "compiler at hand (pip install --no-build-isolation adam-atan2), or use ours"
        ) from None
