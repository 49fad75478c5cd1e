"""How many operations a model makes in its matrix products, counted without computing anything."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.carry import Exploration
from models.config import ArchConfig, DataFacts
from models.heads.tokens import Matrix, MixtureOfExperts
from models.layers import CastedLinear
from models.registry import build_model


class Flop(NamedTuple):
    """Floating point operations of the linear layers for one example: of an ACT step in training
    (with its gradients, and the second pass for the target of q_continue) and in evaluation (where
    no head is read).
    """

    train_step: int
    act_step: int


def count_flop(arch: ArchConfig, facts: DataFacts) -> Flop:
    """Count the operations of the linear layers for one example, without computing anything.

    A multiply-add is 2 operations. Backward takes as many as forward for the weight's gradient, and
    as many again where the input needs a gradient.
    """
    # The kernel of the attention's own products, which are not counted, may not know this device.
    arch = arch.model_copy(update={"attention": "auto"})
    total = 0

    def add(weights: int, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        passes = 1 + (1 + inputs[0].requires_grad if output.requires_grad else 0)
        total += 2 * passes * inputs[0].numel() // layer.weight.shape[1] * weights

    with torch.device("meta"):
        model = build_model(arch, facts)
        model.prepare(1)
        cells = torch.zeros(1, facts.seq_len, dtype=torch.int32)
        ids = torch.zeros(1, dtype=torch.int32)
        examples = {"inputs": cells, "labels": cells, "puzzle_identifiers": ids}
        for name, (_, channels) in facts.fields.items():
            examples[name] = cells.unsqueeze(-1).expand(1, -1, channels) if channels else cells
        for layer in model.modules():
            if isinstance(layer, CastedLinear | nn.Linear | Matrix):
                layer.register_forward_hook(partial(add, layer.weight.numel()))
            elif isinstance(layer, MixtureOfExperts):
                # Its experts multiply what its router does.
                layer.router.register_forward_hook(partial(add, layer.experts.numel()))
        model.train()
        model(model.initial_carry(examples), examples)
        train_step, total = total, 0
        if (every := arch.rows_per_target) > 1:
            nobody = Exploration(
                torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int64)
            )
            model(model.initial_carry(examples), examples, nobody)
            train_step, total = (train_step + (every - 1) * total) // every, 0
        model.eval()
        with torch.no_grad():
            model(model.initial_carry(examples), examples, measured=False)
    return Flop(train_step, total)
