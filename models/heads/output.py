"""A token head for programs of your own: it needs no configuration (docs/python.md)."""

from typing import cast

import torch
from torch import Tensor, nn

from models.heads.base import Matrix
from models.heads.linear.model import Linear
from models.heads.normed import NormedHead
from models.heads.tied.model import Tied
from models.layers import LayerNorm


class OutputHead(NormedHead):
    """A norm (by default a LayerNorm), then a matrix: [B, S, D] to [B, S, V].

    Args:
        tied_embedding: the token embedding, a module or its parameter [V, D], frozen or not.
        tie_weights: project with the embedding's own matrix; false starts from a copy of it.
    Raises:
        ValueError: the embedding is not [V, D], or a norm is given that is not to be used.
    """

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        bias: bool = False,
        tied_embedding: nn.Module | nn.Parameter | None = None,
        tie_weights: bool = True,
        norm: nn.Module | None = None,
        use_norm: bool = True,
    ) -> None:
        if norm is not None and not use_norm:
            raise ValueError("a norm is given, and use_norm=False leaves it out")
        blocks = [LayerNorm(embed_dim) if norm is None else norm] if use_norm else []
        projection: Matrix = Linear(embed_dim, vocab_size, bias)
        if tied_embedding is not None:
            tied = Tied(tied_embedding, bias)
            found, expected = tuple(tied.weight.shape), (vocab_size, embed_dim)
            if found != expected:
                raise ValueError(f"the tied embedding has shape {found}, expected {expected}")
            if tie_weights:
                projection = tied
            else:
                with torch.no_grad():
                    projection.weight.copy_(tied.weight)
        super().__init__(blocks, projection)

    @property
    def weight(self) -> Tensor:
        """The matrix [V, D] of the projection."""
        return cast(Matrix, self.projection).weight
