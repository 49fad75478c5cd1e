"""TRM's recursion on the board of a graph, treating all nodes alike.

Row and column n of the board belong to node n: the cell (n, n) is the node, the cell (m, n) the
edge between two nodes. A node's message is read from its own cell and from the means over its row
and its column, and goes to all cells of its row and its column. arXiv:1812.09902 lists all linear
maps of such boards that treat nodes alike; these are some of them.

Shape letters: B batch, N nodes, S = N * N cells, D hidden width.
"""

import math
from typing import Any

import torch
from torch import Tensor

from models.layers import CastedLinear, add_rms_norm
from models.recurrence import Block, Rotary
from models.trm.model import TRMInner


class GraphBlock(Block):
    """Post-norm block on [B, S, D]: mix the cells by their nodes, then transform each one."""

    def add_mixer(self, config: Any, num_positions: int) -> None:
        D, self.num_nodes = config.hidden_size, math.isqrt(num_positions)
        self.cell = CastedLinear(D, D)
        self.to_row, self.to_column = (CastedLinear(3 * D, D) for _ in range(2))

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        board = x.unflatten(1, (self.num_nodes, self.num_nodes))
        nodes = torch.cat((board.diagonal(0, 1, 2).mT, board.mean(2), board.mean(1)), dim=-1)
        mixed = self.cell(board) + self.to_row(nodes).unsqueeze(2)
        mixed = (mixed + self.to_column(nodes).unsqueeze(1)).flatten(1, 2)
        x = add_rms_norm(x, mixed, self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps)


class GraphInner(TRMInner):
    """TRM's schedule with one state for each cell."""

    block = GraphBlock
