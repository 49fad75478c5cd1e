"""Count the floating point operations of a model's linear layers and convolutions for one example.

Nothing is computed: the model is on the `meta` device. A multiply-add is 2 operations. Products of
two matrices and convolutions are counted as torch runs them, forward and backward; those of
attention are not, because they multiply batches of matrices.
"""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from models.architectures import ArchConfig
from models.config import DataFacts
from models.registry import build_model
from models.technique import Depth

aten = torch.ops.aten
_COUNTED = (aten.mm, aten.addmm, aten.convolution, aten.convolution_backward)


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
    """Count the operations of an ACT step in evaluation, without the heads, except those that the
    step itself reads to decide what it keeps.
    """
    counter = _Counter(arch, facts)
    counter.model.eval()
    return counter.count(lambda model, carry, examples: model(carry, examples, measured=False))


class _Counter:
    """A model in training mode on the `meta` device, and the operations of its products."""

    def __init__(self, arch: ArchConfig, facts: DataFacts) -> None:
        # Attention kernels may refuse the `meta` device; their own products are not counted.
        arch = arch.model_copy(update={"attention": "auto"})
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
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            run(self.model, self.model.initial_carry(self._examples), self._examples)
        counts = counter.get_flop_counts()["Global"]
        return sum(counts.get(operation, 0) for operation in _COUNTED)
