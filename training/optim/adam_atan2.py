"""AdamATan2 as the published trainers use it, in plain torch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class AdamATan2(Optimizer):
    """Adam whose step is atan2(m, sqrt(v)) instead of m / (sqrt(v) + eps): scale-free, no eps
    (arXiv:2407.05872).

    p *= 1 - lr * wd; m = lerp(m, g, 1 - b1); v = lerp(v, g * g, 1 - b2);
    p -= lr / (1 - b1^t) * atan2(m, sqrt(v) / sqrt(1 - b2^t)).

    The first bias correction stands outside the arctangent and there is no factor 4 / pi, as in the
    `adam-atan2` package (the package `adam-atan2-pytorch` differs in both). A group may set `lr`,
    `betas` and the decoupled `weight_decay`.

    Attributes:
        skip: bool [] tensor or None. While it is true, and the gradients are zero, a step changes
            nothing: no parameter, average or step count. It is read on the device only.
    Raises:
        ValueError: a setting is out of its range, or `step` is given a closure.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"AdamATan2 needs lr >= 0, weight_decay >= 0 and betas in [0, 1); got {lr}, "
                f"{weight_decay}, {betas}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.skip: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        if closure is not None:
            raise ValueError("AdamATan2 takes no closure")
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step_group(params, group["lr"], group["betas"], group["weight_decay"])

    def _step_group(
        self, params: list[Tensor], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        states = [self.state[p] for p in params]
        grads = [p.grad for p in params if p.grad is not None]
        exp_avgs = [state["exp_avg"] for state in states]
        exp_avg_sqs = [state["exp_avg_sq"] for state in states]

        # 1 where this step counts, 0 where it is skipped: the host does not wait for the verdict.
        counts = (
            torch.ones((), device=params[0].device) if self.skip is None else (~self.skip).float()
        )
        torch._foreach_add_([state["step"] for state in states], counts)
        # Parameters of one group always step together, so their counts are equal.
        step = states[0]["step"].clamp_min(1)
        beta1, beta2 = betas

        torch._foreach_mul_(params, 1 - lr * weight_decay * counts)
        torch._foreach_mul_(exp_avgs, 1 - (1 - beta1) * counts)
        torch._foreach_add_(exp_avgs, grads, alpha=1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, 1 - (1 - beta2) * counts)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
        roots = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_div_(roots, (1 - beta2**step).sqrt())
        updates = [torch.atan2(m, root) for m, root in zip(exp_avgs, roots, strict=True)]
        torch._foreach_mul_(updates, counts * lr / (1 - beta1**step))
        torch._foreach_sub_(params, updates)
