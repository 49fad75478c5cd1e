"""Heads from their configuration."""

from torch import nn

from models.config import LOSSES, DataFacts, RecurrenceConfig
from models.heads.base import Head, TokenHead
from models.heads.config import AUXILIARY_HEADS, TOKEN_HEADS
from models.heads.normed import NormedHead, RMSNorm
from models.heads.q import QHead
from models.layers import LayerNorm


def build_heads(
    config: RecurrenceConfig, facts: DataFacts, embedding: nn.Module
) -> dict[str, Head]:
    """Build all heads that the configuration names, by name, in the order of their settings.

    Args:
        embedding: the token embedding, whose matrix a head may share.
    Raises:
        ValueError: a head needs a field that the data set does not declare.
    """
    heads: dict[str, Head] = {"lm": _normed_token_head(config, facts.vocab_size, embedding)}
    if config.heads.q is not None:
        heads["q"] = QHead(config)
    for name in config.heads.auxiliary:
        heads[name] = AUXILIARY_HEADS.load(name)(name, config, facts)
    return heads


def _normed_token_head(config: RecurrenceConfig, V: int, embedding: nn.Module) -> TokenHead:
    """Build `heads.lm` with its norm and loss. Without a norm there is nothing in front of the
    matrix, whose weight has the published key `lm_head.weight` then.
    """
    lm, D = config.heads.lm, config.hidden_size
    head: TokenHead = TOKEN_HEADS.load(lm.name)(config, V, embedding)
    if lm.norm == "none":
        head.dropout = lm.dropout
    else:
        norm = RMSNorm(D, eps=1e-5) if lm.norm == "rms" else LayerNorm(D)
        head = NormedHead([norm, nn.Dropout(lm.dropout)] if lm.dropout else [norm], head)
    head.loss = LOSSES.load(config.loss.name)(config.loss)
    return head
