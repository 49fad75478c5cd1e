"""Heads from their configuration."""

import math

from torch import nn

from models.config import LOSSES, DataFacts, RecurrenceConfig
from models.heads import tokens
from models.heads.base import Head
from models.heads.config import (
    AUXILIARY_HEADS,
    TOKEN_HEADS,
    AdaptiveHeadConfig,
    FactorizedHeadConfig,
    HierarchicalHeadConfig,
    LinearHeadConfig,
    MoEHeadConfig,
    PuzzleHeadConfig,
    TiedHeadConfig,
)
from models.heads.q import QHead
from models.layers import LayerNorm


def build_heads(
    config: RecurrenceConfig, facts: DataFacts, embedding: nn.Module
) -> dict[str, Head]:
    """Build all heads that the configuration names, by name, in the order of their settings.

    Args:
        embedding: the token embedding, which a tied head refers to.
    Raises:
        ValueError: a head needs a field that the data set does not declare.
    """
    heads: dict[str, Head] = {"lm": _normed_token_head(config, facts.vocab_size, embedding)}
    if config.heads.q is not None:
        heads["q"] = QHead(config)
    for name in config.heads.auxiliary:
        heads[name] = AUXILIARY_HEADS.load(name)(name, config, facts)
    return heads


def _normed_token_head(config: RecurrenceConfig, V: int, embedding: nn.Module) -> tokens.TokenHead:
    """Build `heads.lm` with its norm and loss. Without a norm there is nothing in front of the
    matrix, whose weight has the published key `lm_head.weight` then.
    """
    lm, D = config.heads.lm, config.hidden_size
    head: tokens.TokenHead = TOKEN_HEADS.load(lm.name)(config, V, embedding)
    if lm.norm == "none":
        head.dropout = lm.dropout
    else:
        norm = tokens.RMSNorm(D) if lm.norm == "rms" else LayerNorm(D)
        head = tokens.NormedHead([norm, nn.Dropout(lm.dropout)] if lm.dropout else [norm], head)
    head.loss = LOSSES.load(config.loss.name)(config.loss)
    return head


def token_head(config: RecurrenceConfig, V: int, embedding: nn.Module) -> tokens.TokenHead:
    """Build one of our token heads."""
    lm, D = config.heads.lm, config.hidden_size
    match lm:
        case LinearHeadConfig():
            linear = tokens.LinearOfDigits if config.has_digits else tokens.Linear
            return linear(D, V, lm.bias)
        case TiedHeadConfig():
            return tokens.Tied(embedding, lm.bias)
        case FactorizedHeadConfig():
            return tokens.Factorized(D, V, lm.rank, lm.bias)
        case AdaptiveHeadConfig():
            cutoffs = [-(-V // 2)] if lm.cutoffs is None else lm.cutoffs
            return tokens.Adaptive(D, V, cutoffs, lm.div_value)
        case PuzzleHeadConfig():
            return tokens.PuzzleAdapted(D, V, config.puzzle_emb_ndim, lm.rank, lm.bias)
        case MoEHeadConfig():
            return tokens.MixtureOfExperts(D, V, lm.num_experts, lm.top_k, lm.bias)
        case HierarchicalHeadConfig():
            return tokens.Hierarchical(D, V, lm.num_clusters or math.ceil(math.sqrt(V)))
    raise ValueError(f"{lm.name} is not one of our token heads")
