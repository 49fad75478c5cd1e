"""What stands in front of any token head: a norm, dropout."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from models.heads.base import Outputs, TokenHead
from models.layers import widened


class RMSNorm(nn.RMSNorm):
    """RMS norm over D with a learned scale, in float32 (float64 stays)."""

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        weight = self.weight.to(wide.dtype)
        return F.rms_norm(wide, self.normalized_shape, weight, self.eps).to(x.dtype)


class NormedHead(TokenHead):
    """Blocks (a norm, dropout), then a token head, `projection`."""

    def __init__(self, blocks: Sequence[nn.Module], projection: TokenHead) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.projection = projection
        self.loss_names, self.normalized = projection.loss_names, projection.normalized

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        return self.projection(self.blocks(hidden), puzzle)

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        return self.projection.score(self.blocks(hidden), tokens, puzzle)

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        return self.projection.outputs(self.blocks(hidden), puzzle)
