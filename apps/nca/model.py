"""TRM's recursion as a neural cellular automaton: an update reads a cell and its neighbours.

A wave passes one cell an update. So 20 updates in each of 16 ACT steps are enough for a shortest
path in a maze of 30 x 30 cells: distances spread from the goal, then the path walks down them.

Shape letters: B batch, S cells of a square grid, D hidden width.
"""

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from models.layers import CastedLinear, add_rms_norm
from models.recurrence import Block, Rotary
from models.trm.model import TRMInner


class Neighbours(CastedLinear):
    """Maps [n, rows, columns, D] to a learned sum over the 3 x 3 cells around each cell; there are
    zeros outside.
    """

    def __init__(self, width: int) -> None:
        super().__init__(9 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        D = x.shape[-1]
        weight = self.weight_in(x.dtype).view(D, 3, 3, D).permute(0, 3, 1, 2)
        return F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)


class NCABlock(Block):
    """Post-norm block on [B, S, D]: mix each cell with its neighbours, then transform it."""

    def add_mixer(self, config: Any, num_positions: int) -> None:
        self.side = math.isqrt(num_positions)
        self.near = Neighbours(config.hidden_size)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        grid = x.unflatten(1, (self.side, self.side))
        x = add_rms_norm(x, self.near(grid).flatten(1, 2), self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps)


class NCAInner(TRMInner):
    """TRM's schedule with blocks that only know neighbours."""

    block = NCABlock
