"""Trace the trainer's own step on fake tensors, which have shapes but no memory."""

import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dataset.format.schema import PuzzleDatasetMetadata
from models.act import ACTLossHead
from models.layers import KERNELS
from models.registry import arch_on_device, build_model
from puzzle_dataset import Batch, PuzzleDataset
from runtime.ranks import Ranks
from training.config.schema import TrainConfig
from training.optim import adam_atan2
from training.step import Learner
from training.stop_signals import StopSignals

aten = torch.ops.aten
_FLASH = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward
# torch counts no operations for the CPU's form of fused attention. Its arguments are the same.
_COUNTERS = flop_registry | {
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_FLASH[0]],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[_FLASH[1]],
}
# They read or write a few rows of their largest tensor.
_OF_ROWS = {aten.embedding, aten.gather, aten.index, aten.index_put_, aten.index_select}
_FUSED = "fa2"  # The backend that stands for fused attention in a trace.

# Operations and moved bytes of kernels, float64 [2, kernels]. `alone`: each operation is a kernel.
# `fused`: all operations between two products are one, as a compiler may make it.
Work = dict[str, np.ndarray]


class Trace(NamedTuple):
    """The costs of a training step of one rank, and of one ACT step in an evaluation. Bytes."""

    parts: dict[str, int]  # What stays in memory between steps.
    activations: int  # The most beside `parts` in forward and backward.
    update: int  # The same in the optimizers' update.
    passes: Work  # Forward and backward.
    updating: Work
    evaluating: Work
    reduced: int  # Gradients that are added up over the ranks.
    gathered: int  # Gradients of puzzle embeddings that a rank receives.
    parameters: int  # Numbers in the weights, without the puzzle table.


class Recorder(TorchDispatchMode):
    """Follows all tensors and operations inside it. `held` and `peak` are the bytes of the tensors
    that exist now, and the most since `restart`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._work: dict[str, list[tuple[int, int]]] = {"alone": [], "fused": []}
        # Since the last product: bytes read from older tensors, and the tensors made.
        self._read: dict[int, int] = {}
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def restart(self) -> Work:
        """Return the work since the last call, and begin anew."""
        self._end_of_chain()
        done = {form: np.array(own or [(0, 0)], float).T for form, own in self._work.items()}
        self._work, self.peak = {"alone": [], "fused": []}, self.held
        return done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        taken, made = (
            {x.untyped_storage() for x in tree_leaves(each) if isinstance(x, Tensor)}
            for each in ((args, kwargs), out)
        )
        for storage in made:
            if storage not in self._known:
                self._known.add(storage)
                self.held += storage.nbytes()
                self.peak = max(self.peak, self.held)
                weakref.finalize(storage, self._release, storage.nbytes())
        if "empty" in func.__name__ or (made <= taken and not func._schema.is_mutable):
            return out  # Nothing is read or written.
        tensors = (x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor))
        sizes, packet, flop = [_bytes(x) for x in tensors], func._overloadpacket, 0
        moved = sum(sizes) if packet not in _OF_ROWS else 2 * (sum(sizes) - max(sizes))
        if packet in _COUNTERS:
            flop = _COUNTERS[packet](*args, **kwargs, out_val=out)
            self._end_of_chain()
            self._work["fused"].append((flop, moved))
        else:
            old = taken.difference(self._made)
            self._read.update((x._cdata, min(x.nbytes(), moved)) for x in old)
            self._made.update((x, min(x.nbytes(), moved)) for x in made)
        self._work["alone"].append((flop, moved))
        return out

    def _release(self, size: int) -> None:
        self.held -= size

    def _end_of_chain(self) -> None:
        """End a chain without products. Of the tensors made, it writes those that still exist."""
        if moved := sum(self._made.values()) + sum(self._read.values()):
            self._work["fused"].append((0, moved))
        self._read.clear()
        self._made.clear()


class _OneOfMany(Ranks):
    """One rank of `world_size`, without the others; notes what a step sends."""

    def __init__(self, world_size: int, mode: FakeTensorMode, recorder: Recorder) -> None:
        super().__init__("cpu")
        self.world_size, self._mode, self._recorder = world_size, mode, recorder
        self.reduced = self.gathered = self.peak = 0
        self.passes: Work = {}

    @property
    def active(self) -> bool:
        return True

    def on_device(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        return {n: self._mode.from_tensor(torch.from_numpy(own)) for n, own in arrays.items()}

    def sum_(self, tensor: Tensor) -> Tensor:
        """Forward and backward come before this sum, the update after it."""
        self.reduced, self.peak = _bytes(tensor), self._recorder.peak
        self.passes = self._recorder.restart()
        return tensor

    def concat(self, tensor: Tensor) -> Tensor:
        self.gathered = _bytes(tensor) * self.world_size
        return tensor.new_empty((self.world_size * tensor.shape[0], *tensor.shape[1:]))

    def broadcast_(self, tensors: list[Tensor]) -> None:
        pass

    def broadcast_object(self, value: Any) -> Any:
        return value


class _Planned(Learner):
    """A learner of fake tensors, which cannot be moved to a device and need no room."""

    def _build_model(self, start_weights: Path | None) -> ACTLossHead:
        model = build_model(self.arch, self.facts)
        model.prepare(self.local_batch_size)
        return model


def trace(
    config: TrainConfig,
    data: PuzzleDatasetMetadata,
    kind: str | None,
    rows: int,
    ranks: int = 1,
    device: str = "cuda",
) -> Trace:
    """Trace a step with `rows` rows on each of `ranks` ranks, in one pass. Nothing is compiled.

    Args:
        device: whose number format and attention to use; cuda stands for any GPU and has a fused
            attention kernel, unless attention=math.
    """
    arch = arch_on_device(config.arch, device)
    if device == "cuda" and arch.attention != "math":
        arch = arch.model_copy(update={"attention": _FUSED})
    update = {"arch": arch, "global_batch_size": rows * ranks, "micro_batch_size": None}
    update |= {"reduction": "fast", "compile": False, "diagnose_interval": None}
    update["optimizer"] = config.optimizer.model_copy(update={"kernel": "ours"})
    fields = {name: data.fields[name] for name in config.arch.heads.fields.values()}
    opened = cast(PuzzleDataset, SimpleNamespace(metadata=data, fields=[*fields], kind=kind))
    cells = np.zeros((rows, data.seq_len), np.int32)
    more = {
        n: np.stack([cells] * own.channels, -1) if own.channels else cells
        for n, own in fields.items()
    }
    batch = Batch(cells, cells, np.zeros(rows, np.int32), more)
    mode, recorder = FakeTensorMode(), Recorder()
    as_on_a_gpu = (
        patch.dict(KERNELS, {_FUSED: _fused_attention}),
        patch.object(adam_atan2, "MIN_FOR_KERNEL", sys.maxsize),
    )
    with torch.random.fork_rng([]), as_on_a_gpu[0], as_on_a_gpu[1], mode, recorder:
        sent = _OneOfMany(ranks, mode, recorder)
        learner = _Planned(config.model_copy(update=update), arch, opened, sent)
        return _traced_step(learner, batch, sent, recorder)


def _traced_step(learner: Learner, batch: Batch, sent: _OneOfMany, recorder: Recorder) -> Trace:
    model = learner.model.train()
    recorder.restart()
    before = recorder.held
    learner.step(1, batch, StopSignals())
    in_update, updating = recorder.peak, recorder.restart()
    parts = _parts(learner)
    parts["other"] = recorder.held - sum(parts.values())
    examples = sent.on_device(batch.arrays())
    with torch.no_grad():
        carry = model.eval().initial_carry(examples)
        recorder.restart()
        model(carry, examples, measured=False)
    peaks = sent.peak - before, in_update - sum(parts.values())
    works = sent.passes, updating, recorder.restart()
    numbers = sum(p.numel() for p in model.parameters())
    return Trace(parts, *peaks, *works, sent.reduced, sent.gathered, numbers)


def _parts(learner: Learner) -> dict[str, int]:
    """Return the bytes of a learner's tensors. What several parts share counts for the first."""
    model, optimizer, average = learner.model, learner.optimizer, learner.average
    table = model.puzzle_embedding
    named = {
        "puzzle table": [] if table is None else [table.weights, table.local_weights],
        "weights": [*model.parameters(), *model.buffers()],
        "optimizer": tree_leaves([*optimizer.state.values()]) if optimizer else [],
        "EMA": [*average.tensors().values()] if average else [],
        "gradients": [learner.bucket.flat],
        "carry": [*learner.carry.tensors().values()],
    }
    seen, parts = set[int](), {}
    for name, tensors in named.items():
        sizes = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
        parts[name] = sum(size for key, size in sizes.items() if key not in seen)
        seen |= sizes.keys()
    return parts


def _fused_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
