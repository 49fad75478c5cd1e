"""Settings of the head that says when to stop."""

from models.heads.config import AUXILIARY_HEADS, AuxiliaryHeadConfig
from runtime.registry import imported


class HaltHeadConfig(AuxiliaryHeadConfig):
    """Stop here? Two classes, go on and halt, by whether the whole answer is right; ours.

    When it helps: in a model without Q (`arch.heads.q=null`), whose puzzles it then halts, as TRM's
    single q_halt does (arXiv:2510.04871). Beside Q it repeats what Q says.
    """


AUXILIARY_HEADS.add(
    "halt",
    HaltHeadConfig,
    imported("models.heads.halt.model", "HaltHead"),
    "stop here? Without q it decides",
    place=3,
)
