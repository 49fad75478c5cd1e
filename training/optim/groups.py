"""Groups of parameters with rate, decay and clipping, the one buffer of all gradients, and the
update that an optimizer makes from it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.errors import ConfigError
from runtime.ranks import Ranks, sum_in_order
from training.config.schema import OPTIMIZERS, OptimizerConfig, ParamGroupConfig, TrainConfig
from training.optim.ema import WeightAverage
from training.optim.schedules import PUBLISHED, ScheduleConfig

LOSS_WEIGHTS_PREFIX = "log_variances."
# Keys of a torch parameter group: the name of its `ParamGroup`, and its peak rate.
GROUP_NAME, PEAK_RATE = "name", "peak_lr"
# Tensors in a buffer start at multiples of this, in numbers: a cache line, and a GPU's vectors.
_ALIGNMENT = 16


@dataclass(frozen=True)
class ParamGroup:
    """A group of parameters that share hyperparameters; `lr` is the peak rate."""

    name: str
    params: dict[str, nn.Parameter]  # By name, in the model's order.
    lr: float
    weight_decay: float
    max_grad_norm: float | None
    without_decay: frozenset[str] = frozenset()  # Names of the parameters that do not decay.

    def parts(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters that decay and those that do not. In each, sizes that are multiples
        of `_ALIGNMENT` come first, so that most tensors are aligned in a buffer.
        """
        ordered = sorted(self.params.items(), key=lambda item: item[1].numel() % _ALIGNMENT > 0)
        kept = [p for name, p in ordered if name in self.without_decay]
        return [p for name, p in ordered if name not in self.without_decay], kept


def assign_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    configs: Mapping[str, ParamGroupConfig],
    lr: float,
    weight_decay: float,
) -> list[ParamGroup]:
    """Give every trainable parameter to one group. Optional groups without parameters are left out.

    Args:
        lr, weight_decay: for groups that set none.
    Raises:
        ConfigError: a parameter is in no group, in several, or not float32; or a group that is not
            optional matches nothing.
    """
    parameters = {name: p for name, p in named_parameters if p.requires_grad}
    matched: dict[str, dict[str, nn.Parameter]] = {group: {} for group in configs}
    for name, p in parameters.items():
        if p.dtype != torch.float32:
            raise ConfigError(f"parameters must be float32, {name} is {p.dtype}")
        fitting = [g for g, c in configs.items() if matches(name, c.params)]
        if len(fitting) != 1:
            several = f"several groups: {', '.join(fitting)}" if fitting else "no group"
            raise ConfigError(f"optimizer.groups: {name} is matched by {several}")
        matched[fitting[0]][name] = p
    for group, config in configs.items():
        if not matched[group] and not config.optional:
            none = f"params={config.params} match none of {', '.join(parameters)}"
            raise ConfigError(f"optimizer.groups.{group}: {none}")
    owning = [(group, params) for group, params in matched.items() if params]
    return [_group(name, params, configs[name], lr, weight_decay) for name, params in owning]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a parameter's name fits one of a group's patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _group(
    name: str, params: dict[str, nn.Parameter], config: ParamGroupConfig, lr: float, decay: float
) -> ParamGroup:
    rate = lr if config.lr is None else config.lr
    decay = decay if config.weight_decay is None else config.weight_decay
    kept = frozenset(
        name
        for name, p in params.items()
        if (p.ndim < 2 and not config.decay_vectors) or name.startswith(LOSS_WEIGHTS_PREFIX)
    )
    return ParamGroup(name, params, rate, decay, config.max_grad_norm, kept)


def groups_of(model: nn.Module, config: TrainConfig) -> list[ParamGroup]:
    """Return the groups of the configuration, without the weights that `freeze_weights` freezes;
    their gradients are turned off.
    """
    if frozen := config.freeze_weights:
        for name, parameter in model.named_parameters():
            of_heads = "_head." in name or name.startswith(LOSS_WEIGHTS_PREFIX)
            parameter.requires_grad_(frozen == "trunk" and of_heads)
        if frozen is True:
            return []
    return assign_groups(
        model.named_parameters(), config.optimizer.groups, config.lr, config.weight_decay
    )


def build_optimizer(
    config: OptimizerConfig, groups: list[ParamGroup], betas: tuple[float, float]
) -> Optimizer:
    """Build the optimizer, with one torch group for parameters that decay, one for the rest."""
    torch_groups = []
    for group in groups:
        for params, weight_decay in zip(group.parts(), (group.weight_decay, 0.0), strict=True):
            rates = {"lr": group.lr, PEAK_RATE: group.lr, "weight_decay": weight_decay}
            if params:
                torch_groups.append({"params": params, GROUP_NAME: group.name, **rates})
    optimizer: Optimizer = OPTIMIZERS.load(config.name)(config, torch_groups, betas)
    if not hasattr(optimizer, "skip") and not optimizer.defaults.get("fused"):
        raise ConfigError(
            f"optimizer.name={config.name}: {type(optimizer).__name__} has no attribute `skip` "
            "to leave out a step with a gradient that is not finite"
        )
    return optimizer


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set each group's rate to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group[PEAK_RATE] * factor


def skip_update(optimizer: Optimizer, skip: Tensor) -> None:
    """Make steps change nothing while `skip` (bool []) is true, which the host does not read."""
    optimizer.skip = skip  # type: ignore[attr-defined]
    # Torch's fused optimizers read this attribute of gradient scalers.
    optimizer.found_inf = skip.float()  # type: ignore[attr-defined]


def lr_factor(
    step: int,
    *,
    warmup_steps: int,
    total_steps: int,
    min_ratio: float,
    schedule: ScheduleConfig = PUBLISHED,
) -> float:
    """Return the learning rate at `step`, as a share of the peak rate.

    Args:
        step: from 1.
        warmup_steps: length of the linear rise; at `step == warmup_steps` the factor is 1.
        total_steps: step at which the schedule has reached `min_ratio`.
    """
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    return min_ratio + (1 - min_ratio) * schedule.height(step, warmup_steps, total_steps)


class GradientBucket:
    """One float32 buffer of all gradients, group by group, for one collective and one norm a group.

    The weights become views of a second buffer in the same order, so that an optimizer can update
    the parameters of a torch group as one tensor (`parts`). Zeros may follow a part, for alignment.
    The gradient buffer ends with two numbers that are summed over the ranks too: the number of
    ranks that saw a value that is not finite, and the number that were asked to stop.

    Args:
        groups: the `data` and `grad` of their parameters become views of the buffers.
        num_shards: shards of this rank, each with its own backward pass and buffer.
        in_order: add up the shards of all ranks in order, so that the bits do not depend on the
            number of ranks. If false there is one shard, and the collective chooses the order.
    """

    def __init__(
        self,
        groups: list[ParamGroup],
        device: torch.device,
        *,
        num_shards: int = 1,
        in_order: bool = False,
    ) -> None:
        assert in_order or num_shards == 1
        self.in_order = in_order
        limits = ((i, group.name, group.max_grad_norm) for i, group in enumerate(groups))
        self._limits = [(i, name, limit) for i, name, limit in limits if limit is not None]
        places: list[tuple[nn.Parameter, slice]] = []
        parts: list[tuple[list[nn.Parameter], slice]] = []
        sizes, end = [], 0
        for group in groups:
            start = end
            for params in filter(None, group.parts()):
                first = end
                for p in params:
                    places.append((p, slice(end, end + p.numel())))
                    end += p.numel()
                parts.append((params, slice(first, end)))
                end += -end % _ALIGNMENT
            sizes.append(end - start)
        weights = torch.zeros(end, device=device)
        for p, place in places:
            p.data = weights[place].view_as(p).copy_(p.detach())
        self._shards = torch.zeros(num_shards, end + 2, device=device)
        # The first shard's buffer also takes the sum.
        self.flat = self._shards[0]
        *self.group_slices, self.signals = self.flat.split([*sizes, 2])
        # For each torch group its parameters, their weights [n] and their gradients [n].
        self.parts = [(params, weights[at], self.flat[at]) for params, at in parts]
        # Made once, because every step selects each shard.
        self._views = [
            [(p, shard[place].view_as(p)) for p, place in places] for shard in self._shards
        ]
        self.select(0)

    def zero_(self) -> None:
        """Set the buffer to zero, and point the gradients of all parameters to it."""
        self._shards.zero_()
        self.select(0)

    def select(self, shard: int) -> None:
        """Make the next backward pass fill the buffer of this shard."""
        for parameter, view in self._views[shard]:
            parameter.grad = view

    def reduce(
        self, ranks: Ranks, *, finite: Tensor, stop: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Replace the gradients by their sum over all ranks.

        Args:
            finite: bool [], whether this rank's loss and sparse gradients are finite.
            stop: bool [] on the device, whether this rank was asked to stop.
        Returns:
            norms: float32 [groups], L2 norm of each group's gradient before clipping.
            skip: bool [], whether a value was not finite on any rank.
            stop: bool [], whether any rank was asked to stop. All ranks return the same three.
        """
        self.signals[0] = (~finite).float()
        self.signals[1] = stop
        if self.in_order:
            self.flat.copy_(sum_in_order(ranks.concat(self._shards)))
            self.select(0)
        else:
            ranks.sum_(self.flat)
        norms = [part.norm() for part in self.group_slices]
        norms = torch.stack(norms) if norms else self.flat.new_zeros(0)
        skip = (self.signals[0] > 0) | ~norms.isfinite().all()
        return norms, skip, self.signals[1] > 0

    def clip_factors(self, norms: Tensor) -> dict[str, Tensor]:
        """Return the factor that clips each group's gradients, float32 [] by name."""
        return {n: (most / (norms[i] + 1e-6)).clamp_max(1.0) for i, n, most in self._limits}

    def clip_(self, norms: Tensor, skip: Tensor) -> None:
        """Clip groups by `norms`, float32 [groups]; zero all gradients if `skip` (bool [])."""
        factors = self.clip_factors(norms)
        for i, name, _ in self._limits:
            self.group_slices[i].mul_(factors[name])
        self.flat.masked_fill_(skip, 0.0)


Update = Callable[[Tensor, Tensor, float], None]
"""Makes an update from `norms` and `skip` of `GradientBucket.reduce`, and the rates' factor."""


def update_by(
    optimizer: Optimizer | None, bucket: GradientBucket, average: WeightAverage | None
) -> Update:
    """Return the function that updates the weights and the average from the bucket: the optimizer's
    `fused_update`, or one that sets rates, clips, steps and averages in turn. The optimizer is None
    if there are no weights to update.
    """
    # An inherited `fused_update` does not count: the subclass may override `step`.
    own = vars(type(optimizer)).get("fused_update", _update_in_turn)
    return partial(own, optimizer, bucket, average)


def _update_in_turn(
    optimizer: Optimizer | None,
    bucket: GradientBucket,
    average: WeightAverage | None,
    norms: Tensor,
    skip: Tensor,
    factor: float,
) -> None:
    bucket.clip_(norms, skip)
    if optimizer:
        set_rates(optimizer, factor)
        skip_update(optimizer, skip)
        optimizer.step()
    if average:
        average.update(skip)
