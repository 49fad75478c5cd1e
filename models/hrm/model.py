"""The Hierarchical Reasoning Model (arXiv:2506.21734).

Two recurrent stacks share one width: L works fast on details, H slowly on plans. Each H cycle runs
L_cycles updates of z_L and then one of z_H. Only the very last update of each has gradients: the
paper's "Approximate gradient", in place of backpropagation through time.
"""

import torch
from torch import Tensor

from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.recurrence import CycledRecurrence, Latents, ReasoningLevel, Rotary


class HRMInner(CycledRecurrence):
    """z_L = L(z_L + z_H + input), L_cycles times, then z_H = H(z_H + z_L); all this H_cycles times.
    `gradient=last_cycle`, an ablation of ours, has gradients in the whole last cycle.
    """

    def __init__(self, config: HRMConfig, facts: DataFacts) -> None:
        super().__init__(config, facts)
        self.config = config
        self.H_level = ReasoningLevel(config, config.H_layers, self.num_positions)
        self.L_level = ReasoningLevel(config, config.L_layers, self.num_positions)
        self.add_initial_states(("H", "L"))

    def recur(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """Run H_cycles cycles; `config.gradient` names the part of the last one with gradients."""
        z_H, z_L = latents["z_H"], latents["z_L"]
        H_cycles, L_cycles = self.cycles
        with_gradients = 1 if self.config.gradient == "last_step" else L_cycles

        with torch.no_grad():
            for _ in range(H_cycles - 1):
                context = z_H + injected
                for _ in range(L_cycles):
                    z_L = self.moved(z_L, self.L_level(z_L + context, rotary))
                z_H = self.moved(z_H, self.H_level(z_H + z_L, rotary))

        # The last cycle: gradients in its last updates, or in all of them.
        context = z_H + injected
        with torch.no_grad():
            for _ in range(L_cycles - with_gradients):
                z_L = self.moved(z_L, self.L_level(z_L + context, rotary))
        for _ in range(with_gradients):
            z_L = self.moved(z_L, self.L_level(z_L + context, rotary))
        return {"z_H": self.moved(z_H, self.H_level(z_H + z_L, rotary)), "z_L": z_L}
