"""Trace the trainer's own step on fake tensors, which have shapes but no memory."""

import sys
import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dataset.format.schema import PuzzleDatasetMetadata
from models import layers
from models.registry import arch_on_device
from puzzle_dataset import Batch, PuzzleDataset
from runtime.ranks import Ranks
from training import step
from training.config.schema import TrainConfig
from training.optim import adam_atan2
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


class Trace(NamedTuple):
    """The costs of a training step of one rank, and of one ACT step in an evaluation.

    An array is float64 [3, kernels]: FLOP (0 unless it is a product), bytes that are read or
    written, and bytes in memory beside `parts`. Each operation is a kernel.
    """

    parts: dict[str, float]  # Bytes that stay in memory between steps.
    passes: np.ndarray  # Forward and backward.
    update: np.ndarray
    evaluation: np.ndarray
    parameters: float  # Numbers in the weights, without the puzzle table.


class Recorder(TorchDispatchMode):
    """Follows all tensors and operations inside it. `held`: bytes of the tensors that exist."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._kernels: list[tuple[int, int, int]] = []

    def taken(self) -> np.ndarray:
        """Return the kernels since the last call, as in `Trace`, with all bytes in memory."""
        kernels, self._kernels = self._kernels, []
        return np.array(kernels, float).T

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        taken, made = (
            {x.untyped_storage() for x in tree_leaves(each) if isinstance(x, Tensor)}
            for each in ((args, kwargs), out)
        )
        for storage in made.difference(self._known):
            self._known.add(storage)
            self._hold(storage.nbytes())
            weakref.finalize(storage, self._hold, -storage.nbytes())
        if "empty" in func.__name__ or (made <= taken and not func._schema.is_mutable):
            return out  # Nothing is read or written.
        tensors = (x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor))
        sizes = [min(x.numel() * x.itemsize, x.untyped_storage().nbytes()) for x in tensors]
        packet = func._overloadpacket
        moved = sum(sizes) if packet not in _OF_ROWS else 2 * (sum(sizes) - max(sizes))
        counter = _COUNTERS.get(packet)
        flop = counter(*args, **kwargs, out_val=out) if counter else 0
        self._kernels.append((flop, moved, self.held))
        return out

    def _hold(self, size: int) -> None:
        self.held += size


def trace(
    config: TrainConfig, data: PuzzleDatasetMetadata, kind: str | None, rows: int, device: str
) -> Trace:
    """Trace a step of one rank with `rows` rows, in one pass. Nothing is compiled.

    Args:
        device: cpu or cuda, whose number format and attention to use. cuda stands for any GPU and
            computes attention in one kernel, unless attention=math.
    """
    arch, attention = arch_on_device(config.arch, device), layers._by_products
    if device == "cuda" and arch.attention != "math":
        arch = arch.model_copy(update={"attention": "auto"})
        attention = scaled_dot_product_attention
    own = {"arch": arch, "global_batch_size": rows, "micro_batch_size": None, "reduction": "fast"}
    own |= {"compile": False, "diagnose_interval": None}
    own["optimizer"] = config.optimizer.model_copy(update={"kernel": "ours"})
    fields = {name: data.fields[name].channels for name in config.arch.fields.values()}
    opened = cast(PuzzleDataset, SimpleNamespace(metadata=data, fields=[*fields], kind=kind))
    cells = np.zeros((rows, data.seq_len), np.int32)
    more = {name: np.stack([cells] * n, -1) if n else cells for name, n in fields.items()}
    batch = Batch(cells, cells, np.zeros(rows, np.int32), more)
    with (
        torch.random.fork_rng([]),
        patch.object(layers, "_by_products", attention),
        # Fake tensors need no room, and cannot be moved.
        patch.object(step, "require_room"),
        patch.object(torch.nn.Module, "to", lambda module, device: module),
        patch.object(adam_atan2, "MIN_FOR_KERNEL", sys.maxsize),
        FakeTensorMode(allow_non_fake_inputs=True),
        Recorder() as recorder,
    ):
        learner = step.Learner(config.model_copy(update=own), arch, opened, Ranks("cpu"))
        return _traced_step(learner, batch, recorder)


def _traced_step(learner: step.Learner, batch: Batch, recorder: Recorder) -> Trace:
    model, make_update, passes = learner.model.train(), learner._update, []

    def update_after_passes(*args: Any) -> Any:
        passes.append(recorder.taken())
        return make_update(*args)

    recorder.taken()
    before = recorder.held
    with patch.object(learner, "_update", update_after_passes):
        learner.step(1, batch, StopSignals())
    update, table = recorder.taken(), model.puzzle_embedding
    passes[0][2] -= before
    update[2] -= recorder.held
    named = {
        "puzzle table": [table.weights, table.local_weights] if table else [],
        "weights": [*model.parameters(), *model.buffers()],
        "optimizer": tree_leaves([*learner.optimizer.state.values()]) if learner.optimizer else [],
        "EMA": [*learner.average.tensors().values()] if learner.average else [],
        "gradients": [learner.bucket.flat],
        "carry": [*learner.carry.tensors().values()],
    }
    seen, parts = set[int](), {}
    for name, tensors in named.items():  # What several parts share counts for the first.
        sizes = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
        parts[name] = sum(size for key, size in sizes.items() if key not in seen)
        seen |= sizes.keys()
    examples = learner.ranks.on_device(batch.arrays())
    with torch.no_grad():
        carry = model.eval().initial_carry(examples)
        recorder.taken()
        model(carry, examples, measured=False)
    numbers = sum(p.numel() for p in model.parameters())
    return Trace(parts, passes[0], update, recorder.taken(), numbers)
