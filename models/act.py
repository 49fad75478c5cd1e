"""Adaptive computation time: examples of one batch that think for different numbers of steps
(arXiv:2506.21734, 2.2).

Every slot of the batch works on its own example until it halts; then it takes the example offered
next. One call is one ACT step for all slots, so that shapes never change and nothing depends on
tensor values in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

Examples = dict[str, Tensor]
# State of a recurrence by name (`z_H`, `z_L`), each forward dtype [B, T, D].
Latents = dict[str, Tensor]


@dataclass
class ACTCarry:
    """State between two ACT steps.

    Attributes:
        inner: latent state of the recurrence.
        steps: int32 [B], ACT steps spent on the present example.
        halted: bool [B], the slot takes a new example at the next step.
        examples: the examples being worked on: inputs int32 [B, S], labels int32 [B, S],
            puzzle_identifiers int32 [B].
    """

    inner: Latents
    steps: Tensor
    halted: Tensor
    examples: Examples

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, row by row the slots; what a checkpoint keeps."""
        named = self.inner | {"steps": self.steps, "halted": self.halted}
        return named | {f"examples.{name}": value for name, value in self.examples.items()}

    def split(self, num_parts: int) -> "list[ACTCarry]":
        """Return equal parts of the slots, in order; views of these tensors."""
        if num_parts == 1:
            return [self]
        chunks = {name: value.chunk(num_parts) for name, value in self.tensors().items()}
        return [
            ACTCarry.from_tensors({name: parts[number] for name, parts in chunks.items()})
            for number in range(num_parts)
        ]

    @staticmethod
    def join(parts: "Sequence[ACTCarry]") -> "ACTCarry":
        """Put together what `split` has parted."""
        if len(parts) == 1:
            return parts[0]
        tensors = [part.tensors() for part in parts]
        return ACTCarry.from_tensors(
            {name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
        )

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> "ACTCarry":
        """Rebuild a carry from what `tensors` returned."""
        examples = {
            name.removeprefix("examples."): value
            for name, value in tensors.items()
            if name.startswith("examples.")
        }
        return ACTCarry(
            {name: value for name, value in tensors.items() if name.startswith("z_")},
            tensors["steps"],
            tensors["halted"],
            examples,
        )


class Exploration(NamedTuple):
    """Noise of the halting rule, drawn outside the model so that it depends on (seed, step, row)
    alone.

    Attributes:
        min_steps: int32 [B]; a slot must not halt early before this many steps (0: no constraint).
    """

    min_steps: Tensor


class Predictions(NamedTuple):
    """What the heads say of one answer.

    Attributes:
        logits: of the token head, [B, S, V] in forward dtype; log-probabilities, in float32, where
            it is `normalized`.
        q_halt_logits, q_continue_logits: float32 [B]. Without a Q head, the `halt` head's gap of
            halt over go on, and 0; without either, 0.
        further: logits of the other heads, by name.
        balance: the token head's balance loss, float32 [B], if it has one.
    """

    logits: Tensor
    q_halt_logits: Tensor
    q_continue_logits: Tensor
    further: dict[str, Tensor]
    balance: Tensor | None


class ACTOutput(NamedTuple):
    """One ACT step: what the heads predicted; `target_q_continue` float32 [B] or None."""

    predictions: Predictions
    target_q_continue: Tensor | None

    @property
    def logits(self) -> Tensor:
        """Token logits [B, S, V]."""
        return self.predictions.logits

    @property
    def q_halt_logits(self) -> Tensor:
        """Halt logits, float32 [B]."""
        return self.predictions.q_halt_logits

    @property
    def q_continue_logits(self) -> Tensor:
        """Continue logits, float32 [B]."""
        return self.predictions.q_continue_logits


class ACT(nn.Module):
    """Wrap a recurrence and its heads with halting.

    Args:
        inner: the recurrence, a `models.recurrence.Recurrence`.
        heads: reads the recurrence's heads.
        halt_max_steps: ACT steps after which a slot halts in any case.
        learns_continue: HRM's q_continue, with a bootstrapped target. With one step there is
            nothing to choose and nothing is learned, as published.
        rule: when a slot may halt early; None: never.
    """

    def __init__(
        self,
        inner: nn.Module,
        heads: "ReadHeads",
        *,
        halt_max_steps: int,
        learns_continue: bool,
        rule: "HaltingRule | None",
    ) -> None:
        super().__init__()
        self.inner = inner
        self.read = heads
        self.halt_max_steps = halt_max_steps
        self.learns_continue = learns_continue and halt_max_steps > 1
        self.rule = rule

    def initial_carry(self, examples: Examples) -> ACTCarry:
        """Return a carry whose slots have all halted: the first step takes every example of the
        batch offered.
        """
        inputs = examples["inputs"]
        return ACTCarry(
            inner=self.inner.empty_carry(inputs.shape[0]),  # type: ignore[operator]
            steps=torch.zeros(inputs.shape[0], dtype=torch.int32, device=inputs.device),
            halted=torch.ones(inputs.shape[0], dtype=torch.bool, device=inputs.device),
            examples={name: torch.zeros_like(value) for name, value in examples.items()},
        )

    def forward(
        self, carry: ACTCarry, offered: Examples, exploration: Exploration | None = None
    ) -> tuple[ACTCarry, ACTOutput]:
        """Run one ACT step on every slot.

        Args:
            carry: state after the previous step.
            offered: the next batch; halted slots take their row of it, the others discard it.
            exploration: training only; None means that every slot may halt at any step.
        Returns:
            the new carry (detached), the outputs of this step.
        """
        steps = torch.where(carry.halted, 0, carry.steps)
        examples = {
            name: torch.where(carry.halted.view(-1, *[1] * (kept.ndim - 1)), offered[name], kept)
            for name, kept in carry.examples.items()
        }
        latents = self.inner.reset_carry(carry.halted, carry.inner)  # type: ignore[operator]
        latents, answer = self.inner(latents, examples)
        predictions = self.read(answer, examples)

        steps = steps + 1
        last_step = steps >= self.halt_max_steps
        halted = last_step
        if self.training and self.halt_max_steps > 1 and self.rule is not None:
            with torch.no_grad():
                halted = last_step | self.rule.wants_to_halt(predictions, steps)
                if exploration is not None:
                    halted = halted & (steps >= exploration.min_steps)
        target = None
        if self.training and self.learns_continue:
            target = self._target_q_continue(latents, examples, last_step)
        return ACTCarry(latents, steps, halted, examples), ACTOutput(predictions, target)

    @torch.no_grad()
    def _target_q_continue(self, latents: Latents, examples: Examples, last_step: Tensor) -> Tensor:
        """Bootstrap from the Q values of one more ACT step."""
        _, answer = self.inner(latents, examples)
        q_halt, q_continue = self.read.q_values(answer)
        return torch.where(last_step, q_halt, torch.maximum(q_halt, q_continue)).sigmoid()


@dataclass(frozen=True)
class HaltingRule:
    """When a slot halts before its last step, in training.

    Attributes:
        compares: q_halt with q_continue; otherwise with 0.
        min_steps: ACT steps before which no slot does. bonus: divided by the root of the steps
            taken, and added to what q_halt must exceed.
    """

    compares: bool
    min_steps: int = 1
    bonus: float = 0.0

    def wants_to_halt(self, predictions: Predictions, steps: Tensor) -> Tensor:
        """Return bool [B]; `steps` (int32 [B]) counts this one."""
        bar = predictions.q_continue_logits if self.compares else 0.0
        if self.bonus:
            bar = bar + self.bonus * steps.float().rsqrt()
        wants = predictions.q_halt_logits > bar
        return wants & (steps >= self.min_steps) if self.min_steps > 1 else wants


class ReadHeads(Protocol):
    """Reads heads on the trunk's answer [B, T, D]; `models.heads.build.HeadReader`."""

    def __call__(self, answer: Tensor, examples: Examples, /) -> Predictions:
        """Return what all heads say."""
        ...

    def q_values(self, answer: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return q_halt and q_continue, float32 [B]; asked for only if q_continue is learned."""
        ...
