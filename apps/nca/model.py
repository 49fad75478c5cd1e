"""TRM with one latent as a neural cellular automaton: an update reads a cell and its neighbours.

A wave passes one cell an update. So a shortest path in a maze needs two waves: from the goal, each
cell learns which neighbours are closer to it; then a wave from the start marks the path. Each cell
needs to learn only what to do with its neighbours' states, so gradients through a few updates are
enough. A gate decides how much of a cell's state changes (arXiv:1511.08228).

Shape letters: B batch, S cells of a square grid, D hidden width.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.config import DataFacts
from models.layers import CastedLinear, add_rms_norm
from models.recurrence import Block, Latents, Rotary
from models.trm.model import TRMSingleInner


class Neighbours(CastedLinear):
    """Maps [n, rows, columns, D] to a learned sum over each cell and its neighbours: eight, or four
    without `diagonals`. There are zeros outside.
    """

    cross: Tensor | None

    def __init__(self, width: int, diagonals: bool = True) -> None:
        super().__init__((9 if diagonals else 5) * width, width)
        cross = None if diagonals else torch.eye(9)[[1, 3, 4, 5, 7]]
        self.register_buffer("cross", cross, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        D = x.shape[-1]
        weight = self.weight_in(x.dtype).view(D, -1, D).transpose(1, 2)
        if self.cross is not None:
            weight = weight @ self.cross.to(x.dtype)
        weight = weight.reshape(D, D, 3, 3)
        return F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)


class NCABlock(Block):
    """Post-norm block on [B, S, D]: mix each cell with its neighbours, then transform it."""

    def add_mixer(self, config: Any, num_positions: int) -> None:
        self.side = math.isqrt(num_positions)
        self.near = Neighbours(config.hidden_size, diagonals=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        grid = x.unflatten(1, (self.side, self.side))
        x = add_rms_norm(x, self.near(grid).flatten(1, 2), self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps)


class NCAInner(TRMSingleInner):
    """One latent; all updates are alike."""

    block = NCABlock

    def __init__(self, config: Any, facts: DataFacts) -> None:
        super().__init__(config, facts)
        self.gate = CastedLinear(config.hidden_size, config.hidden_size, bias=True)

    def cycle(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """z = g new + (1 - g) z, L_cycles times, where new = net(z + input), g = sigmoid(W new)."""
        z_L = latents["z_L"]
        for _ in range(self.L_cycles):
            new = self.L_level(z_L + injected, rotary)
            z_L = self.moved(z_L, torch.lerp(z_L, new, self.gate(new).sigmoid()))
        return {"z_L": z_L}
