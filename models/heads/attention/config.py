"""Settings of the head that says which cells the answer changes."""

from models.heads.config import AUXILIARY_HEADS, AuxiliaryHeadConfig
from runtime.registry import imported


class PositionAttentionHeadConfig(AuxiliaryHeadConfig):
    """Which cells will the answer change? A distribution over the cells; ours.

    When it helps: where an answer leaves most cells as they are, as in mazes, and one wants to know
    which cells the model is about to change: on mazes it named 99 % of them (docs/heads.md). Early
    in the training it costs the tokens accuracy, unless it has `detach: true`.
    """


AUXILIARY_HEADS.add(
    "attention",
    PositionAttentionHeadConfig,
    imported("models.heads.attention.model", "PositionAttentionHead"),
    "which cells change?",
    place=1,
)
