"""A token head of two thin matrices."""

from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead, apply_to
from models.heads.factorized.config import FactorizedHeadConfig
from models.layers import CastedLinear


class Factorized(TokenHead):
    """Two matrices of rank R, [R, D] and [V, R], in place of one."""

    def __init__(self, embed_dim: int, vocab_size: int, rank: int, bias: bool = False) -> None:
        super().__init__()
        self.down = CastedLinear(embed_dim, rank)
        self.up = CastedLinear(rank, vocab_size, bias)

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        return apply_to(self.up, self.down(hidden), tokens)


def build(config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> TokenHead:
    """Build the head of an architecture."""
    lm = config.heads.lm
    assert isinstance(lm, FactorizedHeadConfig)
    return Factorized(config.hidden_size, vocab_size, lm.rank, lm.bias)
