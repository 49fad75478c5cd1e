"""Heads beside tokens and Q: each predicts something that the labels or the data set say, has a
loss and reports its own metrics.

A head reads the trunk's answer [B, T, D] and gives outputs by name; asked with the examples, it
gives a loss and metrics for each row. Losses are in nats. With `detach` its gradient stays with the
head and leaves the trunk alone.

Shape letters: B batch, S cells, P puzzle prefix, T = P + S, D hidden width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.act import Examples
from models.heads.calibration import NUM_BINS
from models.layers import CastedLinear, widened

IGNORE_LABEL_ID = -100


class Answered(NamedTuple):
    """What is known of the tokens that were predicted.

    Attributes:
        labelled: bool [B, S], cells that have a label.
        right: bool [B, S], labelled and predicted right.
        whole_right: bool [B], every labelled cell is right.
    """

    labelled: Tensor
    right: Tensor
    whole_right: Tensor


class Measured(NamedTuple):
    """Loss float32 [B] and metrics float32 [B] by name."""

    loss: Tensor
    metrics: dict[str, Tensor]


class FurtherHead(nn.Module):
    """A head beside tokens and Q.

    Attributes:
        name: of the head; its loss is NAME_loss, its output NAME_logits.
        metric_names: what `measure` reports, without the head's name.
        field: of the data set that it needs, or None.
    """

    name: str
    metric_names: tuple[str, ...]
    field: str | None = None

    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.detach = detach

    def forward(self, answer: Tensor, num_prefix: int) -> Tensor:
        """Return the head's logits for the trunk's answer [B, T, D], in float32 (float64 stays)."""
        answer = answer.detach() if self.detach else answer
        return widened(self.read(answer, num_prefix))

    def read(self, answer: Tensor, num_prefix: int) -> Tensor:
        """Return the head's logits in any dtype."""
        raise NotImplementedError

    def measure(self, logits: Tensor, examples: Examples, answered: Answered) -> Measured:
        """Compare logits with what they should say."""
        raise NotImplementedError


class CellLogitHead(FurtherHead):
    """One logit a cell, [B, S]."""

    def __init__(self, hidden_size: int, detach: bool) -> None:
        super().__init__(detach)
        self.proj = CastedLinear(hidden_size, 1, bias=True)

    def read(self, answer: Tensor, num_prefix: int) -> Tensor:
        """Return [B, S]."""
        return self.proj(answer[:, num_prefix:]).squeeze(-1)


class ConfidenceHead(CellLogitHead):
    """Is each cell right? One logit a cell, [B, S].

    Metrics: `accuracy`, the share of labelled cells of which it says rightly whether they are
    right; `bin0_gap` to `bin9_gap`, of the cells whose confidence lies in that tenth the sum of
    (confidence - right), divided by the row's labelled cells. The expected calibration error
    (arXiv:1706.04599) is the sum over the bins of |mean gap|.
    """

    name = "confidence"
    metric_names = ("accuracy", *(f"bin{i}_gap" for i in range(NUM_BINS)))

    def measure(self, logits: Tensor, examples: Examples, answered: Answered) -> Measured:
        """Binary cross entropy over the labelled cells."""
        labelled, right = answered.labelled, answered.right
        losses = F.binary_cross_entropy_with_logits(
            logits, right.to(logits.dtype), reduction="none"
        )
        with torch.no_grad():
            confidence = logits.sigmoid()
            gaps = confidence - right.to(logits.dtype)
            bins = (confidence * NUM_BINS).long().clamp_max(NUM_BINS - 1)
            metrics = {"accuracy": _mean((logits > 0) == right, labelled)}
            for i in range(NUM_BINS):
                metrics[f"bin{i}_gap"] = _mean(torch.where(bins == i, gaps, 0.0), labelled)
        return Measured(_mean(losses, labelled), metrics)


class PositionAttentionHead(CellLogitHead):
    """Which cells will the answer change? A distribution over the S cells, [B, S] logits.

    The target spreads evenly over the labelled cells whose label differs from the input. Metric:
    `precision`, the share of its n most likely cells that do change, n their number; 1 where none
    changes.
    """

    name = "attention"
    metric_names = ("precision",)

    def measure(self, logits: Tensor, examples: Examples, answered: Answered) -> Measured:
        """Cross entropy between the even target and the softmax over cells."""
        changes = answered.labelled & (examples["labels"] != examples["inputs"])
        number = changes.sum(-1)
        losses = -_mean(logits.log_softmax(-1), changes)
        with torch.no_grad():
            ranks = logits.argsort(-1, descending=True).argsort(-1)
            found = _mean(ranks < number.unsqueeze(-1), changes)
            precision = torch.where(number > 0, found, 1.0)
        return Measured(losses, {"precision": precision})


class FieldHead(FurtherHead):
    """Classes of each cell, told by a field of the data set, [B, S, ..., classes] logits.

    Cells where the field is negative do not count. Metric: `accuracy` over the cells that count.
    """

    metric_names = ("accuracy",)

    def __init__(
        self,
        hidden_size: int,
        detach: bool,
        *,
        name: str,
        field: str,
        num_classes: int,
        channels: tuple[int, ...] = (),
    ) -> None:
        super().__init__(detach)
        self.name, self.field = name, field
        self.shape = (*channels, num_classes)
        width = num_classes * (channels[0] if channels else 1)
        self.proj = CastedLinear(hidden_size, width, bias=True)

    def read(self, answer: Tensor, num_prefix: int) -> Tensor:
        """Return [B, S, classes], or [B, S, channels, classes]."""
        return self.proj(answer[:, num_prefix:]).unflatten(-1, self.shape)

    def measure(self, logits: Tensor, examples: Examples, answered: Answered) -> Measured:
        """Cross entropy, the mean over cells (and channels) that count."""
        assert self.field is not None
        targets = examples[self.field].long()
        told = targets >= 0
        safe = torch.where(told, targets, 0)
        picked = logits.log_softmax(-1).gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            accuracy = _mean((logits.argmax(-1) == targets).flatten(1), told.flatten(1))
        loss = -_mean(picked.flatten(1), told.flatten(1))
        return Measured(loss, {"accuracy": accuracy})


class HaltHead(FurtherHead):
    """Stop here? Two logits, (go on, halt), [B, 2], read at the first position.

    The target is whether the whole answer is right. Metric: `accuracy`.
    """

    name = "halt"
    metric_names = ("accuracy",)

    def __init__(self, hidden_size: int, detach: bool) -> None:
        super().__init__(detach)
        self.proj = CastedLinear(hidden_size, 2, bias=True)
        # It starts near "not right yet", like Q: random values would halt rows at random.
        with torch.no_grad():
            assert self.proj.bias is not None
            self.proj.weight.zero_()
            self.proj.bias.copy_(torch.tensor([0.0, -5.0]))

    def read(self, answer: Tensor, num_prefix: int) -> Tensor:
        """Return [B, 2]."""
        return self.proj(answer[:, 0])

    def measure(self, logits: Tensor, examples: Examples, answered: Answered) -> Measured:
        """Cross entropy of the two values."""
        targets = answered.whole_right.long()
        loss = F.cross_entropy(logits, targets, reduction="none")
        accuracy = (logits.argmax(-1) == targets).float()
        return Measured(loss, {"accuracy": accuracy})


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Mean over the last dimension of what `where` marks; 0 where it marks nothing."""
    values = values.to(torch.float32) if values.dtype == torch.bool else values
    total = torch.where(where, values, torch.zeros_like(values)).sum(-1)
    return total / where.sum(-1).clamp_min(1)
