"""Losses and metrics of one ACT step (DESIGN "Loss" and "Metrics").

Sums are over the sequences of the batch; the trainer divides by the global batch size.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.act import ACT, ACTCarry, ACTOutput, Examples, Exploration
from models.config import FURTHER_HEADS, ACTLossConfig, HeadsConfig
from models.heads.auxiliary import IGNORE_LABEL_ID, Answered, FurtherHead
from models.layers import widened
from models.sparse_embedding import CastedSparseEmbedding

# Summed only over sequences that halted at this step and have labels; reported as a share of
# `count`.
COUNTED_METRICS = ("accuracy", "exact_accuracy", "q_halt_accuracy", "steps")


def stablemax_log_probs(logits: Tensor) -> Tensor:
    """Log probabilities [..., V] under stablemax, in float32 (float64 stays).

    Stablemax replaces exp by s(x) = x + 1 for x >= 0 and 1 / (1 - x) below (arXiv:2501.04697). log
    s is sign(x) * log1p(|x|), so that no float64 is needed.
    """
    wide = widened(logits)
    negative = wide < 0
    # Not sign() and abs(): their gradient at 0 is 0, that of s is 1.
    log_of_abs = torch.where(negative, -wide, wide).log1p()
    log_s = torch.where(negative, -log_of_abs, log_of_abs)
    return log_s - log_s.logsumexp(-1, keepdim=True)


def softmax_log_probs(logits: Tensor) -> Tensor:
    """Log probabilities [..., V] under softmax, in float32 (float64 stays)."""
    return widened(logits).log_softmax(-1)


LOG_PROBS: dict[str, Callable[[Tensor], Tensor]] = {
    "stablemax_cross_entropy": stablemax_log_probs,
    "softmax_cross_entropy": softmax_log_probs,
}


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    log_probs: Callable[[Tensor], Tensor],
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of each cell in nats, [B, S], 0 where the label is -100.

    With label smoothing that share of the target is spread evenly over the V tokens.
    """
    labelled = labels != IGNORE_LABEL_ID
    logs = log_probs(logits)
    picked = logs.gather(-1, torch.where(labelled, labels, 0).long().unsqueeze(-1)).squeeze(-1)
    if label_smoothing:
        picked = (1 - label_smoothing) * picked + label_smoothing * logs.mean(-1)
    return torch.where(labelled, -picked, 0.0)


class LossOutput(NamedTuple):
    """What a step gives the trainer.

    Attributes:
        carry: new carry.
        loss: sum over the sequences, to be divided by the global batch size.
        metrics: sums over the batch, 0-dim, by name: see `ACTLossHead.metric_names`.
        rows: the same for each row, float32 [B]; `count` is 1 where the row enters the counted
            metrics.
        output: the model's outputs.
    """

    carry: ACTCarry
    loss: Tensor
    metrics: dict[str, Tensor]
    rows: dict[str, Tensor]
    output: ACTOutput


class ACTLossHead(nn.Module):
    """A model with its losses. Called `model` inside, which is the first part of every checkpoint
    key.

    Attributes:
        counted_metrics: names of the metrics that count only at sequences that halted and have
            labels. loss_metrics: names of the losses, summed over all rows. has_q: whether there is
            a Q head.
    """

    def __init__(self, model: ACT, loss: ACTLossConfig, heads: HeadsConfig) -> None:
        super().__init__()
        self.model = model
        self.config = loss
        inner: Any = model.inner
        self._further: dict[str, FurtherHead] = {
            name: getattr(inner, f"{name}_head")
            for name in FURTHER_HEADS
            if getattr(heads, name) is not None
        }
        self.has_q = heads.q is not None
        losses = ["lm", *(["q_halt"] if self.has_q else [])]
        losses += ["q_continue"] if model.learns_continue else []
        losses += self._further
        losses += ["balance"] if heads.lm.name == "moe" else []
        self.loss_metrics = tuple(f"{name}_loss" for name in losses)
        self.counted_metrics = (
            *(name for name in COUNTED_METRICS if self.has_q or name != "q_halt_accuracy"),
            *(
                f"{name}_{metric}"
                for name, head in self._further.items()
                for metric in head.metric_names
            ),
        )
        # Learned weighting: s of exp(-s) * loss + s, 0 at the start, so that it starts as fixed.
        if loss.weighting == "uncertainty":
            self.log_variances = nn.ParameterDict(
                {name: nn.Parameter(torch.zeros(())) for name in losses}
            )

    @property
    def halting_head(self) -> str | None:
        """The head that says when a puzzle is done, `q_head` or `halt_head`, if there is one."""
        return "q_head" if self.has_q else "halt_head" if "halt" in self._further else None

    @property
    def puzzle_embedding(self) -> CastedSparseEmbedding | None:
        """The puzzle embedding, if the model has one."""
        return getattr(self.model.inner, "puzzle_emb", None)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities [..., V] that logits of the token head stand for, in float32
        (float64 stays).
        """
        inner: Any = self.model.inner
        return logits if inner.lm_head.normalized else LOG_PROBS[self.config.loss_type](logits)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of `LossOutput.metrics` in training; an evaluation has no `q_continue_loss`."""
        return ("count", *self.counted_metrics, *self.loss_metrics)

    def leave_unmeasured(self, names: Iterable[str]) -> None:
        """Give neither loss nor metrics of these further heads: in an evaluation on data that do
        not tell what they should say.
        """
        for name in names:
            head = self._further.pop(name)
            gone = {f"{name}_loss", *(f"{name}_{metric}" for metric in head.metric_names)}
            self.counted_metrics = tuple(m for m in self.counted_metrics if m not in gone)
            self.loss_metrics = tuple(m for m in self.loss_metrics if m not in gone)

    def prepare(self, batch_size: int) -> None:
        """Make room for training with `batch_size` rows on this rank; evaluation takes any number
        without.
        """
        if self.puzzle_embedding is not None:
            self.puzzle_embedding.prepare(batch_size)

    def initial_carry(self, examples: Examples) -> ACTCarry:
        """Return the model's carry before the first step."""
        return self.model.initial_carry(examples)

    def forward(
        self, carry: ACTCarry, offered: Examples, exploration: Exploration | None = None
    ) -> LossOutput:
        """Run one ACT step and measure it.

        A sequence without labels counts as right for q_halt_loss (the published behaviour); it
        enters no counted metric.
        """
        carry, output = self.model(carry, offered, exploration)
        rows, losses = self._measure(carry, output)
        first, *others = (self._weighed(name, value) for name, value in losses.items())
        loss = sum(others, first)
        rows |= {f"{name}_loss": value.detach() for name, value in losses.items()}
        return LossOutput(
            carry, loss, {name: value.sum() for name, value in rows.items()}, rows, output
        )

    def weighed_losses(self, carry: ACTCarry, output: ACTOutput) -> dict[str, Tensor]:
        """Return what each loss adds to the sum, 0-dim by name."""
        _, losses = self._measure(carry, output)
        return {name: self._weighed(name, value) for name, value in losses.items()}

    def learned_weights(self) -> dict[str, float]:
        """Return the factor of each loss in the sum, where they are learned."""
        if self.config.weighting == "fixed":
            return {}
        return {
            name: getattr(self.config.weights, name) * math.exp(-s.item())
            for name, s in self.log_variances.items()
        }

    def _weighed(self, name: str, values: Tensor) -> Tensor:
        """Return the part of a loss [B] in the sum."""
        limit = getattr(self.config.clip, name)
        total = (values if limit is None else _clipped(values, limit)).sum()
        weight = getattr(self.config.weights, name)
        if self.config.weighting == "uncertainty":
            s = self.log_variances[name]
            return weight * (torch.exp(-s) * total + s * values.shape[0])
        return total if weight == 1 else weight * total

    def _measure(
        self, carry: ACTCarry, output: ACTOutput
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return metrics and losses of each row."""
        labels = carry.examples["labels"]
        labelled = labels != IGNORE_LABEL_ID
        num_labelled = labelled.sum(-1)
        divisor = num_labelled.clamp_min(1)
        with torch.no_grad():
            right = labelled & (output.logits.argmax(-1) == labels)
            whole_right = right.sum(-1) == num_labelled
            counts = carry.halted & (num_labelled > 0)
            rows = {
                "count": counts.float(),
                "accuracy": torch.where(counts, right.sum(-1) / divisor, 0.0),
                "exact_accuracy": (counts & whole_right).float(),
            }
            if self.has_q:
                halts = output.q_halt_logits >= 0
                rows["q_halt_accuracy"] = (counts & (halts == whole_right)).float()
            rows["steps"] = torch.where(counts, carry.steps, 0).float()
        losses = self._token_and_q_losses(output, labels, divisor, whole_right)
        answered = Answered(labelled, right, whole_right)
        for name, head in self._further.items():
            logits = output.predictions.further[name]
            losses[name], metrics = head.measure(logits, carry.examples, answered)
            for metric, values in metrics.items():
                rows[f"{name}_{metric}"] = torch.where(counts, values.detach(), 0.0).float()
        if output.predictions.balance is not None:
            losses["balance"] = output.predictions.balance
        return rows, losses

    def _token_and_q_losses(
        self, output: ACTOutput, labels: Tensor, divisor: Tensor, whole_right: Tensor
    ) -> dict[str, Tensor]:
        smoothing = self.config.label_smoothing
        cells = cross_entropy(output.logits, labels, self.log_probs, smoothing)
        losses = {"lm": (cells / divisor.unsqueeze(-1)).sum(-1)}
        if self.has_q:
            right = whole_right.to(output.q_halt_logits.dtype)
            losses["q_halt"] = _binary_cross_entropy(output.q_halt_logits, right)
        if output.target_q_continue is not None:
            losses["q_continue"] = _binary_cross_entropy(
                output.q_continue_logits, output.target_q_continue
            )
        return losses


def _clipped(values: Tensor, limit: float) -> Tensor:
    """Let losses [B] beyond the limit grow with their logarithm only: the gradient is then that of
    the loss scaled down to the limit, and never 0, so that a model that starts there learns too.
    """
    beyond = limit * (1 + (values.clamp_min(limit) / limit).log())
    return torch.where(values > limit, beyond, values)


def _binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
