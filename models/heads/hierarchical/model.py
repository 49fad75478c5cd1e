"""A token head that finds a cluster of tokens first, then a token in it."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead, apply_to
from models.heads.hierarchical.config import HierarchicalHeadConfig
from models.layers import CastedLinear, widened


class Hierarchical(TokenHead):
    """First a cluster, then a token in it: log p(v) = log p(c(v)) + log p(v | c(v)).

    Tokens are cut into C clusters of equal size by their number (the last one may be smaller). A
    token's score needs the C cluster outputs and those of its own cluster alone.
    """

    normalized = True

    def __init__(self, embed_dim: int, vocab_size: int, num_clusters: int) -> None:
        super().__init__()
        if not 1 <= num_clusters <= vocab_size:
            raise ValueError(f"num_clusters is {num_clusters}, expected 1 to {vocab_size}")
        self.cluster_size = -(-vocab_size // num_clusters)
        # Equal cuts may need fewer clusters than asked for.
        self.num_clusters = -(-vocab_size // self.cluster_size)
        self.vocab_size = vocab_size
        self.coarse = CastedLinear(embed_dim, self.num_clusters, bias=True)
        self.fine = CastedLinear(embed_dim, vocab_size, bias=True)

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        coarse = widened(self.coarse(hidden)).log_softmax(-1)
        fine = widened(self.fine(hidden))
        padding = self.num_clusters * self.cluster_size - self.vocab_size
        padded = F.pad(fine, (0, padding), value=-math.inf)
        clusters = padded.unflatten(-1, (self.num_clusters, self.cluster_size)).log_softmax(-1)
        return (clusters + coarse.unsqueeze(-1)).flatten(-2)[..., : self.vocab_size]

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        """Compute the clusters that these tokens lie in, and no other."""
        if tokens is None:
            return self(hidden)
        coarse = widened(self.coarse(hidden)).log_softmax(-1)
        scores = hidden.new_empty((*hidden.shape[:-1], len(tokens)), dtype=coarse.dtype)
        cluster_of = tokens // self.cluster_size
        for cluster in cluster_of.unique().tolist():
            begin = cluster * self.cluster_size
            end = min(begin + self.cluster_size, self.vocab_size)
            members = apply_to(self.fine, hidden, slice(begin, end))
            inside = widened(members).log_softmax(-1) + coarse[..., cluster, None]
            mine = cluster_of == cluster
            scores[..., mine] = inside[..., tokens[mine] - begin]
        return scores


def build(config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> TokenHead:
    """Build the head of an architecture."""
    lm = config.heads.lm
    assert isinstance(lm, HierarchicalHeadConfig)
    clusters = lm.num_clusters or math.ceil(math.sqrt(vocab_size))
    return Hierarchical(config.hidden_size, vocab_size, clusters)
