"""Auxiliary heads, beside tokens and Q: each predicts something that labels or data sets say.

With `detach` a head's gradient stays with the head and leaves the trunk alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.config import DataFacts, RecurrenceConfig
from models.heads.base import Answer, HaltingRule, Head, Measured, Outputs, Targets
from models.heads.calibration import NUM_BINS
from models.heads.config import FieldHeadConfig
from models.layers import CastedLinear, widened
from models.losses import binary_cross_entropy


class AuxiliaryHead(Head):
    """A head with one loss of its own name, one output NAME_logits and metrics NAME_METRIC.

    A subclass says in `forward` what it makes of the answer's states, and in `compare` what that
    should have been. It reads the cells, unless `reads_cells` is false: then the first position.
    `name` is that in `config.heads`; `config` is of the whole architecture.
    """

    metrics: tuple[str, ...] = ("accuracy",)
    reads_cells = True

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__()
        self.name, self.detach = name, config.heads.auxiliary[name].detach
        self.loss_names = (name,)
        self.metric_names = tuple(f"{name}_{metric}" for metric in self.metrics)

    def read(self, answer: Answer) -> Outputs:
        """Return NAME_logits, in float32 (float64 stays)."""
        states = answer.cells if self.reads_cells else answer.first
        return {f"{self.name}_logits": widened(self(states.detach() if self.detach else states))}

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        loss, metrics = self.compare(outputs[f"{self.name}_logits"], targets)
        named = {f"{self.name}_{metric}": value for metric, value in metrics.items()}
        return Measured({self.name: loss}, named)

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [B], in nats, and the metrics [B] by name."""
        raise NotImplementedError


class CellLogitHead(AuxiliaryHead):
    """One logit a cell: maps [B, S, D] to [B, S]."""

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        self.proj = CastedLinear(config.hidden_size, 1, bias=True)

    def forward(self, states: Tensor) -> Tensor:
        return self.proj(states).squeeze(-1)


class ConfidenceHead(CellLogitHead):
    """Is each labelled cell right? Binary cross entropy.

    Metrics: `accuracy`, the share of labelled cells of which it says rightly whether they are
    right; `bin0_gap` to `bin9_gap`, of the cells whose confidence lies in that tenth the sum of
    (confidence - right), divided by the row's labelled cells. The expected calibration error
    (arXiv:1706.04599) is the sum over the bins of |mean gap|.
    """

    metrics = ("accuracy", *(f"bin{i}_gap" for i in range(NUM_BINS)))

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        labelled, right = targets.labelled, targets.right
        losses = binary_cross_entropy(logits, right.to(logits.dtype))
        with torch.no_grad():
            confidence = logits.sigmoid()
            gaps = confidence - right.to(logits.dtype)
            bins = (confidence * NUM_BINS).long().clamp_max(NUM_BINS - 1)
            metrics = {"accuracy": _mean((logits > 0) == right, labelled)}
            for i in range(NUM_BINS):
                metrics[f"bin{i}_gap"] = _mean(torch.where(bins == i, gaps, 0.0), labelled)
        return _mean(losses, labelled), metrics


class PositionAttentionHead(CellLogitHead):
    """Which cells will the answer change? A distribution over the S cells; cross entropy.

    The target spreads evenly over the labelled cells whose label differs from the input. Metric:
    `precision`, the share of its n most likely cells that do change, n their number; 1 where none
    changes.
    """

    metrics = ("precision",)

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        examples = targets.examples
        changes = targets.labelled & (examples["labels"] != examples["inputs"])
        number = changes.sum(-1)
        with torch.no_grad():
            ranks = logits.argsort(-1, descending=True).argsort(-1)
            found = _mean(ranks < number.unsqueeze(-1), changes)
            precision = torch.where(number > 0, found, 1.0)
        return -_mean(logits.log_softmax(-1), changes), {"precision": precision}


class FieldHead(AuxiliaryHead):
    """Classes of each cell, told by a field of the data set; cross entropy.

    Maps [B, S, D] to [B, S, classes], or [B, S, channels, classes]. Cells (and channels) where the
    field is negative do not count. Metric: `accuracy` over those that count.

    Raises:
        ValueError: the data set does not declare the field.
    """

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        own = config.heads.auxiliary[name]
        assert isinstance(own, FieldHeadConfig)
        self.field = own.field
        num_classes, channels = facts.field(own.field, f"arch.heads.{name}")
        self.shape = (channels, num_classes) if channels else (num_classes,)
        self.proj = CastedLinear(config.hidden_size, num_classes * (channels or 1), bias=True)

    def forward(self, states: Tensor) -> Tensor:
        return self.proj(states).unflatten(-1, self.shape)

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        classes = targets.examples[self.field].long()
        known = classes >= 0
        safe = torch.where(known, classes, 0)
        picked = logits.log_softmax(-1).gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            accuracy = _mean((logits.argmax(-1) == classes).flatten(1), known.flatten(1))
        return -_mean(picked.flatten(1), known.flatten(1)), {"accuracy": accuracy}


class HaltHead(AuxiliaryHead):
    """Stop here? Two logits, (go on, halt), [B, 2], from the first position; cross entropy.

    The target is whether the whole answer is right. Metric: `accuracy`. In a model without Q it
    gives Q's outputs too: q_halt is the gap of halt over go on, without a gradient, q_continue 0.
    """

    reads_cells = False

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        self.proj = CastedLinear(config.hidden_size, 2, bias=True)
        # It starts near "not right yet", like Q: random values would halt rows at random.
        with torch.no_grad():
            assert self.proj.bias is not None
            self.proj.weight.zero_()
            self.proj.bias.copy_(torch.tensor([0.0, -5.0]))
        self.rule = HaltingRule(compares=False) if config.heads.q is None else None

    def forward(self, states: Tensor) -> Tensor:
        return self.proj(states)

    def read(self, answer: Answer) -> Outputs:
        outputs = super().read(answer)
        if self.rule is None:
            return outputs
        go_on, halt = outputs["halt_logits"].unbind(-1)
        q_halt = (halt - go_on).detach()
        return outputs | {"q_halt_logits": q_halt, "q_continue_logits": torch.zeros_like(q_halt)}

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        classes = targets.whole_right.long()
        loss = F.cross_entropy(logits, classes, reduction="none")
        return loss, {"accuracy": (logits.argmax(-1) == classes).float()}


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Mean over the last dimension of what `where` marks; 0 where it marks nothing."""
    values = values.to(torch.float32) if values.dtype == torch.bool else values
    total = torch.where(where, values, torch.zeros_like(values)).sum(-1)
    return total / where.sum(-1).clamp_min(1)
