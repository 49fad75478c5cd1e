"""A token head with weights that depend on the puzzle embedding."""

import torch
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead
from models.heads.linear import Linear
from models.layers import CastedLinear


class PuzzleAdapted(TokenHead):
    """A matrix W plus a change of rank R that depends on the puzzle embedding p.

    W(p) = W + U diag(1 + M p) A, with A [R, D], U [V, R] and M [R, puzzle_emb_ndim]. U starts at 0,
    so the head starts as W. The puzzle embedding starts at 0, too; because of the 1, U learns even
    then.
    """

    def __init__(self, config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> None:
        super().__init__()
        lm, D = config.heads.lm, config.hidden_size
        self.base = Linear(D, vocab_size, lm.bias)
        self.down = CastedLinear(D, lm.rank)
        self.up = CastedLinear(lm.rank, vocab_size)
        self.steer = CastedLinear(config.puzzle_emb_ndim, lm.rank)
        with torch.no_grad():
            self.up.weight.zero_()

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        assert puzzle is not None
        shared = self.base(hidden)
        steered = self.down(hidden) * (1 + self.steer(puzzle.to(hidden.dtype))).unsqueeze(1)
        return shared + self.up(steered)
