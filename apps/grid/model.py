"""TRM's recursion with a state for each colour in each cell of an ARC grid.

The border, colour 0 and colours 1 to 9 have a state each in every cell, and all share their
weights. What tells them apart is a learned vector for the border, for colour 0 and for all other
colours, and a puzzle's own vector for each. So permuting the colours 1 to 9 of a puzzle, and its
vectors with them, permutes the answer, without having to learn this.

Cells are mixed with their eight neighbours, and with the means over their row, their column and the
canvas. No weight depends on the size of the canvas.

Shape letters: B batch, N tokens with a state, S cells, D hidden width.
"""

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from apps.dec.model import DECInner, MeanOfOthers
from apps.grid.config import NUM_TOKENS, GridConfig
from apps.nca.model import Neighbours
from models.config import DataFacts
from models.layers import CastedEmbedding, CastedLinear, add_rms_norm
from models.recurrence import Block, Rotary

# Border, colour 0, and any of the other colours.
_NUM_ROLES = 3


class GridBlock(Block):
    """Post-norm block on [B * N, S, D]: mix the cells, and the tokens of each cell; transform each
    state.
    """

    num_tokens: int  # N, set by `GridInner`.

    def add_mixer(self, config: Any, num_positions: int) -> None:
        D, self.side = config.hidden_size, math.isqrt(num_positions)
        self.near = Neighbours(D)
        self.row, self.column, self.all = (CastedLinear(D, D) for _ in range(3))
        self.others = MeanOfOthers(D)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        grid = x.unflatten(1, (self.side, self.side))
        row, column = grid.mean(2, keepdim=True), grid.mean(1, keepdim=True)
        lines = self.row(row) + self.column(column) + self.all(row.mean(1, keepdim=True))
        mixed = (self.near(grid) + lines).flatten(1, 2)
        others = self.others(x.unflatten(0, (-1, self.num_tokens))).flatten(0, 1)
        x = add_rms_norm(x, mixed + others, self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps)


class GridInner(DECInner):
    """TRM's schedule. Latents are [B, N * S, D] in the carry, and [B * N, S, D] inside a step.

    Q reads the mean over all tokens and cells.
    """

    block = GridBlock
    first_digit = 1  # The border; padding is never predicted.

    def __init__(self, config: GridConfig, facts: DataFacts) -> None:
        super().__init__(config, facts)
        D = config.hidden_size
        self.roles = CastedEmbedding(_NUM_ROLES, D, init_std=D**-0.5, dtype=self.dtype)
        for block in cast("Iterable[GridBlock]", self.L_level.layers):
            block.num_tokens = self.num_digits
        self.positions_first = False

    def embed_puzzle(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        """Return [B * N, S, D], the sum of embeddings of: padding (0), this token (1), or another
        (2); its role; the puzzle's vector for it.
        """
        N, D = self.num_digits, self.hidden_size
        roles = self.roles(torch.arange(N, device=inputs.device).clamp(max=_NUM_ROLES - 1))
        if self.puzzle_emb is not None:
            rows = self.puzzle_emb(puzzle_identifiers).unflatten(-1, (NUM_TOKENS, -1))[:, :N]
            roles = roles + F.pad(rows, (0, D - rows.shape[-1]))
        embedded = self.embed_tokens(self.kinds_of(inputs)) + roles.view(-1, N, 1, D)
        return embedded.flatten(0, 1) * math.sqrt(D)
