"""Which class stands behind `arch.name`. A checkpoint's folder never has a say in it."""

from collections.abc import Callable
from typing import Any

from models.act import ACT
from models.config import ArchConfig, DataFacts
from models.hrm import HRMInner
from models.losses import ACTLossHead
from models.recurrence import Recurrence
from models.transformer import TransformerInner
from models.trm import TRMInner, TRMSingleInner

_RECURRENCES: dict[str, Callable[[Any, DataFacts], Recurrence]] = {
    "hrm": HRMInner,
    "trm": TRMInner,
    "trm_singlez": TRMSingleInner,
    "transformer": TransformerInner,
}


def build_model(config: ArchConfig, facts: DataFacts) -> ACTLossHead:
    """Build the model that `config.name` names, with ACT and its loss, with fresh weights, on the
    CPU; its state dict has the published keys (`model.inner...`).
    """
    act = ACT(
        _RECURRENCES[config.name](config, facts),
        halt_max_steps=config.halt_max_steps,
        learns_continue=not config.no_ACT_continue,
    )
    return ACTLossHead(act, config.loss.loss_type)
