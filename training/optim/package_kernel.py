"""The kernel that makes the steps of AdamATan2: ours, or the CUDA kernel of the package
`adam-atan2`.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.errors import ConfigError
from training.config.schema import OptimizerConfig
from training.optim.adam_atan2 import AdamATan2, Piece

_MODULE, _FUNCTION = "adam_atan2_backend", "adam_atan2_cuda_impl_"
# Of float32, a few roundings in each of the check's steps.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6
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
    """Load the package's kernel, and compare it with ours on the device.

    Raises:
        ConfigError: the device is not CUDA, the package is missing, or its numbers are others.
    """
    where = "optimizer.kernel=package"
    if device.type != "cuda":
        raise ConfigError(f"{where} runs on CUDA only, not on {device.type}; use ours")
    try:
        kernel = getattr(importlib.import_module(_MODULE), _FUNCTION)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {_MODULE}.{_FUNCTION} cannot be loaded ({error}); install it with CUDA's "
            "compiler at hand (pip install --no-build-isolation adam-atan2), or use ours"
        ) from None
    require_agreement(kernel, device)
    return kernel


def require_agreement(kernel: Kernel, device: torch.device) -> None:
    """Raise ConfigError if three steps by `kernel` differ from ours by more than rounding."""
    results = [_three_steps(each, device) for each in (kernel, None)]
    for name, theirs, own in zip(("weights", "exp_avg", "exp_avg_sq"), *results, strict=True):
        if not torch.allclose(theirs, own, rtol=_RELATIVE, atol=_ABSOLUTE):
            difference = (theirs - own).abs().max().item()
            raise ConfigError(
                f"optimizer.kernel=package: its {name} differ from ours by up to {difference:.2g} "
                "after three steps; use ours"
            )


def _three_steps(kernel: Kernel | None, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(1000, generator=generator).to(device))
    groups = [{"params": [p], "lr": 0.01, "weight_decay": 0.1}]
    optimizer = PackageAdamATan2(groups, kernel) if kernel else AdamATan2(groups)
    for _ in range(3):
        p.grad = torch.randn(1000, generator=generator).to(device)
        optimizer.step()
    return [p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]]
