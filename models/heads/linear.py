"""Token heads of one matrix: its own, or the token embedding's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import NEVER, Matrix, TokenHead
from models.layers import CastedEmbedding, CastedLinear, widened


class Linear(Matrix):
    """A matrix of its own, initialized with deviation 1/sqrt(D)."""

    def __init__(self, embed_dim: int, vocab_size: int, bias: bool = False) -> None:
        super().__init__()
        plain = CastedLinear(embed_dim, vocab_size, bias)
        self.weight, self.bias = plain.weight, plain.bias


class LinearOfDigits(Linear):
    """One row [1, D] for all digits: maps [B, S, N, D] to [B, S, V]. The last N tokens are digits;
    the others, padding and empty, are never predicted.
    """

    def __init__(self, embed_dim: int, vocab_size: int, bias: bool = False) -> None:
        super().__init__(embed_dim, 1, bias)
        self.vocab_size = vocab_size

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        digits = widened(super().forward(hidden).squeeze(-1))  # float16 cannot hold NEVER.
        return F.pad(digits, (self.vocab_size - digits.shape[-1], 0), value=NEVER)


def build(config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> TokenHead:
    """Build a linear head: one row for all digits if the architecture has a state for each."""
    linear = LinearOfDigits if config.has_digits else Linear
    return linear(config.hidden_size, vocab_size, config.heads.lm.bias)


class Tied(Matrix):
    """The token embedding's own matrix [V, D], used at both ends.

    The head only refers to the embedding, so a state dict holds the matrix once.
    """

    def __init__(
        self, config: RecurrenceConfig, vocab_size: int, embedding: CastedEmbedding
    ) -> None:
        super().__init__()
        # A tuple, because a module as attribute would be registered a second time.
        self._source = (embedding,)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.heads.lm.bias else None

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self._source[0].embedding_weight
