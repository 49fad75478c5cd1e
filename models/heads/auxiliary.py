"""The base classes of auxiliary heads. Their targets come from the labels or from a data field.

With `detach` a head's gradient does not reach the trunk.
"""

import torch
from torch import Tensor

from models.config import DataFacts, RecurrenceConfig
from models.heads.base import Answer, Head, Measured, Outputs, Targets
from models.layers import CastedLinear, widened


class AuxiliaryHead(Head):
    """A head with one loss of its own name, one output NAME_logits and metrics NAME_METRIC.

    In a subclass `forward` predicts from the states of the cells (reads_cells=False: from the state
    of the first position), and `compare` returns the loss and metrics of each row. `name` is its
    name in `config.heads`; `config` is the whole architecture's.
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
    """A head with one logit for each cell or for the first position: maps [..., D] to [...]."""

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        self.proj = CastedLinear(config.hidden_size, 1, bias=True)

    def forward(self, states: Tensor) -> Tensor:
        return self.proj(states).squeeze(-1)


def mean_where(values: Tensor, where: Tensor) -> Tensor:
    """Return the mean over the last dimension of the values that `where` marks; 0 for none."""
    values = values.to(torch.float32) if values.dtype == torch.bool else values
    total = torch.where(where, values, torch.zeros_like(values)).sum(-1)
    return total / where.sum(-1).clamp_min(1)
