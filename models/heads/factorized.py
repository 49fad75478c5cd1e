"""A token head of two thin matrices."""

from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead
from models.layers import CastedLinear


class Factorized(TokenHead):
    """Two matrices, [R, D] and [V, R], in place of one; R is the rank."""

    def __init__(self, config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> None:
        super().__init__()
        lm = config.heads.lm
        self.down = CastedLinear(config.hidden_size, lm.rank)
        self.up = CastedLinear(lm.rank, vocab_size, lm.bias)

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        return self.up(self.down(hidden))
