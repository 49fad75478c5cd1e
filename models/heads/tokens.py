"""Token heads: from the states of the cells [B, S, D] to logits [B, S, V].

They differ in how they build the V outputs: a matrix of their own or the token embedding's, two
thin matrices, experts, a change of weights for each puzzle, clusters of tokens. Weights are float32
and cast to the states' dtype in forward. Shape letters: `models.heads.base`.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ACTLossConfig
from models.heads.base import Answer, Head, Measured, Outputs, Targets
from models.layers import CastedLinear, LayerNorm, trunc_normal_, widened
from models.losses import CrossEntropy

# The logit of a token that is never predicted: finite, as all losses and gradients must be.
NEVER = -1e9


class TokenHead(Head):
    """Maps [B, S, D] to V outputs; a subclass says how in `score`, or in `forward` as well.

    The target is the label of each cell. Metrics: `accuracy`, the share of the labelled cells that
    are right, and `exact_accuracy`, whether all are.

    Attributes:
        normalized: whether the outputs are log probabilities already.
        needs_puzzle: whether `puzzle` must be given.
        loss: how the outputs are judged: what stands behind `arch.loss.name`.
        dropout: share of the states that is set to 0 in training.
    """

    name = "lm"
    loss_names: tuple[str, ...] = ("lm",)
    metric_names = ("accuracy", "exact_accuracy")
    normalized: bool = False
    needs_puzzle = False
    loss = CrossEntropy(ACTLossConfig())
    dropout = 0.0

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        """Return logits [B, S, V], or log probabilities where the head is `normalized`.

        Args:
            hidden: states of the cells [B, S, D].
            puzzle: the puzzle embedding's rows [B, puzzle_emb_ndim].
        """
        return self.score(hidden, None, puzzle)

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        """Return the logits of the tokens int64 [J] alone, [B, S, J]; None: of all."""
        if type(self).forward is TokenHead.forward:
            raise NotImplementedError(f"{type(self).__name__} defines neither score nor forward")
        logits = self(hidden, puzzle)
        return logits if tokens is None else logits[..., tokens]

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        """Return logits and, where the head wants one, a balance loss float32 [B]."""
        return {"logits": self(hidden, puzzle)}

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log probabilities [..., V] that logits stand for, float32 (float64 stays)."""
        return logits if self.normalized else self.loss.log_probs(logits)

    def read(self, answer: Answer) -> Outputs:
        """Return the outputs for an answer, with dropout in training."""
        return self.outputs(self._dropped(answer.of_tokens), answer.puzzle)

    def read_part(
        self, answer: Answer, *, cells: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """Return the logits of some cells (int64 [M]) and tokens (int64 [J]; None: all), [B, M, J],
        without computing the others.
        """
        hidden = self._dropped(answer.of_tokens)
        return self.score(hidden if cells is None else hidden[:, cells], tokens, answer.puzzle)

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        """The loss of the tokens, the mean over the labelled cells, and the balance loss."""
        divisor = targets.labelled.sum(-1).clamp_min(1)
        labels = targets.examples["labels"]
        cells = self.loss(outputs["logits"], labels, self.log_probs)
        losses = {"lm": (cells / divisor.unsqueeze(-1)).sum(-1)}
        if "balance" in outputs:
            losses["balance"] = outputs["balance"]
        accuracy = targets.right.sum(-1) / divisor
        return Measured(losses, {"accuracy": accuracy, "exact_accuracy": targets.whole_right})

    def _dropped(self, cells: Tensor) -> Tensor:
        return F.dropout(cells, self.dropout, self.training) if self.dropout else cells


class Matrix(TokenHead):
    """A matrix `weight` [V, D] and an optional `bias` [V]; a subclass says whose matrix it is."""

    weight: Tensor
    bias: nn.Parameter | None

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        return _affine(hidden, self.weight, self.bias, tokens)


class Linear(Matrix):
    """A matrix of its own, std 1/sqrt(D)."""

    def __init__(self, embed_dim: int, vocab_size: int, bias: bool = False) -> None:
        super().__init__()
        plain = CastedLinear(embed_dim, vocab_size, bias)
        self.weight, self.bias = plain.weight, plain.bias


class LinearOfDigits(Linear):
    """One row [1, D] for all digits: maps [B, S, N, D] to [B, S, V], of which the last N tokens are
    the digits. The others, padding and empty, are never predicted.
    """

    def __init__(self, embed_dim: int, vocab_size: int, bias: bool = False) -> None:
        super().__init__(embed_dim, 1, bias)
        self.vocab_size = vocab_size

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        digits = widened(super().score(hidden, None).squeeze(-1))  # float16 ends at 65,504.
        logits = F.pad(digits, (self.vocab_size - digits.shape[-1], 0), value=NEVER)
        return logits if tokens is None else logits[..., tokens]


class Tied(Matrix):
    """The token embedding's own matrix [V, D]: one tensor, used at both ends.

    The embedding keeps it; here it is only referred to, so that a state dict holds it once and a
    loaded model is tied as well.
    """

    def __init__(self, embedding: nn.Module | nn.Parameter, bias: bool = False) -> None:
        super().__init__()
        # A tuple, because an attribute would be registered a second time.
        self._source = (embedding,)
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[0])) if bias else None

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        (source,) = self._source
        if isinstance(source, nn.Module):
            name = "embedding_weight" if hasattr(source, "embedding_weight") else "weight"
            return cast(Tensor, getattr(source, name))
        return source


class Factorized(TokenHead):
    """Two matrices of rank R, [R, D] and [V, R], in place of one."""

    def __init__(self, embed_dim: int, vocab_size: int, rank: int, bias: bool = False) -> None:
        super().__init__()
        self.down = CastedLinear(embed_dim, rank)
        self.up = CastedLinear(rank, vocab_size, bias)

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        return _apply(self.up, self.down(hidden), tokens)


class PuzzleAdapted(TokenHead):
    """A matrix W of its own and a change of rank R that the puzzle embedding p steers.

    W(p) = W + U diag(1 + M p) A, with A [R, D], U [V, R] and M [R, puzzle_emb_ndim]. U starts at 0,
    so that the head starts as W; the 1 lets U learn before the puzzle embedding, which starts at 0,
    says anything.
    """

    needs_puzzle = True

    def __init__(
        self, embed_dim: int, vocab_size: int, puzzle_dim: int, rank: int, bias: bool = False
    ) -> None:
        super().__init__()
        self.base = Linear(embed_dim, vocab_size, bias)
        self.down = CastedLinear(embed_dim, rank)
        self.up = CastedLinear(rank, vocab_size)
        self.steer = CastedLinear(puzzle_dim, rank)
        with torch.no_grad():
            self.up.weight.zero_()

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        if puzzle is None:
            raise ValueError("a token head adapted to the puzzle needs the puzzle embedding's rows")
        shared = _apply(self.base, hidden, tokens)
        steered = self.down(hidden) * (1 + self.steer(puzzle.to(hidden.dtype))).unsqueeze(1)
        return shared + _apply(self.up, steered, tokens)


class MixtureOfExperts(TokenHead):
    """E matrices [V, D]; a router weights their logits cell by cell.

    Of the E weights, a softmax, the `top_k` largest are kept and brought back to sum 1; a single
    one keeps its size, or the router would learn nothing (arXiv:2101.03961, 2.1). All experts are
    computed: V is small. The balance loss is that of Switch transformers (2.2 there), E * sum_e f_e
    P_e for each row: f_e the share of its cells whose first choice is e, P_e the mean weight of e;
    1 when balanced.
    """

    loss_names = ("lm", "balance")

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        num_experts: int,
        top_k: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = CastedLinear(embed_dim, num_experts)
        experts = torch.empty(num_experts, vocab_size, embed_dim)
        self.experts = nn.Parameter(trunc_normal_(experts, std=embed_dim**-0.5))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def score(self, hidden: Tensor, tokens: Tensor | None, puzzle: Tensor | None = None) -> Tensor:
        return self._mix(hidden, self._weights(hidden), tokens)

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        weights = self._weights(hidden)
        num_experts = weights.shape[-1]
        first = F.one_hot(weights.argmax(-1), num_experts).to(weights.dtype)
        balance = num_experts * (first.mean(-2) * weights.mean(-2)).sum(-1)
        return {"logits": self._mix(hidden, weights, None), "balance": balance}

    def _weights(self, hidden: Tensor) -> Tensor:
        scores = self.router(hidden)
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    def _mix(self, hidden: Tensor, weights: Tensor, tokens: Tensor | None) -> Tensor:
        if self.top_k is not None and self.top_k < weights.shape[-1]:
            values, chosen = weights.topk(self.top_k, dim=-1)
            weights = torch.zeros_like(weights).scatter(-1, chosen, values)
            if self.top_k > 1:
                weights = weights / weights.sum(-1, keepdim=True)
        experts, bias = self.experts, self.bias
        if tokens is not None:
            experts, bias = experts[:, tokens], None if bias is None else bias[tokens]
        logits = torch.einsum("...d,evd->...ev", hidden, experts.to(hidden.dtype))
        mixed = torch.einsum("...ev,...e->...v", logits, weights.to(hidden.dtype))
        return mixed if bias is None else mixed + bias.to(hidden.dtype)


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
            members = _apply(self.fine, hidden, slice(begin, end))
            inside = widened(members).log_softmax(-1) + coarse[..., cluster, None]
            mine = cluster_of == cluster
            scores[..., mine] = inside[..., tokens[mine] - begin]
        return scores


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


class RMSNorm(nn.Module):
    """RMS norm over D with a learned scale, in float32 (float64 stays)."""

    def __init__(self, embed_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = widened(x)
        return F.rms_norm(wide, wide.shape[-1:], self.weight.to(wide.dtype), self.eps).to(x.dtype)


class NormedHead(TokenHead):
    """Blocks (a norm, dropout), then a token head, `projection`."""

    def __init__(self, blocks: Sequence[nn.Module], projection: TokenHead) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.projection = projection
        self.loss_names, self.normalized = projection.loss_names, projection.normalized

    def forward(
        self, hidden: Tensor, puzzle: Tensor | None = None, *, positions: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, S, V], or of the cells `positions` (int64 [M]) alone, [B, M, V]."""
        return self.score(hidden, None, puzzle, positions=positions)

    def score(
        self,
        hidden: Tensor,
        tokens: Tensor | None,
        puzzle: Tensor | None = None,
        *,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of `tokens` (int64 [J]) without the rest of the vocabulary."""
        hidden = self.blocks(hidden if positions is None else hidden[:, positions])
        if tokens is None:
            return self.projection(hidden, puzzle)
        return self.projection.score(hidden, tokens, puzzle)

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        return self.projection.outputs(self.blocks(hidden), puzzle)


class OutputHead(NormedHead):
    """A norm, then a matrix: [B, S, D] to [B, S, V].

    Args:
        embed_dim: D.
        vocab_size: V.
        bias: add a learned bias to the logits.
        tied_embedding: the token embedding, a module or its parameter [V, D], frozen or not.
        tie_weights: project with the embedding's own matrix; false starts from a copy of it.
        norm: module in front of the projection; None is a LayerNorm.
        use_norm: false leaves the norm out.
    Raises:
        ValueError: the embedding is not [V, D], or a norm is given that is not to be used.
    """

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        bias: bool = False,
        tied_embedding: nn.Module | nn.Parameter | None = None,
        tie_weights: bool = True,
        norm: nn.Module | None = None,
        use_norm: bool = True,
    ) -> None:
        if norm is not None and not use_norm:
            raise ValueError("a norm is given, and use_norm=False leaves it out")
        blocks = [LayerNorm(embed_dim) if norm is None else norm] if use_norm else []
        projection: Matrix = Linear(embed_dim, vocab_size, bias)
        if tied_embedding is not None:
            tied = Tied(tied_embedding, bias)
            found, expected = tuple(tied.weight.shape), (vocab_size, embed_dim)
            if found != expected:
                raise ValueError(f"the tied embedding has shape {found}, expected {expected}")
            if tie_weights:
                projection = tied
            else:
                with torch.no_grad():
                    projection.weight.copy_(tied.weight)
        super().__init__(blocks, projection)

    @property
    def weight(self) -> Tensor:
        """The matrix [V, D] of the projection."""
        return cast(Matrix, self.projection).weight


Rows = Tensor | slice | None


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None, tokens: Rows) -> Tensor:
    """Multiply by the rows of these tokens only; None: by all."""
    if tokens is not None:
        weight, bias = weight[tokens], None if bias is None else bias[tokens]
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _apply(layer: CastedLinear | Linear, x: Tensor, tokens: Rows) -> Tensor:
    return layer(x) if tokens is None else _affine(x, layer.weight, layer.bias, tokens)
