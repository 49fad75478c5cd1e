"""Heads from their configuration."""

import math

from torch import nn

from models.config import DataFacts, RecurrenceConfig
from models.heads import auxiliary, tokens
from models.heads.base import Head
from models.heads.q import QHead

# Classes of the auxiliary heads, by their name in `models.heads.config.HeadsConfig`.
AUXILIARY: dict[str, type[auxiliary.AuxiliaryHead]] = {
    "confidence": auxiliary.ConfidenceHead,
    "attention": auxiliary.PositionAttentionHead,
    "action": auxiliary.FieldHead,
    "pixel": auxiliary.FieldHead,
    "halt": auxiliary.HaltHead,
}


def build_heads(
    config: RecurrenceConfig, facts: DataFacts, embedding: nn.Module
) -> dict[str, Head]:
    """Build all heads that the configuration names, by name, in the order of their settings.

    Args:
        embedding: the token embedding, which a tied head refers to.
    Raises:
        ValueError: a head needs a field that the data set does not declare.
    """
    heads: dict[str, Head] = {"lm": _build_token_head(config, facts.vocab_size, embedding)}
    if config.heads.q is not None:
        heads["q"] = QHead(config)
    return heads | {name: AUXILIARY[name](name, config, facts) for name in config.heads.auxiliary}


def _build_token_head(config: RecurrenceConfig, V: int, embedding: nn.Module) -> tokens.TokenHead:
    """Build `heads.lm`. Without a norm there is nothing in front of the matrix, whose weight has
    the published key `lm_head.weight` then.
    """
    lm, D = config.heads.lm, config.hidden_size
    match lm.name:
        case "linear":
            head: tokens.TokenHead = tokens.Linear(D, V, lm.bias)
        case "tied":
            head = tokens.Tied(embedding, lm.bias)
        case "factorized":
            head = tokens.Factorized(D, V, lm.rank, lm.bias)
        case "adaptive":
            cutoffs = [-(-V // 2)] if lm.cutoffs is None else lm.cutoffs
            head = tokens.Adaptive(D, V, cutoffs, lm.div_value)
        case "puzzle":
            head = tokens.PuzzleAdapted(D, V, config.puzzle_emb_ndim, lm.rank, lm.bias)
        case "moe":
            head = tokens.MixtureOfExperts(D, V, lm.num_experts, lm.top_k, lm.bias)
        case "hierarchical":
            head = tokens.Hierarchical(D, V, lm.num_clusters or math.ceil(math.sqrt(V)))
    if lm.norm == "none":
        head.dropout = lm.dropout
    else:
        norm = tokens.RMSNorm(D) if lm.norm == "rms" else tokens.LayerNorm(D)
        head = tokens.NormedHead([norm, nn.Dropout(lm.dropout)] if lm.dropout else [norm], head)
    head.loss = config.loss
    return head
