"""Adaptive softmax: a token head for large vocabularies."""

from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import TokenHead


class Adaptive(TokenHead):
    """torch's `AdaptiveLogSoftmaxWithLoss` with its own fresh weights, in float32."""

    normalized = True

    def __init__(self, config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> None:
        super().__init__()
        lm, D = config.heads.lm, config.hidden_size
        cutoffs = [-(-vocab_size // 2)] if lm.cutoffs is None else lm.cutoffs
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(D, vocab_size, cutoffs, lm.div_value)

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).to(self.softmax.head.weight.dtype)
        return self.softmax.log_prob(rows).view(*hidden.shape[:-1], -1)

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        """Compute the tails that these tokens lie in, and no other."""
        if tokens is None:
            return self(hidden)
        wide = hidden.to(self.softmax.head.weight.dtype)
        head, shortlist = self.softmax.head(wide).log_softmax(-1), self.softmax.shortlist_size
        scores = head[..., tokens.clamp_max(shortlist - 1)]
        for i, tail in enumerate(self.softmax.tail):
            begin, end = self.softmax.cutoffs[i : i + 2]
            mine = (tokens >= begin) & (tokens < end)
            if mine.any():
                inside = tail(wide).log_softmax(-1) + head[..., shortlist + i, None]
                scores[..., mine] = inside[..., tokens[mine] - begin]
        return scores
