"""A head that predicts the confidence in each cell."""

import torch
from torch import Tensor

from models.heads.auxiliary import CellLogitHead, mean_where
from models.heads.base import Targets
from models.heads.schemas import NUM_BINS
from models.losses import binary_cross_entropy


class ConfidenceHead(CellLogitHead):
    """Predicts whether each labelled cell is right. Loss: binary cross entropy.

    Metrics: `accuracy`, the share of labelled cells with a correct prediction; `bin0_gap` to
    `bin9_gap`: (confidence - right), summed over the cells with confidence in that tenth and
    divided by the row's labelled cells. The expected calibration error (arXiv:1706.04599) is the
    sum over the bins of |mean gap|.
    """

    gives_confidence = True
    metrics = ("accuracy", *(f"bin{i}_gap" for i in range(NUM_BINS)))

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        labelled, right = targets.labelled, targets.right
        losses = binary_cross_entropy(logits, right.to(logits.dtype))
        with torch.no_grad():
            confidence = logits.sigmoid()
            gaps = confidence - right.to(logits.dtype)
            bins = (confidence * NUM_BINS).long().clamp_max(NUM_BINS - 1)
            metrics = {"accuracy": mean_where((logits > 0) == right, labelled)}
            for i in range(NUM_BINS):
                metrics[f"bin{i}_gap"] = mean_where(torch.where(bins == i, gaps, 0.0), labelled)
        return mean_where(losses, labelled), metrics
