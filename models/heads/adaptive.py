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
