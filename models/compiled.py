"""A model whose steps run compiled code."""

from collections.abc import Callable

import torch

from models.act import ACTLossHead, LossOutput
from models.config import ArchConfig, DataFacts
from models.recurrence import Block
from models.registry import build_model
from runtime.compiler import prepare_compiler
from runtime.schema import CompiledForm


def compiled_forward(model: ACTLossHead, form: CompiledForm) -> Callable[..., LossOutput]:
    """Return what runs a step of `model`: itself, or its compiled form.

    With `block` all blocks of the same shape share code, which is compiled when the first of them
    is called: once with gradients and once without, and again for each other batch size.
    """
    if not form:
        return model
    prepare_compiler()
    if form == "model":
        return torch.compile(model, dynamic=False)
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=False)
    return model


def forward_operations(arch: ArchConfig, facts: DataFacts) -> int:
    """Count the operations of the products in one ACT step of one example in training, without
    those of its backward pass, and without computing anything.
    """
    from torch.utils.flop_counter import FlopCounterMode  # Takes a second.

    # Another kernel may not know this device.
    arch = arch.model_copy(update={"attention": "auto"})
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = build_model(arch, facts).train()
        model.prepare(1)
        cells = torch.zeros(1, facts.seq_len, dtype=torch.int32)
        examples = {"inputs": cells, "labels": cells, "puzzle_identifiers": cells[:, 0]}
        for name, (_, channels) in facts.fields.items():
            examples[name] = cells.unsqueeze(-1).expand(1, -1, channels) if channels else cells
        model(model.initial_carry(examples), examples)
    return counter.get_total_flops()
