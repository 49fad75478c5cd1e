"""Ranks and collectives. Nothing else in the project calls torch.distributed."""

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# A rank that waits this long for another gives up.
_TIMEOUT = timedelta(minutes=30)


class Ranks:
    """The processes of a run, one for each device; a single process needs no launcher.

    Attributes:
        rank, world_size: this process and how many there are.
        device: where this rank computes.
    """

    def __init__(self, device_type: str) -> None:
        self.rank, self.world_size = env_rank(), env_world_size()
        if device_type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        if self.world_size > 1 or "RANK" in os.environ:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo", timeout=_TIMEOUT
            )

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0

    @property
    def active(self) -> bool:
        """Whether collectives go through a process group."""
        return dist.is_initialized()

    def on_device(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Return host arrays as tensors on this rank's device; nobody waits for a copy to CUDA."""
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.device.type != "cuda":
            return tensors
        return {
            name: tensor.pin_memory().to(self.device, non_blocking=True)
            for name, tensor in tensors.items()
        }

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up `tensor` over the ranks in place."""
        if self.active:
            dist.all_reduce(tensor)
        return tensor

    def concat(self, tensor: Tensor) -> Tensor:
        """Return the ranks' tensors [b, ...] one after the other, [world_size * b, ...], on every
        rank.
        """
        if not self.active:
            return tensor
        out = tensor.new_empty((self.world_size * tensor.shape[0], *tensor.shape[1:]))
        dist.all_gather(list(out.chunk(self.world_size)), tensor.contiguous())
        return out

    def gather_rows(self, tensor: Tensor) -> Tensor | None:
        """Return the ranks' rows in global order, on the CPU of rank 0; None on the others. Any
        dtype.
        """
        # Not contiguous(), which leaves a single row as it is, whatever its stride.
        local = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        if not self.active:
            return local
        as_bytes = local.view(torch.uint8) if local.ndim else local.reshape(1).view(torch.uint8)
        parts = (
            [torch.empty_like(as_bytes) for _ in range(self.world_size)] if self.is_main else None
        )
        dist.gather(as_bytes, parts)
        return None if parts is None else torch.cat([part.view(local.dtype) for part in parts])

    def broadcast_(self, tensors: list[Tensor]) -> None:
        """Overwrite `tensors` with those of rank 0."""
        if self.active:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        if not self.active:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on every rank."""
        if not self.active:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.active:
            dist.barrier()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if not self.active:
            return
        if kind is None:
            # A rank that leaves while another is still inside its last collective can take that
            # one down with it.
            dist.barrier()
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

    def __str__(self) -> str:
        return f"{self.world_size} x {self.device.type}"


def sum_in_order(shards: Tensor) -> Tensor:
    """Add up [N, ...] along the first dimension, (((0 + 1) + 2) + 3): a library's sum and a
    collective choose their own order, and with it other last bits.
    """
    total = shards[0].clone()
    for shard in shards[1:]:
        total += shard
    return total


def env_rank() -> int:
    """Return this process's rank as the launcher set it."""
    return int(os.environ.get("RANK", "0"))


def env_world_size() -> int:
    """Return the number of ranks as the launcher set it."""
    return int(os.environ.get("WORLD_SIZE", "1"))
