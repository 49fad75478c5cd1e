"""TRM's recursion with a state for each digit in each cell, treating all digits alike ("DEC").

Source: github.com/Aakash-Marthandan/Fixed-Point-Reasoner-Structures. All digits share their
weights. The input of a digit in a cell is only: cell empty, this digit, or another digit. So
permuting the digits of a puzzle permutes the answer, without having to learn this. For Sudokus and
Latin squares: N x N cells and N digits, the tokens from 2 on.

Shape letters: B batch, N digits, S = N * N cells, D hidden width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from models.biases.sudoku.config import SUDOKU_BOXES
from models.config import DataFacts, RecurrenceConfig
from models.heads.base import Answer, Examples
from models.layers import CastedLinear, PositionSwiGLU, add_rms_norm
from models.recurrence import Block, Latents, Rotary
from models.trm.model import TRMInner

# Token 0 is padding, 1 an empty cell.
FIRST_DIGIT = 2


class DigitBlock(Block):
    """Post-norm block on [B * N, S, D]: mix the cells, mix the digits of each cell, transform each
    state. The result is a view of [S, B * N, D] in memory.
    """

    def add_mixer(self, config: Any, num_positions: int) -> None:
        """Build the layers that mix cells and digits, from the settings of a `DECConfig`."""
        D, self.num_digits = config.hidden_size, math.isqrt(num_positions)
        self.mixes_by_units = config.units
        if config.units:
            self.units = UnitMeans(D, num_positions, config.boxes)
        else:
            expansion, multiple = config.cell_expansion, config.width_multiple
            self.mlp_t = PositionSwiGLU(num_positions, expansion, multiple)
        self.digits = MeanOfOthers(D)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        if self.mixes_by_units:
            x = x.transpose(0, 1)
            x = add_rms_norm(x, self.units(x), self.eps)
        else:
            x = self._mixed_by_mlp(x)
        cells = x.reshape(-1, self.num_digits, x.shape[-1])
        x = add_rms_norm(x, self.digits(cells).view(x.shape), self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps).transpose(0, 1)


class MeanOfOthers(nn.Module):
    """The mean over the other digits of a cell, [n, N, D], through a matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = CastedLinear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        others = (x.sum(1, keepdim=True) - x) * (1 / (x.shape[1] - 1))
        return self.proj(others)


class UnitMeans(nn.Module):
    """Maps [S, n, D] to the sum, each part through a matrix, of the cell itself, the means over its
    row, column and box, and the means over the parts of its row and column inside its box. Rows and
    columns share their matrices, so the layer has every symmetry of Sudoku. Without `boxes`, it has
    the cell, row and column alone, for Latin squares.
    """

    def __init__(self, width: int, num_positions: int, boxes: bool = True) -> None:
        super().__init__()
        N = math.isqrt(num_positions)
        rows, columns = SUDOKU_BOXES[num_positions] if boxes else (1, N)
        # Bands, rows of a band, stacks, columns of a stack.
        self.grid, self.boxes = (N // rows, rows, N // columns, columns), boxes
        self.cell, self.line = (CastedLinear(width, width) for _ in range(2))
        if boxes:
            self.box, self.part = (CastedLinear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        grid = x.view(*self.grid, *x.shape[1:])
        if not self.boxes:
            lines = self.line(grid.mean(3, keepdim=True)) + self.line(grid.mean(0, keepdim=True))
            return (self.cell(grid) + lines).view(x.shape)
        part_of_row, part_of_column = grid.mean(3, keepdim=True), grid.mean(1, keepdim=True)
        row, column = part_of_row.mean(2, keepdim=True), part_of_column.mean(0, keepdim=True)
        lines, box = self.line(row) + self.line(column), self.box(part_of_row.mean(1, keepdim=True))
        parts = self.part(part_of_row) + self.part(part_of_column)
        return (self.cell(grid) + lines + box + parts).view(x.shape)


def answer_of_digits(states: Tensor, num_digits: int) -> Answer:
    """Wrap states [B, N * S, D] for the heads: the first position is the mean over digits and
    cells, the others are the means over the digits of each cell.
    """
    digits = states.unflatten(1, (num_digits, -1))
    cells = digits.mean(1)
    pooled = torch.cat((cells.mean(1, keepdim=True), cells), dim=1)
    return Answer(pooled, num_prefix=1, digits=digits.transpose(1, 2))


class DECInner(TRMInner):
    """TRM's schedule. Latents are [B, N * S, D] in the carry, and [B * N, S, D] inside a step.

    Q reads the mean over all digits and cells, auxiliary heads the mean over each cell's digits.
    """

    block = DigitBlock
    num_kinds = 3
    first_digit = FIRST_DIGIT

    def __init__(self, config: RecurrenceConfig, facts: DataFacts) -> None:
        self.num_digits = facts.vocab_size - self.first_digit
        super().__init__(config, facts)
        self.num_states = self.num_digits * facts.seq_len
        self.positions_first = True

    def forward(self, carry: Latents, examples: Examples) -> tuple[Latents, Tensor]:
        apart = {n: z.view(-1, self.num_positions, self.hidden_size) for n, z in carry.items()}
        latents, answer = super().forward(apart, examples)
        shape = (-1, self.num_states, self.hidden_size)
        return {name: z.view(shape) for name, z in latents.items()}, answer.view(shape)

    def answer(self, states: Tensor, examples: Examples) -> Answer:
        return answer_of_digits(states, self.num_digits)

    def embed_puzzle(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        """Return the embedding [B * N, S, D] of: cell empty (0), this digit (1), another (2)."""
        kinds = self.kinds_of(inputs)
        return super().embed_puzzle(kinds.flatten(0, 1), puzzle_identifiers)

    def kinds_of(self, inputs: Tensor) -> Tensor:
        """Return [B, N, S]: 0 where the cell has no digit, 1 where it has this one, 2 elsewhere."""
        digits = torch.arange(self.num_digits, device=inputs.device) + self.first_digit
        tokens = inputs.unsqueeze(1)
        kinds = torch.where(tokens == digits.view(-1, 1), 1, 2)
        return kinds.masked_fill(tokens < self.first_digit, 0)
