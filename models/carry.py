"""The state between two ACT steps.

Shape letters: B batch, S cells, P puzzle prefix, T = P + S, D hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Examples = dict[str, Tensor]
# State of a recurrence by name (`z_H`, `z_L`), each forward dtype [B, T, D].
Latents = dict[str, Tensor]
# What was drawn for a step, by name: `min_steps`, int32 [B], before which no slot halts early, and
# what techniques and the architecture draw. It depends on (seed, step, row) alone.
Drawn = dict[str, Tensor]


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
        """Return the carry of which `split` made these parts."""
        if len(parts) == 1:
            return parts[0]
        tensors = [part.tensors() for part in parts]
        joined = {name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
        return ACTCarry.from_tensors(joined)

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> "ACTCarry":
        """Rebuild a carry from what `tensors` returned."""
        inner = {name: value for name, value in tensors.items() if name.startswith("z_")}
        prefix = "examples."
        named = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        return ACTCarry(inner, tensors["steps"], tensors["halted"], named)
