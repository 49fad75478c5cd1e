"""A head that predicts the cells that the answer changes."""

import torch
from torch import Tensor

from models.heads.auxiliary import CellLogitHead, mean_where
from models.heads.base import Targets


class PositionAttentionHead(CellLogitHead):
    """Predicts the cells that the answer changes, as a distribution over the S cells. Loss: cross
    entropy; the target is uniform over the n labelled cells with a label other than their input.
    Metric: `precision`, the share of the n likeliest cells that do change; 1 if n = 0.
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
