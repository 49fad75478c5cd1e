"""Heads from their configuration."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.act import Examples, Predictions
from models.config import (
    FURTHER_HEADS,
    DataFacts,
    HeadsConfig,
    QHeadConfig,
    RecurrenceConfig,
)
from models.heads.auxiliary import (
    ConfidenceHead,
    FieldHead,
    FurtherHead,
    HaltHead,
    PositionAttentionHead,
)
from models.heads.tokens import (
    Adaptive,
    Factorized,
    Hierarchical,
    LayerNorm,
    Linear,
    MixtureOfExperts,
    OutputHead,
    Projection,
    PuzzleAdapted,
    RMSNorm,
    Tied,
)
from models.layers import CastedLinear, trunc_normal_, widened
from models.recurrence import Recurrence


def build_token_head(
    config: RecurrenceConfig, facts: DataFacts, embedding: nn.Module
) -> Projection | OutputHead:
    """Build `heads.lm`. Without a norm it is the bare projection, whose weight has the published
    key `lm_head.weight`; its dropout is `HeadReader`'s then.

    Args:
        embedding: the token embedding, which a tied head refers to.
    """
    lm, D, V = config.heads.lm, config.hidden_size, facts.vocab_size
    match lm.name:
        case "linear":
            projection: Projection = Linear(D, V, lm.bias)
        case "tied":
            projection = Tied(embedding, lm.bias)
        case "factorized":
            projection = Factorized(D, V, lm.rank, lm.bias)
        case "adaptive":
            cutoffs = [-(-V // 2)] if lm.cutoffs is None else lm.cutoffs
            projection = Adaptive(D, V, cutoffs, lm.div_value)
        case "puzzle":
            projection = PuzzleAdapted(D, V, config.puzzle_emb_ndim, lm.rank, lm.bias)
        case "moe":
            projection = MixtureOfExperts(D, V, lm.num_experts, lm.top_k, lm.bias)
        case "hierarchical":
            projection = Hierarchical(D, V, lm.num_clusters or math.ceil(math.sqrt(V)))
    if lm.norm == "none":
        return projection
    norm = RMSNorm(D) if lm.norm == "rms" else LayerNorm(D)
    return OutputHead.of(projection, [norm, nn.Dropout(lm.dropout)] if lm.dropout else [norm])


class QHead(CastedLinear):
    """(q_halt, q_continue) logits from the first position of the trunk's answer.

    Q starts near "never right, never stop" (weight 0, bias -5): its first bootstrapped targets are
    then close to 0 and stable.
    """

    def __init__(self, hidden_size: int, config: QHeadConfig) -> None:
        super().__init__(hidden_size, 2, bias=True)
        with torch.no_grad():
            trunc_normal_(self.weight, std=config.init_std)
            assert self.bias is not None
            self.bias.fill_(config.init_bias)

    def read(self, answer: Tensor) -> tuple[Tensor, Tensor]:
        """Return q_halt and q_continue, float32 (float64 stays) [B], for the answer [B, T, D]."""
        logits = widened(self(answer[:, 0]))
        return logits[:, 0], logits[:, 1]


def build_further_heads(
    heads: HeadsConfig, hidden_size: int, facts: DataFacts
) -> dict[str, FurtherHead]:
    """Build the heads beside tokens and Q that the configuration names.

    Raises:
        ValueError: a head needs a field that the data set does not declare.
    """
    built: dict[str, FurtherHead] = {}
    if heads.confidence is not None:
        built["confidence"] = ConfidenceHead(hidden_size, heads.confidence.detach)
    if heads.attention is not None:
        built["attention"] = PositionAttentionHead(hidden_size, heads.attention.detach)
    for name, config in (("action", heads.action), ("pixel", heads.pixel)):
        if config is not None:
            num_classes, channels = facts.field(config.field, f"arch.heads.{name}")
            built[name] = FieldHead(
                hidden_size,
                config.detach,
                name=name,
                field=config.field,
                num_classes=num_classes,
                channels=(channels,) if channels else (),
            )
    if heads.halt is not None:
        built["halt"] = HaltHead(hidden_size, heads.halt.detach)
    return built


class HeadReader:
    """Reads the heads that were attached to a recurrence."""

    def __init__(self, inner: Recurrence, heads: HeadsConfig) -> None:
        self._inner = inner
        self._has_q = heads.q is not None
        self._dropout = heads.lm.dropout if heads.lm.norm == "none" else 0.0
        self._further = [name for name in FURTHER_HEADS if getattr(heads, name) is not None]

    def __call__(self, answer: Tensor, examples: Examples) -> Predictions:
        """Return what all heads say of the answer [B, T, D]."""
        inner: Any = self._inner
        P = inner.num_prefix
        logits, balance = inner.lm_head.with_balance(self._cells(answer), self._puzzle(examples))
        further = {name: getattr(inner, f"{name}_head")(answer, P) for name in self._further}
        if self._has_q:
            q_halt, q_continue = inner.q_head.read(answer)
        elif "halt" in further:
            go_on, halt = further["halt"].unbind(-1)
            q_halt, q_continue = (halt - go_on).detach(), torch.zeros_like(halt)
        else:
            q_halt = q_continue = answer.new_zeros(answer.shape[0], dtype=torch.float32)
        return Predictions(logits, q_halt, q_continue, further, balance)

    def q_values(self, answer: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Q head's q_halt and q_continue, float32 [B], for the answer [B, T, D]."""
        inner: Any = self._inner
        return inner.q_head.read(answer)

    def token_logits(
        self,
        answer: Tensor,
        examples: Examples,
        *,
        positions: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Return token logits for the trunk's answer [B, T, D]: of the cells `positions` (int64
        [Q]) alone, and of the tokens `tokens` (int64 [K]) alone, where given.
        """
        inner: Any = self._inner
        cells = self._cells(answer)
        cells = cells if positions is None else cells[:, positions]
        puzzle = self._puzzle(examples)
        if tokens is None:
            return inner.lm_head(cells, puzzle)
        return inner.lm_head.score(cells, tokens, puzzle)

    def _cells(self, answer: Tensor) -> Tensor:
        P = self._inner.num_prefix
        cells = answer[:, P:] if P else answer
        return F.dropout(cells, self._dropout, self._inner.training) if self._dropout else cells

    def _puzzle(self, examples: Examples) -> Tensor | None:
        if not self._inner.num_prefix:
            return None
        return self._inner.puzzle_emb.rows_in_use(examples["puzzle_identifiers"])
