"""The Tiny Recursive Model (arXiv:2510.04871).

One small network does everything: it refines the latent z_L, L_cycles times, from puzzle and
answer, and then the answer z_H. The whole last H cycle has gradients.
"""

from typing import Any

import torch
from torch import Tensor

from models.config import DataFacts
from models.recurrence import CycledRecurrence, Latents, ReasoningLevel, Rotary


class _TinyRecurrence(CycledRecurrence):
    """H_cycles - 1 cycles without gradients, then one with. A subclass defines `cycle`."""

    initial_states: tuple[str, ...]

    def __init__(self, config: Any, facts: DataFacts) -> None:
        super().__init__(config, facts)
        self.L_level = ReasoningLevel(config, config.L_layers, self.num_positions, self.block)
        self.add_initial_states(self.initial_states)

    def recur(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        with torch.no_grad():
            for _ in range(self.H_cycles - 1):
                latents = self.cycle(latents, injected, rotary)
        return self.cycle(latents, injected, rotary)

    def cycle(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """Return the latents after L_cycles updates and the update of the answer."""
        raise NotImplementedError


class TRMInner(_TinyRecurrence):
    """Two latents: the answer z_H and the reasoning z_L."""

    initial_states = ("H", "L")

    def cycle(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """z_L = net(z_L + z_H + input), L_cycles times, then z_H = net(z_H + z_L)."""
        z_H, z_L = latents["z_H"], latents["z_L"]
        context = z_H + injected
        for _ in range(self.L_cycles):
            z_L = self.moved(z_L, self.L_level(z_L + context, rotary))
        return {"z_H": self.moved(z_H, self.L_level(z_H + z_L, rotary)), "z_L": z_L}


class TRMSingleInner(_TinyRecurrence):
    """One latent is both: the paper's ablation (section 4.2)."""

    initial_states = ("L",)

    def cycle(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """z = net(z + input), L_cycles times, then z = net(z)."""
        z_L = latents["z_L"]
        for _ in range(self.L_cycles):
            z_L = self.moved(z_L, self.L_level(z_L + injected, rotary))
        return {"z_L": self.moved(z_L, self.L_level(z_L, rotary))}
