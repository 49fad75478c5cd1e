"""Losses and metrics of one ACT step (DESIGN "Loss" and "Metrics").

Sums are over the sequences of the batch; the trainer divides by the global batch size.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.act import ACT, ACTCarry, ACTOutput, Examples, Exploration
from models.sparse_embedding import CastedSparseEmbedding

IGNORE_LABEL_ID = -100

# Summed only over sequences that halted at this step and have labels; reported as a share of
# `count`.
COUNTED_METRICS = ("accuracy", "exact_accuracy", "q_halt_accuracy", "steps")
# Summed over all rows; reported divided by the global batch size.
LOSS_METRICS = ("lm_loss", "q_halt_loss", "q_continue_loss")


def stablemax_log_probs(logits: Tensor) -> Tensor:
    """Log probabilities [..., V] under stablemax, in float32 (float64 stays).

    Stablemax replaces exp by s(x) = x + 1 for x >= 0 and 1 / (1 - x) below (arXiv:2501.04697). log
    s is sign(x) * log1p(|x|), so that no float64 is needed.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    negative = wide < 0
    # Not sign() and abs(): their gradient at 0 is 0, that of s is 1.
    log_of_abs = torch.where(negative, -wide, wide).log1p()
    log_s = torch.where(negative, -log_of_abs, log_of_abs)
    return log_s - log_s.logsumexp(-1, keepdim=True)


def softmax_log_probs(logits: Tensor) -> Tensor:
    """Log probabilities [..., V] under softmax, in float32 (float64 stays)."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


LOG_PROBS: dict[str, Callable[[Tensor], Tensor]] = {
    "stablemax_cross_entropy": stablemax_log_probs,
    "softmax_cross_entropy": softmax_log_probs,
}


def cross_entropy(logits: Tensor, labels: Tensor, log_probs: Callable[[Tensor], Tensor]) -> Tensor:
    """Cross entropy of each cell in nats, [B, S], 0 where the label is -100."""
    labelled = labels != IGNORE_LABEL_ID
    picked = (
        log_probs(logits)
        .gather(-1, torch.where(labelled, labels, 0).long().unsqueeze(-1))
        .squeeze(-1)
    )
    return torch.where(labelled, -picked, 0.0)


class LossOutput(NamedTuple):
    """What a step gives the trainer.

    Attributes:
        carry: new carry.
        loss: sum over the sequences, to be divided by the global batch size.
        metrics: sums over the batch, 0-dim: `count`, COUNTED_METRICS and the LOSS_METRICS that
            apply.
        rows: the same for each row, float32 [B]; `count` is 1 where the row enters COUNTED_METRICS.
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
    """

    def __init__(self, model: ACT, loss_type: str) -> None:
        super().__init__()
        self.model = model
        self.loss_type = loss_type

    @property
    def puzzle_embedding(self) -> CastedSparseEmbedding | None:
        """The puzzle embedding, if the model has one."""
        return getattr(self.model.inner, "puzzle_emb", None)

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
        loss = losses["lm_loss"].sum() + 0.5 * (losses["q_halt_loss"].sum())
        if "q_continue_loss" in losses:
            loss = loss + 0.5 * losses["q_continue_loss"].sum()
        rows |= {name: value.detach() for name, value in losses.items()}
        return LossOutput(
            carry, loss, {name: value.sum() for name, value in rows.items()}, rows, output
        )

    def _measure(
        self, carry: ACTCarry, output: ACTOutput
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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
                "q_halt_accuracy": (counts & ((output.q_halt_logits >= 0) == whole_right)).float(),
                "steps": torch.where(counts, carry.steps, 0).float(),
            }
        cell_losses = cross_entropy(output.logits, labels, LOG_PROBS[self.loss_type])
        losses = {
            "lm_loss": (cell_losses / divisor.unsqueeze(-1)).sum(-1),
            "q_halt_loss": _binary_cross_entropy(
                output.q_halt_logits, whole_right.to(output.q_halt_logits.dtype)
            ),
        }
        if output.target_q_continue is not None:
            losses["q_continue_loss"] = _binary_cross_entropy(
                output.q_continue_logits, output.target_q_continue
            )
        return rows, losses


def _binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
