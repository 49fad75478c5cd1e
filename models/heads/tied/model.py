"""A token head that shares the token embedding's matrix."""

from typing import cast

import torch
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import Matrix, TokenHead


class Tied(Matrix):
    """The token embedding's own matrix [V, D]: one tensor, used at both ends.

    The embedding keeps it; here it is only referred to, so that a state dict holds it once and a
    loaded model is tied as well.
    """

    def __init__(self, embedding: nn.Module | nn.Parameter, bias: bool = False) -> None:
        super().__init__()
        # A tuple, because an attribute would be registered a second time.
        self._source = (embedding,)
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[0])) if bias else None

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        (source,) = self._source
        if isinstance(source, nn.Module):
            name = "embedding_weight" if hasattr(source, "embedding_weight") else "weight"
            return cast(Tensor, getattr(source, name))
        return source


def build(config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> TokenHead:
    """Build the head of an architecture."""
    return Tied(embedding, config.heads.lm.bias)
