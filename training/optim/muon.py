"""Muon, which makes the updates of matrices orthogonal, with AdamW for all other parameters."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from training.config.schema import MuonConfig, OptimizerConfig
from training.optim.groups import GROUP_NAME

# Coefficients of the quintic iteration that brings singular values near 1 (Keller Jordan, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_EPS = 1e-7
# Key of a torch parameter group: True if Muon updates it.
MUON = "muon"


class Muon(AdamW):
    """Muon for groups with the key `muon`, fused AdamW for all others.

    m = lerp(m, g, 1 - momentum); p *= 1 - lr * wd;
    p -= lr * scale * orthogonal(lerp(g, m, momentum)).

    The same as `torch.optim.Muon`, except that a step changes nothing if `found_inf` is set (as in
    AdamW), and that matrices of one shape are orthogonalised together: in bfloat16 on CUDA, in
    float32 on a CPU. `betas` are those of AdamW.
    """

    def __init__(
        self, params: Iterable[Any], betas: tuple[float, float], config: MuonConfig
    ) -> None:
        super().__init__(params, betas=betas, fused=True)
        self._config = config

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        assert closure is None
        everything = self.param_groups
        self.param_groups = [group for group in everything if not group[MUON]]
        try:
            super().step()
        finally:
            self.param_groups = everything
        for group in everything:
            if group[MUON]:
                self._orthogonal_step(group)

    @torch.no_grad()
    def _orthogonal_step(self, group: dict[str, Any]) -> None:
        alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for p in group["params"]:
            if p.grad is not None:
                alike[p.shape].append(p)
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
        momentum, found_inf = self._config.momentum, getattr(self, "found_inf", None)
        skip = found_inf > 0 if found_inf is not None else torch.zeros((), dtype=torch.bool)
        for shape, params in alike.items():
            grads = torch.stack([p.grad for p in params if p.grad is not None])
            grads = grads.masked_fill(skip, 0.0)  # Multiplying by 0 would keep NaN.
            before = torch.stack([self.state[p]["momentum"] for p in params])
            after = before.lerp(grads, 1 - momentum)
            steps = self._config.newton_schulz_steps
            updates = orthogonal(grads.lerp(after, momentum), steps)
            counts = (~skip).to(grads.dtype)  # 0 if the step is skipped.
            rate = group["lr"] * rate_scale(self._config.rate_scale, shape) * counts
            kept = 1 - group["lr"] * group["weight_decay"] * counts
            after = torch.where(skip, before, after)
            for p, update, own in zip(params, updates, after, strict=True):
                self.state[p]["momentum"].copy_(own)
                p.mul_(kept).sub_(update * rate)


def orthogonal(matrices: Tensor, steps: int) -> Tensor:
    """Bring the singular values of matrices, float32 [n, rows, columns], near 1."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(_EPS)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return (x.mT if is_tall else x).to(matrices.dtype)


def rate_scale(scale: str, shape: torch.Size) -> float:
    """Return the factor of a matrix's rate. original: sqrt(max(1, rows / columns));
    match_rms_adamw: 0.2 * sqrt(larger side), so that AdamW's rates fit.
    """
    rows, columns = shape
    if scale == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def adamw(
    config: OptimizerConfig, groups: list[dict[str, Any]], betas: tuple[float, float]
) -> Optimizer:
    """Build torch's AdamW."""
    return AdamW(groups, betas=betas, fused=True)


def muon(config: MuonConfig, groups: list[dict[str, Any]], betas: tuple[float, float]) -> Optimizer:
    """Build Muon for the matrices of its groups, with AdamW for all other parameters."""
    split = []
    for group in groups:
        chosen = group[GROUP_NAME] in config.muon_groups
        for is_muon in (True, False):
            params = [p for p in group["params"] if (chosen and p.ndim == 2) == is_muon]
            if params:
                split.append({**group, "params": params, MUON: is_muon})
    return Muon(split, betas, config)
