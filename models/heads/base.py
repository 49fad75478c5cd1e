"""What all heads share: each reads the trunk's answer, and measures what it read off it.

The model calls `read` at each ACT step, `models.act.ACTLossHead` calls `measure`.

Shape letters, in all files of this folder: B batch, S cells, P puzzle prefix, T = P + S, D hidden
width, V vocabulary, M chosen cells, J chosen tokens, R rank, E experts, C clusters.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.losses import IGNORE_LABEL_ID

# The puzzles of a batch by name: inputs int32 [B, S], labels int32 [B, S], puzzle_identifiers int32
# [B], and fields of the data set.
Examples = dict[str, Tensor]
# What heads give, by name: `logits`, `q_halt_logits`, ..., each with B rows.
Outputs = dict[str, Tensor]


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
    """What outputs are compared with.

    Attributes:
        examples: inputs, labels and fields of the puzzles.
        labelled: bool [B, S], cells that have a label.
        right: bool [B, S], labelled, and the likeliest token is the label.
        whole_right: bool [B], every labelled cell is right.
    """

    examples: Examples
    labelled: Tensor
    right: Tensor
    whole_right: Tensor

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
    min_steps: int = 1  # ACT steps before which no slot halts
    bonus: float = 0.0  # divided by the root of the steps, and added to what q_halt must exceed

    def wants_to_halt(self, outputs: Outputs, steps: Tensor, *, explores: bool = True) -> Tensor:
        """Return bool [B]; `steps` (int32 [B]) counts this one. The bonus is for exploring."""
        bar = outputs["q_continue_logits"] if self.compares else 0.0
        if self.bonus and explores:
            bar = bar + self.bonus * steps.float().rsqrt()
        wants = outputs["q_halt_logits"] > bar
        return wants & (steps >= self.min_steps) if self.min_steps > 1 else wants


class Head(nn.Module):
    """A part of the model that predicts something from the trunk's answer.

    Attributes:
        name: of the head; its weights have the keys `model.inner.NAME_head...`.
        loss_names: losses that it may give, each a key of `arch.loss.weights`.
        metric_names: metrics that it gives.
        rule: when a slot halts, where this head decides it.
    """

    name: str
    loss_names: tuple[str, ...]
    metric_names: tuple[str, ...]
    rule: HaltingRule | None = None

    def read(self, answer: Answer) -> Outputs:
        """Return what the head predicts."""
        raise NotImplementedError

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        """Compare what this head predicted, among the outputs of all heads, with its targets."""
        raise NotImplementedError
