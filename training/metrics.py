"""Metrics of the steps, gathered on the device and brought to the host in blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models.metrics import mean_metrics
from runtime.ranks import Ranks, sum_in_order


class MetricBlock:
    """Sums of up to `capacity` steps on the device, brought to the host by one collective.

    Args:
        names: what each step records of each shard: sums over its rows.
        replicated: what each step records that is the same on all ranks.
        global_batch_size: divisor of the losses.
    """

    def __init__(
        self,
        capacity: int,
        names: tuple[str, ...],
        replicated: tuple[str, ...],
        *,
        num_shards: int,
        global_batch_size: int,
        ranks: Ranks,
    ) -> None:
        self.names, self.replicated = names, replicated
        self.global_batch_size, self.ranks = global_batch_size, ranks
        self._sums = torch.zeros(num_shards, capacity, len(names), device=ranks.device)
        self._same = torch.zeros(capacity, len(replicated), device=ranks.device)
        self._host: list[dict[str, Any]] = []

    @property
    def full(self) -> bool:
        """Whether `drain` must come before the next `record`."""
        return len(self._host) == len(self._same)

    def record(
        self, shards: Sequence[Mapping[str, Tensor]], same: Tensor, host: dict[str, Any]
    ) -> None:
        """Add a step: sums by name, 0-dim, of each shard; `same` [replicated]; what the host knows,
        `step` at least.
        """
        row = len(self._host)
        for own, sums in zip(self._sums, shards, strict=True):
            own[row] = torch.stack([sums[name].detach() for name in self.names])
        self._same[row] = same
        self._host.append(host)

    def drain(self) -> list[dict[str, Any]]:
        """Return a record for each step, and empty the block."""
        rows = len(self._host)
        if not rows:
            return []
        shards = self.ranks.concat(self._sums[:, :rows])
        sums = self.ranks.to_host(sum_in_order(shards)).tolist()
        same = self._same[:rows].tolist()
        records = []
        for host, step_sums, step_same in zip(self._host, sums, same, strict=True):
            values = dict(zip(self.names, step_sums, strict=True))
            means = mean_metrics(values, self.global_batch_size)
            record = host | {f"train/{name}": value for name, value in means.items()}
            records.append(record | dict(zip(self.replicated, step_same, strict=True)))
        self._host = []
        return records
