"""Which class stands behind `arch.name`. A checkpoint's folder never has a say in it."""

from collections.abc import Callable
from typing import Any

from torch import nn

from models.act import ACT, HaltingRule
from models.config import ArchConfig, DataFacts
from models.heads.build import HeadReader, QHead, build_further_heads, build_token_head
from models.hrm import HRMInner
from models.losses import ACTLossHead
from models.recurrence import BuildHeads, Recurrence
from models.transformer import TransformerInner
from models.trm import TRMInner, TRMSingleInner
from runtime.device import resolve_dtype
from runtime.schema import Schema

_RECURRENCES: dict[str, Callable[[Any, DataFacts, BuildHeads], Recurrence]] = {
    "hrm": HRMInner,
    "trm": TRMInner,
    "trm_singlez": TRMSingleInner,
    "transformer": TransformerInner,
}


def arch_on_device(
    arch: ArchConfig, device_type: str, overrides: Schema | None = None
) -> ArchConfig:
    """Return the architecture to compute with on a device, which differs in nothing that has
    weights.

    Args:
        arch: as recorded or asked for.
        device_type: `cpu` or `cuda`.
        overrides: settings to replace; those that are None stay.
    Raises:
        ConfigError: the device does not compute in the forward dtype.
    """
    changes = {} if overrides is None else overrides.model_dump(exclude_none=True)
    arch = arch.model_copy(update=changes)
    forward_dtype = resolve_dtype(arch.forward_dtype, device_type)
    return arch.model_copy(update={"forward_dtype": forward_dtype})


def build_model(config: ArchConfig, facts: DataFacts) -> ACTLossHead:
    """Build the model that `config.name` names, with its heads, ACT and losses, with fresh weights,
    on the CPU; its state dict has the published keys (`model.inner...`).

    Raises:
        ValueError: a head needs what the data set does not have.
    """

    def build_heads(embedding: nn.Module) -> dict[str, nn.Module]:
        heads: dict[str, nn.Module] = {"lm": build_token_head(config, facts, embedding)}
        if config.heads.q is not None:
            heads["q"] = QHead(config.hidden_size, config.heads.q)
        return heads | build_further_heads(config.heads, config.hidden_size, facts)

    inner = _RECURRENCES[config.name](config, facts, build_heads)
    learns_continue = not config.no_ACT_continue and config.heads.q is not None
    act = ACT(
        inner,
        HeadReader(inner, config.heads),
        halt_max_steps=config.halt_max_steps,
        learns_continue=learns_continue,
        rule=_halting_rule(config, learns_continue=learns_continue),
    )
    return ACTLossHead(act, config.loss, config.heads)


def _halting_rule(config: ArchConfig, *, learns_continue: bool) -> HaltingRule | None:
    q = config.heads.q
    if q is None:
        return None if config.heads.halt is None else HaltingRule(compares=False)
    compares = learns_continue if q.rule is None else q.rule == "continue"
    return HaltingRule(compares, q.halt_min_steps, q.exploration_bonus)
