"""A token head that shares the token embedding's matrix."""

import torch
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import Matrix
from models.layers import CastedEmbedding


class Tied(Matrix):
    """The token embedding's own matrix [V, D]: one tensor, used at both ends.

    The embedding keeps it; here it is only referred to, so that a state dict holds it once and a
    loaded model is tied as well.
    """

    def __init__(
        self, config: RecurrenceConfig, vocab_size: int, embedding: CastedEmbedding
    ) -> None:
        super().__init__()
        # A tuple, because an attribute would be registered a second time.
        self._source = (embedding,)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.heads.lm.bias else None

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self._source[0].embedding_weight
