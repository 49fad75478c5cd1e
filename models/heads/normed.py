"""What stands in front of any token head: a norm, dropout."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.heads.base import Outputs, TokenHead
from models.layers import widened


class RMSNorm(nn.Module):
    """RMS norm over D with a learned scale, in float32 (float64 stays)."""

    def __init__(self, embed_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        return F.rms_norm(wide, wide.shape[-1:], self.weight.to(wide.dtype), self.eps).to(x.dtype)


class NormedHead(TokenHead):
    """Blocks (a norm, dropout), then a token head, `projection`."""

    def __init__(self, blocks: Sequence[nn.Module], projection: TokenHead) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.projection = projection
        self.loss_names, self.normalized = projection.loss_names, projection.normalized

    def forward(
        self, hidden: Tensor, puzzle: Tensor | None = None, *, positions: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, S, V], or of the cells `positions` (int64 [M]) alone, [B, M, V]."""
        return self.score(hidden, None, puzzle, positions=positions)

    def score(
        self,
        hidden: Tensor,
        tokens: Tensor | None,
        puzzle: Tensor | None = None,
        *,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of `tokens` (int64 [J]) without the rest of the vocabulary."""
        hidden = self.blocks(hidden if positions is None else hidden[:, positions])
        if tokens is None:
            return self.projection(hidden, puzzle)
        return self.projection.score(hidden, tokens, puzzle)

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        return self.projection.outputs(self.blocks(hidden), puzzle)
