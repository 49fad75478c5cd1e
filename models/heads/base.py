"""What all heads share: each reads the trunk's answer, and measures what it read off it.

The model calls `read` at each ACT step, `models.act.ACTLossHead` calls `measure`.

Shape letters, in all files of this folder: B batch, S cells, P puzzle prefix, T = P + S, D hidden
width, V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import CastedLinear
from models.losses import IGNORE_LABEL_ID, CrossEntropy

# The puzzles of a batch by name: inputs int32 [B, S], labels int32 [B, S], puzzle_identifiers int32
# [B], and fields of the data set.
Examples = dict[str, Tensor]
# What heads give, by name: `logits`, `q_halt_logits`, ..., each with B rows.
Outputs = dict[str, Tensor]
# The logit of a token that is never predicted: finite, as all losses and gradients must be.
NEVER = -1e9


class Answer(NamedTuple):
    """The trunk's answer, [B, T, D], with P prefix positions, as heads read it; `puzzle` are the
    puzzle embedding's rows [B, puzzle_emb_ndim], if there is one; `digits` the states [B, S, N, D]
    of each digit, where a model has such. All in the forward dtype.
    """

    states: Tensor
    num_prefix: int = 0
    puzzle: Tensor | None = None
    digits: Tensor | None = None

    @property
    def cells(self) -> Tensor:
        """[B, S, D]."""
        return self.states[:, self.num_prefix :] if self.num_prefix else self.states

    @property
    def of_tokens(self) -> Tensor:
        """What tokens are read from: [B, S, D], or the `digits`."""
        return self.cells if self.digits is None else self.digits

    @property
    def first(self) -> Tensor:
        """[B, D]."""
        return self.states[:, 0]


class Targets(NamedTuple):
    """What outputs are compared with."""

    examples: Examples
    labelled: Tensor  # bool [B, S], cells that have a label
    right: Tensor  # bool [B, S], labelled, and the likeliest token is the label
    whole_right: Tensor  # bool [B], every labelled cell is right

    @staticmethod
    def of(examples: Examples, logits: Tensor) -> "Targets":
        """Compare token logits [B, S, V] with the labels of `examples`."""
        with torch.no_grad():
            labels = examples["labels"]
            labelled = labels != IGNORE_LABEL_ID
            right = labelled & (logits.argmax(-1) == labels)
            return Targets(examples, labelled, right, right.sum(-1) == labelled.sum(-1))


class Measured(NamedTuple):
    """Losses and metrics of each row, [B] by name; losses in nats."""

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class HaltingRule:
    """When a slot halts before its last step: in training, and where an evaluation asks for it."""

    compares: bool  # q_halt with q_continue; otherwise with 0

    def wants_to_halt(self, outputs: Outputs) -> Tensor:
        """Return bool [B]."""
        return outputs["q_halt_logits"] > (outputs["q_continue_logits"] if self.compares else 0.0)


class Head(nn.Module):
    """A part of the model that predicts something from the trunk's answer.

    Attributes:
        name: of the head; its weights have the keys `model.inner.NAME_head...`.
        loss_names: losses that it may give, each a key of `arch.loss.weights`.
        metric_names: metrics that it gives.
        rule: when a slot halts, where this head decides it.
        gives_confidence: whether its output NAME_logits, [B, S], says how sure it is of each cell.
    """

    name: str
    loss_names: tuple[str, ...]
    metric_names: tuple[str, ...]
    rule: HaltingRule | None = None
    gives_confidence = False

    def read(self, answer: Answer) -> Outputs:
        """Return what the head predicts."""
        raise NotImplementedError

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        """Compare what this head predicted, among the outputs of all heads, with its targets."""
        raise NotImplementedError


class TokenHead(Head):
    """Maps [B, S, D] to V outputs; a subclass defines `forward`. Metrics: `accuracy`, the share of
    the labelled cells that are right, and `exact_accuracy`.

    Attributes:
        normalized: whether the outputs are log probabilities already.
        loss: how the outputs are judged: what stands behind `arch.loss.name`.
        dropout: share of the states that is set to 0 in training.
    """

    name = "lm"
    loss_names: tuple[str, ...] = ("lm",)
    metric_names = ("accuracy", "exact_accuracy")
    normalized: bool = False
    loss: CrossEntropy
    dropout = 0.0

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        """Return logits [B, S, V], or log probabilities where the head is `normalized`, for states
        [B, S, D] and the puzzle embedding's rows [B, puzzle_emb_ndim].
        """
        raise NotImplementedError

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        """Return `logits`, and by their names the head's further losses, float32 [B]."""
        return {"logits": self(hidden, puzzle)}

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log probabilities [..., V] that logits stand for, float32 (float64 stays)."""
        return logits if self.normalized else self.loss.log_probs(logits)

    def read(self, answer: Answer) -> Outputs:
        """Return the outputs for an answer, with dropout in training."""
        states = answer.of_tokens
        if self.dropout:
            states = F.dropout(states, self.dropout, self.training)
        return self.outputs(states, answer.puzzle)

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        divisor = targets.labelled.sum(-1).clamp_min(1)
        cells = self.loss(outputs["logits"], targets.examples["labels"], self.log_probs)
        losses = {"lm": (cells / divisor.unsqueeze(-1)).sum(-1)}
        losses |= {name: outputs[name] for name in self.loss_names if name in outputs}
        accuracy = targets.right.sum(-1) / divisor
        return Measured(losses, {"accuracy": accuracy, "exact_accuracy": targets.whole_right})

    def products(self) -> Iterable[tuple[CastedLinear, Tensor]]:
        """Yield weights that are in no layer, each with a layer that multiplies the same states."""
        return ()


class Matrix(TokenHead):
    """A matrix `weight` [V, D] and an optional `bias` [V]; a subclass says whose matrix it is."""

    weight: Tensor
    bias: nn.Parameter | None

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return F.linear(hidden, self.weight.to(hidden.dtype), bias)
