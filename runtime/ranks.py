"""Ranks and their collectives. No other module calls torch.distributed."""

import contextlib
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from runtime.errors import EXIT_RANK, ConfigError, RankError
from runtime.process import env_local_rank, env_rank, env_world_size, launched, leave, print_error
from runtime.watch import PATIENCE, Watch

T = TypeVar("T")

# Never reached: `Watch` ends a rank that waits too long.
_BACKEND_TIMEOUT = timedelta(days=10)
_POLL_SECONDS = 0.02
# Texts in gloo's RuntimeErrors if another rank is gone.
_LOST = re.compile(r"(?i)gloo|Connection (closed|reset|refused)|Broken pipe|Timed out waiting")


class Ranks:
    """The processes of a run, one per device; a single process needs no launcher.

    Attributes:
        rank: the number of this process.
        world_size: the number of processes.
        device: the device of this process.
    Args:
        device_type: cpu or cuda.
        timeout: seconds that a rank waits for another one. Then its process ends with EXIT_RANK and
            a message that names the missing rank and the collective.
    Raises:
        RankError: another rank has died or is too late. All collectives raise it too.
    """

    def __init__(self, device_type: str, *, timeout: float = 600.0) -> None:
        self.rank, self.world_size = env_rank(), env_world_size()
        self.device = torch.device("cpu")
        if device_type == "cuda":
            if env_local_rank() >= torch.cuda.device_count():
                raise ConfigError(f"more ranks than the {torch.cuda.device_count()} GPUs here")
            # Without a launcher it is the device that the caller's code has chosen.
            number = env_local_rank() if launched() else torch.cuda.current_device()
            self.device = torch.device("cuda", number)
            torch.cuda.set_device(self.device)
        self._watch: Watch | None = None
        if self.world_size > 1 or launched():
            self._join("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo", timeout)

    def _join(self, backend: str, timeout: float) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        keeper = f"the launcher's store at {host}:{port}" if by_launcher else ""
        rank, world_size, patience = self.rank, self.world_size, timeout * PATIENCE
        limit = timedelta(seconds=patience)
        connect = partial(dist.TCPStore, host, port, wait_for_workers=False, timeout=limit)
        try:
            store = connect(is_master=self.is_main and not by_launcher)
            prefix = agree_on_prefix(store, rank, world_size, patience)
            # A second connection, because a connection that waits for an answer is blocked.
            watched = dist.PrefixStore(prefix, connect(is_master=False))
        except dist.DistError as error:
            silent = f"{keeper or 'rank 0'} does not answer at the start ({_reason(error)})"
            raise RankError(silent) from None
        self._watch = Watch(rank, world_size, watched, keeper=keeper, timeout=timeout, end=_end)
        self._watch.start()
        with self._collective("the connection of the ranks"):
            dist.init_process_group(
                backend,
                rank=rank,
                world_size=world_size,
                store=dist.PrefixStore(prefix, store),
                timeout=_BACKEND_TIMEOUT,
            )
        self._watch.hosts = self.gather_objects(socket.gethostname())

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def active(self) -> bool:
        """Whether there is a process group, through which collectives go."""
        return dist.is_initialized()

    def mark(self, place: str, *, long: bool = False) -> None:
        """Report progress and the current place to the other ranks. If the next part may take
        `long`, they wait PATIENCE times their timeout for it.
        """
        if self._watch is not None:
            self._watch.mark(place, long=long)

    def wait(self) -> AbstractContextManager[None]:
        """Return a context for waiting for the device, since its queue may contain collectives."""
        return self._watch or contextlib.nullcontext()

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the CPU, waiting for the device."""
        with self.wait():
            return tensor.cpu()

    @contextlib.contextmanager
    def _collective(self, name: str) -> Iterator[None]:
        assert self._watch is not None
        try:
            with self._watch.collective(name):
                yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and not _LOST.search(str(error)):
                raise
            raise RankError(self._watch.explain(_reason(error))) from None

    def on_device(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Return arrays as tensors on this rank's device; copies to CUDA are asynchronous."""
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.device.type != "cuda":
            return tensors
        # torch reuses pinned memory, but only after the copy from it is done.
        return {
            name: own.pin_memory().to(self.device, non_blocking=True)
            for name, own in tensors.items()
        }

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over the ranks, and return it."""
        if self.active:
            with self._collective("all_reduce"):
                dist.all_reduce(tensor)
        return tensor

    def any(self, asked: bool) -> bool:
        """Return, on every rank, whether `asked` is true on any rank."""
        return bool(self.sum_(torch.tensor(float(asked))))

    def concat(self, tensor: Tensor) -> Tensor:
        """Return the ranks' tensors [b, ...] in rank order, [world_size * b, ...], on all ranks."""
        if not self.active:
            return tensor
        out = tensor.new_empty((self.world_size * tensor.shape[0], *tensor.shape[1:]))
        with self._collective("all_gather"):
            dist.all_gather(list(out.chunk(self.world_size)), tensor.contiguous())
        return out

    def gather_rows(self, tensor: Tensor) -> Tensor | None:
        """Return the ranks' rows [b, ...] of any dtype in rank order, [world_size * b, ...], on the
        CPU of rank 0; None on the other ranks.
        """
        # Not contiguous(), which keeps a single row's stride.
        local = self.to_host(tensor.detach()).clone(memory_format=torch.contiguous_format)
        if not self.active:
            return local
        as_bytes = local.view(torch.uint8) if local.ndim else local.reshape(1).view(torch.uint8)
        sources = range(self.world_size if self.is_main else 0)
        parts = [torch.empty_like(as_bytes) for _ in sources]
        with self._collective("gather"):
            dist.gather(as_bytes, parts or None)
        return torch.cat([part.view(local.dtype) for part in parts]) if parts else None

    def broadcast_(self, tensors: list[Tensor]) -> None:
        """Overwrite `tensors` with rank 0's."""
        if self.active:
            for tensor in tensors:
                with self._collective("broadcast"):
                    dist.broadcast(tensor, 0)

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        if not self.active:
            return value
        box = [value]
        with self._collective("broadcast of an object"):
            dist.broadcast_object_list(box, 0)
        return box[0]

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on every rank."""
        if not self.active:
            return [value]
        values: list[T | None] = [None] * self.world_size
        with self._collective("gathering of objects"):
            dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def differing(self, value: object) -> list[int]:
        """Return, on every rank, the ranks with a value other than rank 0's."""
        seen = self.gather_objects(value)
        return [rank for rank, one in enumerate(seen) if one != seen[0]]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.active:
            with self._collective("barrier"):
                dist.barrier()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._watch is None:
            return
        if error is None:
            self.barrier()
            self._watch.stop()
            # A rank that leaves early can make others fail in their last collective or in the
            # store. All work is done by now, so that does no harm.
            with contextlib.suppress(RuntimeError):
                dist.barrier()
        elif isinstance(error, RankError):
            self._watch.stop(str(error))
        else:
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            self._watch.stop(f"{self._watch.name(self.rank)} has ended: {why}")
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

    def __str__(self) -> str:
        return f"{self.world_size} x {self.device.type}"


def sum_in_order(shards: Tensor) -> Tensor:
    """Return the sum of `shards` [num_shards, ...] over the first dimension in the fixed order
    (((0 + 1) + 2) + 3). Other sums use other orders, which changes the last bits.
    """
    total = shards[0].clone()
    for shard in shards[1:]:
        total += shard
    return total


def agree_on_prefix(store: dist.Store, rank: int, world_size: int, timeout: float) -> str:
    """Wait for all ranks, and return a new prefix for their keys in the store, the same on all.

    torchrun keeps its store across restarts, with keys of dead ranks in it, and counts restarts
    differently on each node. So each rank asks under a random name, and rank 0 answers each
    question with the random prefix of this attempt.

    Raises:
        RankError: ranks did not come within `timeout` seconds; names them.
    """
    deadline = time.monotonic() + timeout
    if rank != 0:
        question = secrets.token_hex(8)
        store.set(f"question/{rank}", question)
        while not store.check([f"answer/{question}"]):
            _pause(deadline, "0", timeout)
        prefix = store.get(f"answer/{question}").decode()
        store.set(f"{prefix}/there/{rank}", "")
        return prefix
    prefix = secrets.token_hex(8)
    Watch.prepare(dist.PrefixStore(prefix, store), world_size)
    missing = list(range(1, world_size))
    while missing:
        for other in missing:
            # A question from an earlier attempt is replaced by a new one later.
            if store.check([f"question/{other}"]):
                question = store.get(f"question/{other}").decode()
                store.set(f"answer/{question}", prefix)
        missing = [other for other in missing if not store.check([f"{prefix}/there/{other}"])]
        if missing:
            _pause(deadline, ", ".join(map(str, missing)), timeout)
    return prefix


def _pause(deadline: float, missing: str, timeout: float) -> None:
    if time.monotonic() > deadline:
        raise RankError(f"rank {missing} does not answer: not started within {timeout:g} s")
    time.sleep(_POLL_SECONDS)


def _reason(error: RuntimeError) -> str:
    """Return the first sentence of a backend's error, without the position in its source code."""
    return re.sub(r"^\[[^]]*\] ", "", str(error).partition("\n")[0]).partition(". ")[0]


def _end(message: str) -> None:
    sys.stderr.write("\n")  # Below the progress bar.
    print_error(message)
    leave(EXIT_RANK)
