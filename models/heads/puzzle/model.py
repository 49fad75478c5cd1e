"""A token head whose weights the puzzle embedding changes."""

import torch
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead, apply_to
from models.heads.linear.model import Linear
from models.heads.puzzle.config import PuzzleHeadConfig
from models.layers import CastedLinear


class PuzzleAdapted(TokenHead):
    """A matrix W of its own and a change of rank R that the puzzle embedding p steers.

    W(p) = W + U diag(1 + M p) A, with A [R, D], U [V, R] and M [R, puzzle_emb_ndim]. U starts at 0,
    so that the head starts as W; the 1 lets U learn before the puzzle embedding, which starts at 0,
    says anything.
    """

    def __init__(
        self, embed_dim: int, vocab_size: int, puzzle_dim: int, rank: int, bias: bool = False
    ) -> None:
        super().__init__()
        self.base = Linear(embed_dim, vocab_size, bias)
        self.down = CastedLinear(embed_dim, rank)
        self.up = CastedLinear(rank, vocab_size)
        self.steer = CastedLinear(puzzle_dim, rank)
        with torch.no_grad():
            self.up.weight.zero_()

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        if puzzle is None:
            raise ValueError("a token head adapted to the puzzle needs the puzzle embedding's rows")
        shared = apply_to(self.base, hidden, tokens)
        steered = self.down(hidden) * (1 + self.steer(puzzle.to(hidden.dtype))).unsqueeze(1)
        return shared + apply_to(self.up, steered, tokens)


def build(config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> TokenHead:
    """Build the head of an architecture."""
    lm = config.heads.lm
    assert isinstance(lm, PuzzleHeadConfig)
    D, width = config.hidden_size, config.puzzle_emb_ndim
    return PuzzleAdapted(D, vocab_size, width, lm.rank, lm.bias)
