"""Build the model that a configuration names. A checkpoint's files never choose the class."""

from collections.abc import Callable

import torch

from models.act import ACT, ACTLossHead, LossOutput
from models.architectures import ArchConfig
from models.config import ARCHITECTURES, DataFacts
from models.recurrence import Block, CycledRecurrence
from runtime.compiler import prepare_compiler
from runtime.device import resolve_dtype
from runtime.errors import ConfigError
from runtime.schema import CompiledForm, Schema


def arch_on_device(
    arch: ArchConfig, device_type: str, overrides: Schema | None = None
) -> ArchConfig:
    """Return the architecture to use on a device (`cpu`, `cuda`); the same weights fit it.

    Args:
        overrides: settings to replace; None keeps the architecture's value.
    Raises:
        ConfigError: the device cannot compute in the forward dtype.
    """
    if overrides is not None:
        given = overrides.model_dump(exclude_none=True)
        if (steps := given.pop("halt_max_steps", None)) is not None:
            arch = arch.with_depth(steps)
        arch = arch.model_copy(update=given)
    forward_dtype = resolve_dtype(arch.forward_dtype, device_type)
    return arch.model_copy(update={"forward_dtype": forward_dtype})


def build_model(config: ArchConfig, facts: DataFacts) -> ACTLossHead:
    """Build the model with its heads, ACT loop and losses, with fresh weights on the CPU. Its state
    dict has the published keys (`model.inner...`).

    Raises:
        ConfigError: the data do not fit the architecture, or the model does not fit a technique.
        ValueError: a head needs a field that the data set does not declare.
    """
    config.require_data(facts)
    inner = ARCHITECTURES.load(config.name)(config, facts)
    if config.techniques.acting("depth_at") and not isinstance(inner, CycledRecurrence):
        advice = "leave out the technique that sets its depth"
        raise ConfigError(f"{type(inner).__name__} is no CycledRecurrence; {advice}")
    return ACTLossHead((inner.act_type or ACT)(inner, config), config.loss)


def compiled_forward(model: ACTLossHead, form: CompiledForm) -> Callable[..., LossOutput]:
    """Return `model`, or its compiled form.

    With `block`, all blocks of the same shape share one compiled code. It is compiled at the first
    call: once with gradients, once without, and again for each further batch size.
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
