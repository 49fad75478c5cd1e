"""A head that says which cells the answer changes."""

import torch
from torch import Tensor

from models.heads.auxiliary import CellLogitHead, mean_where
from models.heads.base import Targets


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
            found = mean_where(ranks < number.unsqueeze(-1), changes)
            precision = torch.where(number > 0, found, 1.0)
        return -mean_where(logits.log_softmax(-1), changes), {"precision": precision}
