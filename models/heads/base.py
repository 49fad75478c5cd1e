"""The base classes of heads. A head reads predictions from the trunk's answer, and measures them.

The model calls `read` at each ACT step; `models.act.ACTLossHead` calls `measure`.

Shape letters, in all files of this folder: B batch, S cells, P puzzle prefix, T = P + S, D hidden
width, V vocabulary.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.losses import IGNORE_LABEL_ID, CrossEntropy

# The puzzles of a batch: inputs and labels int32 [B, S], puzzle_identifiers int32 [B], and the
# fields of the data set by name.
Examples = dict[str, Tensor]
# Outputs of the heads by name: `logits`, `q_halt_logits`, ..., each with B rows.
Outputs = dict[str, Tensor]
# The logit of a token that is never predicted; finite, to keep losses and gradients finite.
NEVER = -1e9


class Answer(NamedTuple):
    """The trunk's answer, in the forward dtype, as heads read it."""

    states: Tensor  # [B, T, D]
    num_prefix: int = 0  # P
    puzzle: Tensor | None = None  # rows of the puzzle embedding [B, puzzle_emb_ndim]
    digits: Tensor | None = None  # [B, S, N, D] in a model with a state for each digit

    @property
    def cells(self) -> Tensor:
        """The states of the cells, [B, S, D]."""
        return self.states[:, self.num_prefix :] if self.num_prefix else self.states

    @property
    def of_tokens(self) -> Tensor:
        """The states that predict the tokens: `digits`, or else `cells`."""
        return self.cells if self.digits is None else self.digits

    @property
    def first(self) -> Tensor:
        """The state of the first position, [B, D]."""
        return self.states[:, 0]


class Targets(NamedTuple):
    """The labels of a batch, compared with its predicted tokens."""

    examples: Examples
    labelled: Tensor  # bool [B, S], cells that have a label
    right: Tensor  # bool [B, S], labelled cells with the label as likeliest token
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
    """The rule for halting a slot before its last step, in training and early-exit evaluation."""

    compares: bool  # true: halt if q_halt > q_continue; false: if q_halt > 0

    def wants_to_halt(self, outputs: Outputs) -> Tensor:
        """Return bool [B], the slots to halt."""
        return outputs["q_halt_logits"] > (outputs["q_continue_logits"] if self.compares else 0.0)


class Head(nn.Module):
    """A part of the model that predicts something from the trunk's answer.

    Attributes:
        name: its weights have the keys `model.inner.NAME_head...`.
        loss_names: losses that it may return, each a key of `arch.loss.weights`.
        metric_names: metrics that it returns.
        rule: its rule for halting a slot; None: another head decides, or none.
        gives_confidence: whether its output NAME_logits, [B, S], is the confidence in each cell.
    """

    name: str
    loss_names: tuple[str, ...]
    metric_names: tuple[str, ...]
    rule: HaltingRule | None = None
    gives_confidence = False

    def read(self, answer: Answer) -> Outputs:
        """Return the outputs of the head."""
        raise NotImplementedError

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        """Compare this head's part of all `outputs` with its targets."""
        raise NotImplementedError


class TokenHead(Head):
    """A head that maps [B, S, D] to V outputs for each cell. A subclass defines `forward`. Metrics:
    `accuracy`, the share of labelled cells that are right, and `exact_accuracy`.

    Attributes:
        normalized: whether the outputs are log probabilities already.
        loss: the loss that `arch.loss.name` names.
        dropout: share of the states that is set to 0 in training.
    """

    name = "lm"
    loss_names: tuple[str, ...] = ("lm",)
    metric_names = ("accuracy", "exact_accuracy")
    normalized: bool = False
    loss: CrossEntropy
    dropout = 0.0

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        """Return logits [B, S, V], or log probabilities if `normalized`, for states [B, S, D] and
        the puzzle embedding's rows [B, puzzle_emb_ndim].
        """
        raise NotImplementedError

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        """Return `logits`, and the head's further losses by name, float32 [B]."""
        return {"logits": self(hidden, puzzle)}

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log probabilities [..., V] of `logits`, float32 (float64 stays)."""
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


class Matrix(TokenHead):
    """A token head of one matrix `weight` [V, D] with an optional `bias` [V]."""

    weight: Tensor
    bias: nn.Parameter | None

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return F.linear(hidden, self.weight.to(hidden.dtype), bias)
