"""A model whose steps run compiled code."""

from collections.abc import Callable

import torch

from models.act import ACTLossHead, LossOutput
from models.recurrence import Block
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
