"""Sign-SGD for the puzzle embedding."""

import torch
from torch import Tensor

from models.layers import CastedSparseEmbedding
from runtime.ranks import Ranks


class SparseSignSGD:
    """w = w * (1 - lr * wd) - lr * sign(g), for the rows of the batch, the same on all ranks.

    Gradients and identifiers of all ranks are gathered in row order, and gradients of equal
    identifiers are added up in that order: sign turns a rounding difference near zero into a full
    step, so the order must be fixed. Shapes are fixed too, and the host does not wait.

    If the rows of a rank come in several shards, call `keep_gradient` after each but the last.

    Args:
        embedding: the table; its `local_weights.grad` and `local_ids` belong to the last shard.
        lr: may be changed before each step.
    """

    def __init__(
        self, embedding: CastedSparseEmbedding, ranks: Ranks, *, lr: float, weight_decay: float
    ) -> None:
        self.embedding, self.ranks = embedding, ranks
        self.lr, self.weight_decay = lr, weight_decay
        self._kept: tuple[Tensor, Tensor] | None = None  # The earlier shards' ids and gradients.

    def keep_gradient(self) -> None:
        """Keep the last shard's gradient for `step`. The next shard gets its own gradient."""
        ids, grad = self._of_this_rank()
        self._kept = (ids.clone(), grad)
        self.embedding.local_weights.grad = None

    def zero_grad(self) -> None:
        """Drop the gradients of the last batch."""
        self._kept = self.embedding.local_weights.grad = None

    def finite(self) -> Tensor:
        """Return bool [], whether this rank's gradient is finite."""
        return self._of_this_rank()[1].isfinite().all()

    @torch.no_grad()
    def step(self, skip: Tensor | None = None) -> None:
        """Update the rows of the batch, unless `skip` (bool []) is true."""
        table = self.embedding.weights
        ids, summed = sum_by_id(*self._of_all_ranks(*self._of_this_rank()))
        rows = table[ids]
        moved = rows * (1 - self.lr * self.weight_decay) - self.lr * summed.sign()
        # Rows of equal identifier have equal values, so the order of writing does not matter.
        table[ids] = moved if skip is None else torch.where(skip, rows, moved)

    def _of_all_ranks(self, ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of all ranks in order, gathered by one collective as bits."""
        if not self.ranks.active:
            return ids, grads
        rows = torch.cat([ids.view(torch.int32).view(-1, 2), grads.view(torch.int32)], 1)
        rows = self.ranks.concat(rows)
        # `contiguous` would keep the strides of a single row, which a view of another type refuses.
        own_ids, own_grads = (
            part.clone(memory_format=torch.contiguous_format) for part in (rows[:, :2], rows[:, 2:])
        )
        return own_ids.view(torch.int64).flatten(), own_grads.view(grads.dtype)

    def _of_this_rank(self) -> tuple[Tensor, Tensor]:
        """Return identifiers [b] and gradients [b, D] of all shards, in row order."""
        ids, grad = self.embedding.local_ids, self.embedding.local_weights.grad
        assert grad is not None, "called without backward()"
        if self._kept is None:
            return ids, grad
        return torch.cat((self._kept[0], ids)), torch.cat((self._kept[1], grad))


def sum_by_id(ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Add up the gradients of equal identifiers, in row order, without dynamic shapes.

    Args:
        ids: int64 [B].
        grads: float32 [B, D].
    Returns:
        The sorted identifiers, int64 [B], and for each the sum of its gradients, float32 [B, D].
        Rows with equal identifiers have the same bits.
    """
    ids, order = ids.sort(stable=True)
    starts = torch.ones_like(ids)
    starts[1:] = (ids[1:] != ids[:-1]).long()
    segment = starts.cumsum(0) - 1
    lengths = torch.zeros_like(ids).scatter_add_(0, segment, torch.ones_like(ids))
    sums = torch.segment_reduce(grads[order], "sum", lengths=lengths, axis=0, unsafe=True)
    return ids, sums[segment]
