"""Adaptive computation time: examples of one batch that think for different numbers of steps
(arXiv:2506.21734, 2.2).

Every slot of the batch works on its own example until it halts; then it takes the example offered
next. One call is one ACT step for all slots, so that shapes never change and nothing depends on
tensor values in Python.
"""

from dataclasses import dataclass
from typing import NamedTuple

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


class ACTOutput(NamedTuple):
    """One ACT step: logits forward dtype [B, S, V]; Q logits float32 [B]; `target_q_continue`
    float32 [B] or None.
    """

    logits: Tensor
    q_halt_logits: Tensor
    q_continue_logits: Tensor
    target_q_continue: Tensor | None


class ACT(nn.Module):
    """Wrap a recurrence with halting.

    Args:
        inner: the recurrence, a `models.recurrence.Recurrence`.
        halt_max_steps: ACT steps after which a slot halts in any case.
        learns_continue: HRM's rule, q_halt > q_continue, with a bootstrapped target for q_continue;
            otherwise TRM's, q_halt > 0. With one step there is nothing to choose and nothing is
            learned, as published.
    """

    def __init__(self, inner: nn.Module, *, halt_max_steps: int, learns_continue: bool) -> None:
        super().__init__()
        self.inner = inner
        self.halt_max_steps = halt_max_steps
        self.learns_continue = learns_continue and halt_max_steps > 1

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
        inner_carry = self.inner.reset_carry(carry.halted, carry.inner)  # type: ignore[operator]
        inner_carry, logits, (q_halt, q_continue) = self.inner(inner_carry, examples)

        steps = steps + 1
        last_step = steps >= self.halt_max_steps
        target_q_continue = None
        halted = last_step
        if self.training and self.halt_max_steps > 1:
            with torch.no_grad():
                wants_to_halt = q_halt > q_continue if self.learns_continue else q_halt > 0
                halted = last_step | wants_to_halt
                if exploration is not None:
                    halted = halted & (steps >= exploration.min_steps)
        if self.training and self.learns_continue:
            with torch.no_grad():
                _, _, (next_halt, next_continue) = self.inner(inner_carry, examples)
                target_q_continue = torch.where(
                    last_step, next_halt, torch.maximum(next_halt, next_continue)
                ).sigmoid()
        new_carry = ACTCarry(inner_carry, steps, halted, examples)
        return new_carry, ACTOutput(logits, q_halt, q_continue, target_q_continue)
