"""An attention bias for the row, column and box that two cells of a Sudoku share.

Shape letters: S cells, P positions in front of them, T = P + S, N heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.biases.sudoku.config import SUDOKU_BOXES


class SudokuBias(nn.Module):
    """A learned number for each head and set of shared units; 0 at the start and in the prefix."""

    # Sums of 1 for a common row, 2 for a common column, 4 for a common box.
    WAYS = (0, 1, 2, 4, 5, 6, 7)

    ways: Tensor

    def __init__(self, num_heads: int, seq_len: int, num_prefix: int) -> None:
        super().__init__()
        # One-dimensional, so that optimizers treat it as a bias.
        self.weight = nn.Parameter(torch.zeros(len(self.WAYS) * num_heads))
        box_rows, box_columns = SUDOKU_BOXES[seq_len]
        size = box_rows * box_columns
        cells = torch.arange(seq_len)
        row, column = cells // size, cells % size
        box = row // box_rows * box_rows + column // box_columns
        row, column, box = (unit[:, None] == unit for unit in (row, column, box))
        ways = (row + 2 * column + 4 * box).unsqueeze(-1) == torch.tensor(self.WAYS)
        ways = F.pad(ways.float(), (0, 0, num_prefix, 0, num_prefix, 0))
        self.register_buffer("ways", ways, persistent=False)

    def forward(self, dtype: torch.dtype) -> Tensor:
        """Return the bias, [N, T, T]."""
        # A product sums its gradients in a fixed order; indexing would not.
        return (self.ways @ self.weight.view(len(self.WAYS), -1)).permute(2, 0, 1).to(dtype)
