"""Adaptive softmax: a token head for large vocabularies."""

from collections.abc import Sequence

from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.adaptive.config import AdaptiveHeadConfig
from models.heads.base import TokenHead


class Adaptive(TokenHead):
    """Adaptive softmax (arXiv:1609.04309): frequent tokens first, rare ones in ever thinner tails.

    torch's `AdaptiveLogSoftmaxWithLoss` with its own fresh weights, in float32; tokens count as
    sorted by falling frequency. `cutoffs` are the first tokens of the tails, ascending.
    """

    normalized = True

    def __init__(
        self, embed_dim: int, vocab_size: int, cutoffs: Sequence[int], div_value: float = 4.0
    ) -> None:
        super().__init__()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(embed_dim, vocab_size, cutoffs, div_value)

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).to(self.softmax.head.weight.dtype)
        return self.softmax.log_prob(rows).view(*hidden.shape[:-1], -1)

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        """Compute the tails that these tokens lie in, and no other."""
        if tokens is None:
            return self(hidden)
        wide = hidden.to(self.softmax.head.weight.dtype)
        head = self.softmax.head(wide).log_softmax(-1)
        shortlist = self.softmax.shortlist_size
        scores = hidden.new_empty((*hidden.shape[:-1], len(tokens)), dtype=head.dtype)
        common = tokens < shortlist
        scores[..., common] = head[..., tokens[common]]
        for i, tail in enumerate(self.softmax.tail):
            begin, end = self.softmax.cutoffs[i : i + 2]
            mine = (tokens >= begin) & (tokens < end)
            if mine.any():
                inside = tail(wide).log_softmax(-1) + head[..., shortlist + i, None]
                scores[..., mine] = inside[..., tokens[mine] - begin]
        return scores


def build(config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> TokenHead:
    """Build the head of an architecture."""
    lm = config.heads.lm
    assert isinstance(lm, AdaptiveHeadConfig)
    cutoffs = [-(-vocab_size // 2)] if lm.cutoffs is None else lm.cutoffs
    return Adaptive(config.hidden_size, vocab_size, cutoffs, lm.div_value)
