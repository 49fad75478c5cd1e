"""What the schemas of heads share, and the registries of heads.

Each of ours is a file beside this one, and its schema stands in `schemas.py`. A plug-in's may lie
anywhere. Nothing here imports torch: a configuration is checked before torch is loaded. A
registered auxiliary head is a field of `HeadsConfig`; its loss has a weight in `models.config`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from pydantic.fields import FieldInfo

from runtime.registry import Registry
from runtime.schema import NonNegativeFloat, Schema, StrictBool

if TYPE_CHECKING:
    from models.config import RecurrenceConfig


class HeadLoss(NamedTuple):
    """The default of `arch.loss.weights.NAME`, and what the loss is."""

    weight: float
    text: str


class TokenHeadConfig(Schema):
    """What every token head has in front of its projection.

    Attributes:
        by_softmax: whether its outputs are log probabilities under softmax.
        further_losses: its losses beside that of the tokens, by name.
    """

    by_softmax: ClassVar[bool] = False
    further_losses: ClassVar[dict[str, HeadLoss]] = {}

    if TYPE_CHECKING:
        name: Any

    norm: Literal["none", "layer", "rms"] = "none"
    """norm of the states in front of the projection"""
    dropout: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.0
    """share of the states that is set to 0 in training"""

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError where the architecture does not fit; `heads.lm.` is put in front."""
        if self.by_softmax and arch.loss.loss_type.startswith("stablemax"):
            raise ValueError(
                f"name={self.name} gives probabilities by softmax: it needs "
                f"loss.loss_type=softmax_cross_entropy (loss=act_softmax)"
            )

    def require_tokens(self, vocab_size: int) -> None:
        """Raise ValueError, which names a setting, where it needs more tokens than these."""


TOKEN_HEADS = Registry("token head", TokenHeadConfig, "linear", "heads", "arch.heads", "lm")
"""Behind each name stands a function that takes the architecture's configuration, the number of
tokens and the token embedding, and returns a `models.heads.base.TokenHead`.
"""


class QHeadConfig(Schema):
    init_bias: Annotated[float, Field(strict=True)] = -5.0
    """start of the bias"""
    init_std: NonNegativeFloat = 0.0
    """standard deviation of the weight's start"""


class AuxiliaryHeadConfig(Schema):
    """A head beside tokens and Q. A head with settings of its own subclasses it, without `name`."""

    detach: StrictBool = False
    """keep the head's gradient from the trunk"""

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError if the architecture does not fit; the caller puts the key in front."""

    @property
    def reads_field(self) -> str | None:
        """The field of the data set that it needs; None: it needs none."""
        return None

    @classmethod
    def reported(cls, figures: Mapping[str, float]) -> dict[str, float]:
        """Return means over all rows as they are reported; a head may fold several of its own."""
        return dict(figures)


AUXILIARY_HEADS = Registry("head", AuxiliaryHeadConfig, None, "heads", "arch.heads", "NAME")
"""Behind each name stands a `models.heads.auxiliary.AuxiliaryHead`."""


class HeadsConfig(Schema):
    """What the model predicts. The auxiliary heads are left out unless they are named."""

    lm: Annotated[Any, TOKEN_HEADS] = Field(default_factory=lambda: TOKEN_HEADS["linear"].schema())
    """the token of each cell"""
    q: QHeadConfig | None = QHeadConfig()
    """halt and continue; null: every puzzle takes all its ACT steps, unless `halt` ends it"""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        return AUXILIARY_HEADS.optional_fields()

    @property
    def auxiliary(self) -> dict[str, Any]:
        """The auxiliary heads that are asked for, by name."""
        return AUXILIARY_HEADS.chosen(self)

    @property
    def fields(self) -> dict[str, str]:
        """Fields of the data set that the heads need, by head."""
        read = {name: head.reads_field for name, head in self.auxiliary.items()}
        return {name: field for name, field in read.items() if field is not None}
