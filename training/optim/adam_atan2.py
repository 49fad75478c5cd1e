"""AdamATan2 as the published trainers use it. Its steps are made by our kernels, or by the CUDA
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
"""Numbers in a buffer from which on the compiled pass makes the step on a CPU."""

_MODULE, _FUNCTION = "adam_atan2_backend", "adam_atan2_cuda_impl_"
# Takes lists of parameters, gradients, `exp_avg`, `exp_avg_sq` and step counts that include this
# step; then lr, beta1, beta2 and weight decay.
Kernel = Callable[..., None]


class StepNumbers(NamedTuple):
    """The numbers that a step multiplies with, each float32."""

    factor: float32  # Of the gradient.
    new_in_avg: float32  # 1 - beta1.
    new_in_avg_sq: float32  # 1 - beta2.
    root: float32  # 1 / sqrt(1 - beta2^t).
    kept: float32  # 1 - lr * weight decay, of the weight.
    rate: float32  # lr / (1 - beta1^t).
    new_in_average: float32  # 1 - rate of the moving average.


class AdamATan2(Optimizer):
    """Adam whose step is atan2(m, sqrt(v)) instead of m / (sqrt(v) + eps): scale-free, no eps
    (arXiv:2407.05872).

    p *= 1 - lr * wd; m = lerp(m, g, 1 - b1); v = lerp(v, g * g, 1 - b2);
    p -= lr / (1 - b1^t) * atan2(m, sqrt(v) / sqrt(1 - b2^t)).

    The first bias correction stands outside the arctangent and there is no factor 4 / pi, as in the
    `adam-atan2` package (the package `adam-atan2-pytorch` differs in both). A group may set `lr`,
    `betas` and the decoupled `weight_decay`.

    `step` goes from parameter to parameter. `fused_update` takes each part of a `GradientBucket` as
    one buffer, and clips and averages too.

    Attributes:
        skip: bool [] tensor or None. While it is true, a step changes nothing, whatever the
            gradients are: no parameter, average or step count. On CUDA it is read there only.
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
        # The pieces that `fused_update` steps; its first call makes them.
        self._pieces: list[Piece] = []

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as torch does; `fused_update` joins it anew."""
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
        """Make an update, see `Update`. Bucket and average are the same in all calls."""
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
        """Join the state and the average of `params`, whose weights are `p` and gradients `g`."""
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
        # The compiled pass is worth the second of its loading.
        if p.device.type == "cpu" and p.numel() >= MIN_FOR_KERNEL:
            from training.optim.kernels import arrays_of, step_  # Numba takes a while to load.

            make = partial(step_, arrays_of(*tensors))
        rate = average.rate if average else 1.0
        return Piece(*tensors, steps.view(-1), rate, make)

    def _joined_state(self, params: list[nn.Parameter], key: str) -> Tensor:
        """Return a quantity of all as one tensor, of which theirs become views."""
        whole, parts = join([self.state[p][key] for p in params])
        for p, part in zip(params, parts, strict=True):
            self.state[p][key] = part
        return whole

    def _step_piece(self, piece: "Piece", group: dict[str, Any], factor: Tensor | None) -> None:
        """Make a step on a piece, whose gradient counts `factor` times."""
        if piece.make is None:
            self._step_on_device(piece, group, factor)
        elif self.skip is None or not self.skip:
            self._step_on_cpu(piece, piece.make, group, factor)

    def _step_on_cpu(
        self,
        piece: "Piece",
        make: Callable[[StepNumbers], None],
        group: dict[str, Any],
        factor: Tensor | None,
    ) -> None:
        """Make a step in one pass."""
        piece.steps.add_(1)
        beta1, beta2 = group["betas"]
        step = piece.steps[0].item()
        numbers = StepNumbers(
            factor=float32(1.0 if factor is None else factor.item()),
            new_in_avg=float32(1 - beta1),
            new_in_avg_sq=float32(1 - beta2),
            root=float32((1 - beta2**step) ** -0.5),
            kept=float32(1 - group["lr"] * group["weight_decay"]),
            rate=float32(group["lr"] / (1 - beta1**step)),
            new_in_average=float32(1 - piece.average_rate),
        )
        make(numbers)

    def _step_on_device(self, piece: "Piece", group: dict[str, Any], factor: Tensor | None) -> None:
        """Make a step by torch's operations; the host does not learn of `skip`."""
        p, g, m, v, average, steps, average_rate, *_ = piece
        beta1, beta2 = group["betas"]
        # 1 where this step counts, 0 where it is skipped. Single numbers are float64, as those of
        # Python are.
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
    """Weights and what belongs to them, of one shape each but for `steps`, [tensors]."""

    p: Tensor
    g: Tensor
    m: Tensor
    v: Tensor
    average: Tensor | None
    steps: Tensor  # All equal, since parameters of one group step together.
    average_rate: float
    make: Callable[[StepNumbers], None] | None  # The compiled pass, where that makes the step.


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


def adam_atan2(
    config: OptimizerConfig, groups: list[dict[str, Any]], betas: tuple[float, float]
) -> Optimizer:
    """Build AdamATan2, with the package's kernel if `optimizer.kernel` asks for it."""
    if config.kernel == "ours":
        return AdamATan2(groups, betas=betas)
    kernel = package_kernel(groups[0]["params"][0].device)
    return PackageAdamATan2(groups, kernel, betas=betas)
