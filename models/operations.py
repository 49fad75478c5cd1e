"""Count the floating point operations of a model's linear layers for one example.

Nothing is computed: the model is on the `meta` device. A multiply-add is 2 operations. Products of
two matrices are counted as torch runs them, forward and backward; those of attention are not,
because they multiply batches of matrices.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.architectures import ArchConfig
from models.config import DataFacts
from models.registry import build_model
from models.technique import Depth


def train_step_flop(arch: ArchConfig, facts: DataFacts, depth: Depth | None = None) -> int:
    """Count the operations of a training step: forward, backward and the look-ahead for the target
    of q_continue. If only some rows look ahead, the look-ahead counts in proportion. `depth` is the
    step's, if a technique sets it; None: all cycles.
    """
    counter = _Counter(arch, facts)
    counter.model.model.inner.depth = depth
    total = counter.count(lambda model, carry, examples: model(carry, examples).loss.backward())
    if (every := arch.rows_per_target) > 1:
        look_ahead = counter.count(
            lambda model, carry, examples: model.model.target_of_continue(
                carry.inner, examples, carry.halted
            )
        )
        total -= look_ahead * (every - 1) // every
    return total


@torch.no_grad()
def act_step_flop(arch: ArchConfig, facts: DataFacts) -> int:
    """Count the operations of an ACT step in evaluation, without the heads."""
    counter = _Counter(arch, facts)
    counter.model.eval()
    return counter.count(lambda model, carry, examples: model(carry, examples, measured=False))


class _Counter(TorchDispatchMode):
    """A model in training mode on the `meta` device, and the operations of its products."""

    def __init__(self, arch: ArchConfig, facts: DataFacts) -> None:
        super().__init__()
        # Attention kernels may refuse the `meta` device; their own products are not counted.
        arch = arch.model_copy(update={"attention": "auto"})
        self._total = 0
        with torch.device("meta"):
            self.model = build_model(arch, facts).train()
            self.model.prepare(1)
            cells = torch.zeros(1, facts.seq_len, dtype=torch.int32)
            ids = torch.zeros(1, dtype=torch.int32)
        self._examples = {"inputs": cells, "labels": cells, "puzzle_identifiers": ids}
        for name, (_, channels) in facts.fields.items():
            wide = cells.unsqueeze(-1).expand(1, -1, channels) if channels else cells
            self._examples[name] = wide

    def count(self, run: Callable[..., object]) -> int:
        """Return the operations of `run(model, initial carry, examples)`."""
        self._total = 0
        with torch.device("meta"), self:
            run(self.model, self.model.initial_carry(self._examples), self._examples)
        return self._total

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self._total += 2 * left.numel() * right.shape[1]
        return func(*args, **(kwargs or {}))
