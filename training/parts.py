"""A rank's rows in parts: micro-batches (`micro_batch_size`) and the shards of `reduction=exact`.

Micro-batches help where the rows do not fit into memory at once. Shards help where a run must have
the same bits on any number of ranks: the global batch is cut into `CANONICAL_SHARDS` of them, each
with its own gradients and random numbers, which are added up in their order.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from models.act import ACTCarry, Drawn
from models.heads.base import Examples
from runtime.ranks import Ranks, sum_in_order
from runtime.streams import torch_seed
from training.config.schema import CANONICAL_SHARDS, TrainConfig
from training.optim.groups import GradientBucket
from training.optim.sparse_sign_sgd import SparseSignSGD


class Pass(NamedTuple):
    """The result of forward and backward over some rows."""

    carry: ACTCarry
    loss: Tensor  # 0-dim, summed over the sequences.
    metrics: list[dict[str, Tensor]]  # Of each part.
    measured: list[dict[str, Tensor]]  # Of each part if the step is diagnosed, else empty.


class Parts:
    """Runs `run`, which passes rows forward and backward, on one part after the other.

    Args:
        run: takes a carry, offered examples, what was drawn, and the step.
        bucket: of the gradients; `in_order` says that they are added up by shards.
        sparse: the optimizer of the puzzle embedding, which keeps the gradients of each part.
    """

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        bucket: GradientBucket,
        sparse: SparseSignSGD | None,
        run: Callable[[ACTCarry, Examples, Drawn, int], Pass],
    ) -> None:
        self._seed, self._ranks = config.seed, ranks
        self._bucket, self._sparse, self._run = bucket, sparse, run
        self._num_shards = config.num_shards(ranks.world_size)
        self._num_parts = config.num_parts(ranks.world_size)

    def __call__(
        self, carry: ACTCarry, batch: Examples, drawn: dict[str, Tensor], step: int
    ) -> Pass:
        """Run all parts; `drawn` is [parts, ...] by name."""
        carries = [ACTCarry.from_tensors(own) for own in _cut(carry.tensors(), self._num_parts)]
        done = []
        for number, offered in enumerate(_cut(batch, self._num_parts)):
            if number and self._sparse:
                self._sparse.keep_gradient()
            if self._bucket.in_order:
                self._begin(number, step)
            own = {name: of_parts[number] for name, of_parts in drawn.items()}
            done.append(self._run(carries[number], offered, own, step))
        if self._bucket.in_order:
            # What draws next finds the same state on all ranks, however many there are.
            self._draw_as(step, CANONICAL_SHARDS)
        tensors = [part.carry.tensors() for part in done]
        joined = {name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
        return Pass(
            ACTCarry.from_tensors(joined),
            sum_in_order(torch.stack([part.loss for part in done])),
            [metrics for part in done for metrics in part.metrics],
            [measured for part in done for measured in part.measured],
        )

    def _begin(self, number: int, step: int) -> None:
        """At a shard's first part, select its gradients and seed torch."""
        shard, place = divmod(number, self._num_parts // self._num_shards)
        if place == 0:
            self._bucket.select(shard)
            self._draw_as(step, self._ranks.rank * self._num_shards + shard)

    def _draw_as(self, step: int, part: int) -> None:
        """Seed torch for a part of the global batch."""
        torch.manual_seed(torch_seed(self._seed, step - 1, part))


def _cut(tensors: dict[str, Tensor], number: int) -> list[dict[str, Tensor]]:
    """Return equal parts of the rows of all tensors, in order; views of them."""
    chunks = {name: value.chunk(number) for name, value in tensors.items()}
    return [{name: parts[i] for name, parts in chunks.items()} for i in range(number)]
