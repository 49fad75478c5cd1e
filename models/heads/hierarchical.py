"""A token head that finds a cluster of tokens first, then a token in it."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead
from models.layers import CastedLinear, widened


class Hierarchical(TokenHead):
    """log p(v) = log p(c(v)) + log p(v | c(v)). A cluster c is a range of tokens."""

    normalized = True

    def __init__(self, config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> None:
        super().__init__()
        wanted = config.heads.lm.num_clusters or math.ceil(math.sqrt(vocab_size))
        self.cluster_size = -(-vocab_size // wanted)
        # Equal cuts may need fewer clusters than asked for.
        self.num_clusters = -(-vocab_size // self.cluster_size)
        self.vocab_size = vocab_size
        self.coarse = CastedLinear(config.hidden_size, self.num_clusters, bias=True)
        self.fine = CastedLinear(config.hidden_size, vocab_size, bias=True)

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        coarse = widened(self.coarse(hidden)).log_softmax(-1)
        fine = widened(self.fine(hidden))
        padding = self.num_clusters * self.cluster_size - self.vocab_size
        padded = F.pad(fine, (0, padding), value=-math.inf)
        clusters = padded.unflatten(-1, (self.num_clusters, self.cluster_size)).log_softmax(-1)
        return (clusters + coarse.unsqueeze(-1)).flatten(-2)[..., : self.vocab_size]
