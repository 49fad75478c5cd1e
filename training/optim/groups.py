"""Which parameter has which optimizer, rate, decay and clipping; and the one buffer all gradients
live in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.errors import ConfigError
from runtime.ranks import Ranks, sum_in_order
from training.config.schema import OptimizerConfig, ParamGroupConfig, TrainConfig
from training.optim.adam_atan2 import AdamATan2

LOSS_WEIGHTS_PREFIX = "log_variances."
PEAK_RATE = "peak_lr"
"""Key of a torch parameter group: its rate where the schedule's factor is 1."""


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share hyperparameters, by name, in the model's order; `without_decay` names
    those of them that do not decay.
    """

    name: str
    params: dict[str, nn.Parameter]
    lr: float
    weight_decay: float
    max_grad_norm: float | None
    without_decay: frozenset[str] = frozenset()


def assign_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    configs: Mapping[str, ParamGroupConfig],
    *,
    lr: float,
    weight_decay: float,
) -> list[ParamGroup]:
    """Give every trainable parameter to exactly one group.

    Args:
        named_parameters: of the model; those that need no gradient are left out.
        configs: groups by name; `lr` and `weight_decay` stand in where a group sets none.
    Raises:
        ConfigError: a group that is not optional matches nothing, or a parameter is in no
            group or in several.
    """
    parameters = {
        name: parameter for name, parameter in named_parameters if parameter.requires_grad
    }
    owners = {
        name: [
            g for g, config in configs.items() if any(fnmatchcase(name, p) for p in config.params)
        ]
        for name in parameters
    }
    orphans = [name for name, groups in owners.items() if not groups]
    if orphans:
        raise ConfigError(f"optimizer.groups: no group matches {', '.join(orphans)}")
    for name, groups in owners.items():
        if len(groups) > 1:
            raise ConfigError(
                f"optimizer.groups: {name} is matched by several groups: {', '.join(groups)}"
            )
    groups = []
    for group, config in configs.items():
        params = {name: p for name, p in parameters.items() if owners[name] == [group]}
        if params:
            vectors = {
                name for name, p in params.items() if p.ndim < 2 and not config.decay_vectors
            }
            learned = {name for name in params if name.startswith(LOSS_WEIGHTS_PREFIX)}
            decay = weight_decay if config.weight_decay is None else config.weight_decay
            groups.append(
                ParamGroup(
                    name=group,
                    params=params,
                    lr=lr if config.lr is None else config.lr,
                    weight_decay=decay,
                    max_grad_norm=config.max_grad_norm,
                    without_decay=frozenset(vectors | learned),
                )
            )
        elif not config.optional:
            raise ConfigError(
                f"optimizer.groups.{group}: params={config.params} match no parameter; there are "
                f"{', '.join(parameters)}"
            )
    return groups


def groups_of(model: nn.Module, config: TrainConfig) -> list[ParamGroup]:
    """Apply the run's configuration to a model's parameters; with `freeze_weights` they are taken
    out of training, and there is no group.
    """
    if config.freeze_weights:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return []
    return assign_groups(
        model.named_parameters(),
        config.optimizer.groups,
        lr=config.lr,
        weight_decay=config.weight_decay,
    )


def build_optimizer(
    config: OptimizerConfig, groups: list[ParamGroup], betas: tuple[float, float]
) -> Optimizer:
    """Build the optimizer. Each of our groups, in order, is one torch parameter group for what
    decays and one for what does not; `set_rates` gives them their rates.
    """
    torch_groups = []
    for group in groups:
        for decays, weight_decay in ((True, group.weight_decay), (False, 0.0)):
            params = [
                p for name, p in group.params.items() if (name in group.without_decay) != decays
            ]
            rates = {"lr": group.lr, PEAK_RATE: group.lr, "weight_decay": weight_decay}
            if params:
                torch_groups.append({"params": params, **rates})
    if config.name == "adam_atan2":
        return AdamATan2(torch_groups, betas=betas)
    return torch.optim.AdamW(torch_groups, betas=betas, fused=True)


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set each group's rate to this share of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group[PEAK_RATE] * factor


def skip_update(optimizer: Optimizer, skip: Tensor) -> None:
    """Make the next steps change nothing where `skip` (bool []) is true, without asking the
    host.
    """
    if isinstance(optimizer, AdamATan2):
        optimizer.skip = skip
    else:
        # The name under which torch's fused optimizers expect a gradient scaler's verdict.
        optimizer.found_inf = skip.float()  # type: ignore[attr-defined]


class GradientBucket:
    """All gradients in one float32 buffer, group by group: one collective, one norm for each group.

    Two further numbers ride along in the sum over the ranks: how many ranks saw something that is
    not finite, and how many were asked to stop.

    Args:
        num_shards: shards of this rank, each with a backward pass and a buffer of its own.
        in_order: add up the shards of all ranks in their order, for bits that do not depend on the
            number of ranks; otherwise there is one shard, and the collective chooses the order.
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
        self.groups, self.in_order = groups, in_order
        sizes = [sum(p.numel() for p in group.params.values()) for group in groups]
        self._shards = torch.zeros(num_shards, sum(sizes) + 2, device=device)
        # The first shard's buffer receives the sum.
        self.flat = self._shards[0]
        *self.group_slices, self.signals = self.flat.split([*sizes, 2])
        parameters = [p for group in groups for p in group.params.values()]
        numbers = [p.numel() for p in parameters]
        self._views = [
            [
                (parameter, piece.view_as(parameter))
                for parameter, piece in zip(parameters, shard[:-2].split(numbers), strict=True)
            ]
            for shard in self._shards
        ]
        self.select(0)

    def zero_(self) -> None:
        """Forget all gradients and signals."""
        self._shards.zero_()

    def select(self, shard: int) -> None:
        """Let the next backward pass fill the buffer of a shard of this rank."""
        for parameter, view in self._views[shard]:
            parameter.grad = view

    def reduce(self, ranks: Ranks, *, finite: Tensor, stop: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Add up the gradients of all ranks, into what the parameters have as `grad`.

        Args:
            finite: bool [], whether this rank's loss and sparse gradients are.
            stop: whether this rank was asked to stop.
        Returns:
            norms: float32 [groups], L2 norm of each group's gradient before clipping.
            skip: bool [], true when anything was not finite on any rank.
            stop: bool [], true when any rank was asked to stop; like `skip` the same on all ranks.
        """
        self.signals[0] = (~finite).float()
        self.signals[1] = float(stop)
        if self.in_order:
            self.flat.copy_(sum_in_order(ranks.concat(self._shards)))
            self.select(0)
        else:
            ranks.sum_(self.flat)
        norms = (
            torch.stack([part.norm() for part in self.group_slices])
            if self.groups
            else self.flat.new_zeros(0)
        )
        skip = (self.signals[0] > 0) | ~norms.isfinite().all()
        return norms, skip, self.signals[1] > 0

    def clip_(self, norms: Tensor, skip: Tensor) -> None:
        """Clip the groups that ask for it, and zero everything where `skip` is true."""
        for group, part, norm in zip(self.groups, self.group_slices, norms, strict=True):
            if group.max_grad_norm is not None:
                part.mul_((group.max_grad_norm / (norm + 1e-6)).clamp_max(1.0))
        self.flat.masked_fill_(skip, 0.0)
