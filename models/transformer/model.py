"""The baseline without the inner recursion: a plain transformer under the same ACT loop.

An ACT step is one pass of one stack, all with gradients. Its depth comes from layers alone, not
from recursion: the ablation in the ARC Prize's analysis of HRM.
"""

from torch import Tensor

from models.config import DataFacts
from models.recurrence import Latents, ReasoningLevel, Recurrence, Rotary
from models.transformer.config import TransformerConfig


class TransformerInner(Recurrence):
    """z_H = H(z_H + input)."""

    def __init__(self, config: TransformerConfig, facts: DataFacts) -> None:
        super().__init__(config, facts)
        self.H_level = ReasoningLevel(config, config.H_layers, self.num_positions)
        self.add_initial_states(("H",))

    def recur(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """Run the stack once."""
        z_H = latents["z_H"]
        return {"z_H": self.moved(z_H, self.H_level(z_H + injected, rotary))}
