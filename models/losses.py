"""Log probabilities and losses, as functions of tensors (docs/heads.md)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.config import ACTLossConfig
from models.layers import widened

IGNORE_LABEL_ID = -100


def stablemax_log_probs(logits: Tensor) -> Tensor:
    """Return log probabilities [..., V] under stablemax, in float32 (float64 stays).

    Stablemax replaces exp by s(x) = x + 1 for x >= 0 and 1 / (1 - x) below (arXiv:2501.04697). With
    log s computed as sign(x) * log1p(|x|), float32 is precise enough.
    """
    wide = widened(logits)
    negative = wide < 0
    # sign() and abs() would have gradient 0 at x = 0; the gradient of s there is 1.
    log_of_abs = torch.where(negative, -wide, wide).log1p()
    log_s = torch.where(negative, -log_of_abs, log_of_abs)
    return log_s - log_s.logsumexp(-1, keepdim=True)


LOG_PROBS: dict[str, Callable[[Tensor], Tensor]] = {
    "stablemax_cross_entropy": stablemax_log_probs,
    "softmax_cross_entropy": lambda logits: widened(logits).log_softmax(-1),
}


class CrossEntropy:
    """The loss of the tokens. The loss of a plug-in has the same interface.

    Attributes:
        log_probs: turns logits [..., V] into log probabilities, float32 (float64 stays).
        smoothing: share of the target that is spread evenly over the V tokens.
    """

    def __init__(self, config: ACTLossConfig) -> None:
        self.log_probs = LOG_PROBS[config.loss_type]
        self.smoothing = config.label_smoothing

    def __call__(
        self, logits: Tensor, labels: Tensor, log_probs: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the cross entropy of each cell, float32 (float64 stays) [B, S], in nats. A cell
        without a label has 0.

        Args:
            logits: [B, S, V].
            labels: integers [B, S], -100 for cells without a label.
            log_probs: the token head's method; some heads return log probabilities as `logits`.
        """
        labelled = labels != IGNORE_LABEL_ID
        logs = log_probs(logits)
        picked = logs.gather(-1, torch.where(labelled, labels, 0).long().unsqueeze(-1)).squeeze(-1)
        if self.smoothing:
            picked = (1 - self.smoothing) * picked + self.smoothing * logs.mean(-1)
        return torch.where(labelled, -picked, 0.0)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross entropy of each logit, in nats; `targets` have the logits' dtype."""
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
