"""AdamATan2 as the published trainers use it, in torch, as a compiled CPU kernel, or with the CUDA
kernel of the package `adam-atan2`.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from numpy import float32
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.errors import ConfigError
from training.config.schema import OptimizerConfig
from training.optim.ema import WeightAverage, join, move_
from training.optim.groups import GROUP_NAME, GradientBucket, set_rates

MIN_FOR_KERNEL = 2**17
"""On a CPU, the compiled kernel updates buffers with at least this many numbers."""

_MODULE, _FUNCTION = "adam_atan2_backend", "adam_atan2_cuda_impl_"
# Takes lists of parameters, gradients, `exp_avg`, `exp_avg_sq` and step counts (with this step);
# then lr, beta1, beta2 and weight decay.
Kernel = Callable[..., None]


class StepNumbers(NamedTuple):
    """The factors of one step, each float32."""

    factor: float32  # Scales the gradient (clipping).
    new_in_avg: float32  # 1 - beta1.
    new_in_avg_sq: float32  # 1 - beta2.
    root: float32  # 1 / sqrt(1 - beta2^t).
    kept: float32  # 1 - lr * weight decay.
    rate: float32  # lr / (1 - beta1^t).
    new_in_average: float32  # 1 - rate of the moving average.


class AdamATan2(Optimizer):
    """Adam with the step atan2(m, sqrt(v)) instead of m / (sqrt(v) + eps): scale-free, no eps
    (arXiv:2407.05872).

    p *= 1 - lr * wd; m = lerp(m, g, 1 - b1); v = lerp(v, g * g, 1 - b2);
    p -= lr / (1 - b1^t) * atan2(m, sqrt(v) / sqrt(1 - b2^t)).

    The first bias correction stands outside the arctangent and there is no factor 4 / pi, as in the
    `adam-atan2` package (the package `adam-atan2-pytorch` differs in both). A group may set `lr`,
    `betas` and the decoupled `weight_decay`.

    `step` updates one parameter after the other. `fused_update` updates each part of a
    `GradientBucket` as one buffer, and also clips the gradients and moves the weight average.

    Attributes:
        skip: bool [] tensor or None. While it is true, a step changes no parameter, average or step
            count, whatever the gradients are. On CUDA the host does not read it.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.skip: Tensor | None = None
        # The buffers that `fused_update` updates. Its first call makes them.
        self._pieces: list[Piece] = []

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as torch does. `fused_update` then joins it anew."""
        super().load_state_dict(state_dict)
        self._pieces = []

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, one after the other."""
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_piece(self._piece([p], p.detach(), p.grad, None), group, None)

    @torch.no_grad()
    def fused_update(
        self,
        bucket: GradientBucket,
        average: WeightAverage | None,
        norms: Tensor,
        skip: Tensor,
        factor: float,
    ) -> None:
        """Make an update, see `Update`. All calls must pass the same bucket and average."""
        set_rates(self, factor)
        self.skip, factors = skip, bucket.clip_factors(norms)
        self._pieces = self._pieces or [self._piece(*part, average) for part in bucket.parts]
        for group, piece in zip(self.param_groups, self._pieces, strict=True):
            self._step_piece(piece, group, factors.get(group[GROUP_NAME]))
        if average:
            average.update(skip, without={p for g in self.param_groups for p in g["params"]})

    def _piece(
        self, params: list[nn.Parameter], p: Tensor, g: Tensor, average: WeightAverage | None
    ) -> "Piece":
        """Join the states and averages of `params`, with weights `p` and gradients `g`."""
        for own in params:
            if not self.state[own]:
                self.state[own] = {
                    "step": torch.zeros((), device=own.device),
                    "exp_avg": torch.zeros_like(own),
                    "exp_avg_sq": torch.zeros_like(own),
                }
        steps, m, v = (self._joined_state(params, key) for key in ("step", "exp_avg", "exp_avg_sq"))
        mean, make = average.joined(params).view(p.shape) if average else None, None
        tensors = p, g, m.view(p.shape), v.view(p.shape), mean
        # Large enough for the compiled kernel, which takes a second to load.
        if p.device.type == "cpu" and p.numel() >= MIN_FOR_KERNEL:
            from training.optim.kernels import arrays_of, step_

            make = partial(step_, arrays_of(*tensors))
        rate = average.rate if average else 1.0
        return Piece(*tensors, steps.view(-1), rate, make)

    def _joined_state(self, params: list[nn.Parameter], key: str) -> Tensor:
        """Join one state of all `params` into one tensor. Their own states become views of it."""
        whole, parts = join([self.state[p][key] for p in params])
        for p, part in zip(params, parts, strict=True):
            self.state[p][key] = part
        return whole

    def _step_piece(self, piece: "Piece", group: dict[str, Any], factor: Tensor | None) -> None:
        """Make a step on a piece, with its gradient scaled by `factor`."""
        if piece.make is None:
            self._step_on_device(piece, group, factor)
        elif self.skip is None or not self.skip:
            piece.steps.add_(1)
            piece.make(_numbers(piece, group, factor))

    def _step_on_device(self, piece: "Piece", group: dict[str, Any], factor: Tensor | None) -> None:
        """Make a step with torch's operations. The host does not read `skip`."""
        p, g, m, v, average, steps, average_rate, *_ = piece
        beta1, beta2 = group["betas"]
        # 1 if this step counts, 0 if it is skipped. Float64, like Python's numbers.
        counts = steps.new_ones((), dtype=torch.float64)
        if self.skip is not None:
            counts = counts.masked_fill(self.skip, 0.0)
        steps.add_(counts)
        step = steps[0].double().clamp_min(1)
        rate = counts * group["lr"]
        if factor is not None:
            g = g * factor
        if self.skip is not None:
            g = g.masked_fill(self.skip, 0.0)  # Multiplying by 0 would keep NaN.
        m.mul_((1 - (1 - beta1) * counts).float()).add_(g, alpha=1 - beta1)
        v.mul_((1 - (1 - beta2) * counts).float()).addcmul_(g, g, value=1 - beta2)
        angles = v.sqrt().div_((1 - beta2**step).sqrt().float())
        torch.atan2(m, angles, out=angles)
        p.mul_((1 - rate * group["weight_decay"]).float())
        p.sub_(angles.mul_((rate / (1 - beta1**step)).float()))
        if average is not None:
            move_([average], [p], average_rate, self.skip)


class Piece(NamedTuple):
    """Weights with their gradient, state and average, all of one shape; `steps` is [tensors]."""

    p: Tensor
    g: Tensor
    m: Tensor
    v: Tensor
    average: Tensor | None
    steps: Tensor  # All equal, since parameters of one group step together.
    average_rate: float
    make: Callable[[StepNumbers], None] | None  # The compiled kernel, if it makes the step.


def _numbers(piece: Piece, group: dict[str, Any], factor: Tensor | None) -> StepNumbers:
    beta1, beta2 = group["betas"]
    step = piece.steps[0].item()
    return StepNumbers(
        factor=float32(1.0 if factor is None else factor.item()),
        new_in_avg=float32(1 - beta1),
        new_in_avg_sq=float32(1 - beta2),
        root=float32((1 - beta2**step) ** -0.5),
        kept=float32(1 - group["lr"] * group["weight_decay"]),
        rate=float32(group["lr"] / (1 - beta1**step)),
        new_in_average=float32(1 - piece.average_rate),
    )


class PackageAdamATan2(AdamATan2):
    """AdamATan2 with the steps made by `kernel`. The host waits for `skip` in each step."""

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
    """Load the package's kernel. Raise ConfigError if it is missing or the device is not CUDA."""
    where = "optimizer.kernel=package"
    if device.type != "cuda":
        raise ConfigError(f"{where} runs only on CUDA, not on {device.type}; use ours")
    try:
        return getattr(importlib.import_module(_MODULE), _FUNCTION)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where}: cannot load {_MODULE}.{_FUNCTION} ({error}); use ours, or install it "
            "where CUDA's compiler is (pip install --no-build-isolation adam-atan2)"
        ) from None


def adam_atan2(
    config: OptimizerConfig, groups: list[dict[str, Any]], betas: tuple[float, float]
) -> Optimizer:
    """Build AdamATan2, with the package's kernel if `optimizer.kernel` asks for it."""
    if config.kernel == "ours":
        return AdamATan2(groups, betas=betas)
    kernel = package_kernel(groups[0]["params"][0].device)
    return PackageAdamATan2(groups, kernel, betas=betas)
