"""Heads that predict a field of the data set: actions, pixels."""

import torch
from torch import Tensor

from models.config import DataFacts, RecurrenceConfig
from models.heads.auxiliary import AuxiliaryHead, mean_where
from models.heads.base import Targets
from models.layers import CastedLinear


class FieldHead(AuxiliaryHead):
    """Predicts a field of the data set for each cell. Loss: cross entropy. Metric: `accuracy`.

    Maps [B, S, D] to [B, S, classes], or [B, S, channels, classes]. Negative values in the field
    do not count.
    """

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        self.field = config.heads.auxiliary[name].field
        num_classes, channels = facts.field(self.field, f"arch.heads.{name}")
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
            accuracy = mean_where((logits.argmax(-1) == classes).flatten(1), known.flatten(1))
        return -mean_where(picked.flatten(1), known.flatten(1)), {"accuracy": accuracy}
