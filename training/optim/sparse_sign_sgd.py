"""Sign-SGD for the puzzle embedding: only the rows of the batch move, and all ranks move them
alike.
"""

import torch
from torch import Tensor

from models.sparse_embedding import CastedSparseEmbedding
from runtime.ranks import Ranks


class SparseSignSGD:
    """w = w * (1 - lr * wd) - lr * sign(g), for the rows that the global batch touched.

    Gradients and identifiers of all ranks are gathered in row order, and gradients of equal
    identifiers are added up one after the other: sign turns a rounding difference near zero into a
    full step, so no order may be left to chance. Shapes are fixed and nothing waits for the host.

    A rank whose rows come in several shards sets the gradient of each aside before the next one.

    Args:
        embedding: the table; its `local_weights.grad` and `local_ids` belong to the last shard.
        lr, weight_decay: rate and decoupled decay, settable at any time.
    """

    def __init__(
        self, embedding: CastedSparseEmbedding, ranks: Ranks, *, lr: float, weight_decay: float
    ) -> None:
        self.embedding = embedding
        self.ranks = ranks
        self.lr = lr
        self.weight_decay = weight_decay
        self._kept: list[tuple[Tensor, Tensor]] = []

    def keep_gradient(self) -> None:
        """Keep the last shard's gradient for `step`, and make room for that of the next shard."""
        ids, grad = self._last()
        self._kept.append((ids.clone(), grad))
        self.embedding.local_weights.grad = None

    def zero_grad(self) -> None:
        """Forget the gradients of the last batch."""
        self._kept = []
        self.embedding.local_weights.grad = None

    def finite(self) -> Tensor:
        """Return bool [], whether this rank's gradient is; to be asked before the sign makes 0 of a
        NaN."""
        return self._of_this_rank()[1].isfinite().all()

    @torch.no_grad()
    def step(self, skip: Tensor | None = None) -> None:
        """Move the touched rows; where `skip` (bool []) is true nothing changes."""
        local_ids, local_grad = self._of_this_rank()
        table = self.embedding.weights
        ids, summed = sum_by_id(self.ranks.concat(local_ids), self.ranks.concat(local_grad))
        rows = table[ids]
        moved = rows * (1 - self.lr * self.weight_decay) - self.lr * summed.sign()
        # Rows of equal identifier hold equal values, so it does not matter which of them is written
        # last.
        table[ids] = moved if skip is None else torch.where(skip, rows, moved)

    def _last(self) -> tuple[Tensor, Tensor]:
        grad = self.embedding.local_weights.grad
        assert grad is not None, "asked without backward()"
        return self.embedding.local_ids, grad

    def _of_this_rank(self) -> tuple[Tensor, Tensor]:
        """Return identifiers [b] and gradients [b, D] of all shards, in row order."""
        if not self._kept:
            return self._last()
        ids, grads = zip(*self._kept, self._last(), strict=True)
        return torch.cat(ids), torch.cat(grads)


def sum_by_id(ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Add up the gradients of equal identifiers, in row order, without dynamic shapes.

    Args:
        ids: int64 [B]. grads: float32 [B, D].
    Returns:
        ids sorted, int64 [B]; for each of them the sum of its identifier's gradients, [B, D], equal
        in every bit where identifiers are equal.
    """
    ids, order = ids.sort(stable=True)
    starts = torch.ones_like(ids)
    starts[1:] = (ids[1:] != ids[:-1]).long()
    segment = starts.cumsum(0) - 1
    lengths = torch.zeros_like(ids).scatter_add_(0, segment, torch.ones_like(ids))
    sums = torch.segment_reduce(grads[order], "sum", lengths=lengths, axis=0, unsafe=True)
    return ids, sums[segment]
