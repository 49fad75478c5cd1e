"""Build heads from their configuration."""

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import LOSSES, DataFacts, RecurrenceConfig
from models.heads.base import Head, Outputs, TokenHead
from models.heads.config import AUXILIARY_HEADS, TOKEN_HEADS
from models.heads.q import QHead
from models.layers import CastedEmbedding, LayerNorm, widened


def build_heads(
    config: RecurrenceConfig, facts: DataFacts, embedding: CastedEmbedding
) -> dict[str, Head]:
    """Return all heads of the configuration by name, in the order of their settings.

    Args:
        embedding: the token embedding; a head may share its matrix.
    Raises:
        ValueError: a head needs a field that the data set does not declare.
    """
    heads: dict[str, Head] = {"lm": _normed_token_head(config, facts.vocab_size, embedding)}
    if config.heads.q is not None:
        heads["q"] = QHead(config)
    for name in config.heads.auxiliary:
        heads[name] = AUXILIARY_HEADS.load(name)(name, config, facts)
    return heads


def _normed_token_head(config: RecurrenceConfig, V: int, embedding: CastedEmbedding) -> TokenHead:
    """Build `heads.lm`. Without a norm its weight has the published key `lm_head.weight`."""
    lm, D = config.heads.lm, config.hidden_size
    head: TokenHead = TOKEN_HEADS.load(lm.name)(config, V, embedding)
    if lm.norm == "none":
        head.dropout = lm.dropout
    else:
        norm = RMSNorm(D, eps=1e-5) if lm.norm == "rms" else LayerNorm(D)
        head = NormedHead(norm, lm.dropout, head)
    head.loss = LOSSES.load(config.loss.name)(config.loss)
    return head


class RMSNorm(nn.RMSNorm):
    """RMS norm over D with a learned scale, in float32 (float64 stays)."""

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        weight = self.weight.to(wide.dtype)
        return F.rms_norm(wide, self.normalized_shape, weight, self.eps).to(x.dtype)


class NormedHead(TokenHead):
    """A norm and dropout in front of a token head, `projection`."""

    def __init__(self, norm: nn.Module, dropout: float, projection: TokenHead) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[norm, nn.Dropout(dropout)] if dropout else [norm])
        self.projection = projection
        self.loss_names, self.normalized = projection.loss_names, projection.normalized

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        return self.projection.outputs(self.blocks(hidden), puzzle)
