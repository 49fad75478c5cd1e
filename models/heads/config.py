"""The base schemas of heads, and their registries. Imports no torch.

Each of our heads is a file beside this one, with its schema in `schemas.py`. A registered auxiliary
head is a field of `HeadsConfig`, and its loss has a weight in `models.config`.
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
    """The default of `arch.loss.weights.NAME`, and its description."""

    weight: float
    text: str


class TokenHeadConfig(Schema):
    """The base schema of token heads: their norm and dropout in front of the projection.

    Attributes:
        by_softmax: whether its outputs are log probabilities under softmax.
        further_losses: its losses besides the one of the tokens, by name.
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
        """Raise ValueError if the architecture does not fit; the caller adds `heads.lm.`."""
        if self.by_softmax and arch.loss.loss_type.startswith("stablemax"):
            raise ValueError(
                f"name={self.name} gives probabilities by softmax: it needs "
                f"loss.loss_type=softmax_cross_entropy (loss=act_softmax)"
            )

    def require_tokens(self, vocab_size: int) -> None:
        """Raise ValueError, naming the setting, if the head needs more tokens than these."""


TOKEN_HEADS = Registry("token head", TokenHeadConfig, "linear", "heads", "arch.heads", "lm")
"""A name loads a function that takes the architecture's configuration, the number of tokens and the
token embedding, and returns a `models.heads.base.TokenHead`.
"""


class QHeadConfig(Schema):
    init_bias: Annotated[float, Field(strict=True)] = -5.0
    """initial value of the bias"""
    init_std: NonNegativeFloat = 0.0
    """standard deviation of the initial weight"""


class AuxiliaryHeadConfig(Schema):
    """The base schema of auxiliary heads. Subclass it to add settings; it needs no `name`."""

    detach: StrictBool = False
    """true: the head's gradient does not reach the trunk"""

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError if the architecture does not fit; the caller adds the key in front."""

    @property
    def reads_field(self) -> str | None:
        """The field of the data set that the head needs, or None."""
        return None

    @classmethod
    def reported(cls, figures: Mapping[str, float]) -> dict[str, float]:
        """Return an evaluation's metrics for means over all rows. A head may combine its own."""
        return dict(figures)


AUXILIARY_HEADS = Registry("head", AuxiliaryHeadConfig, None, "heads", "arch.heads", "NAME")
"""A name loads a `models.heads.auxiliary.AuxiliaryHead`."""


class HeadsConfig(Schema):
    """The heads of a model. Auxiliary heads are left out unless they are named."""

    lm: Annotated[Any, TOKEN_HEADS] = Field(default_factory=lambda: TOKEN_HEADS["linear"].schema())
    """the token of each cell"""
    q: QHeadConfig | None = QHeadConfig()
    """halting; null: every puzzle takes all its ACT steps, unless a `halt` head stops it"""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        return AUXILIARY_HEADS.optional_fields()

    @property
    def auxiliary(self) -> dict[str, Any]:
        """The chosen auxiliary heads by name."""
        return AUXILIARY_HEADS.chosen(self)

    @property
    def fields(self) -> dict[str, str]:
        """Fields of the data set that the heads need, by name of the head."""
        read = {name: head.reads_field for name, head in self.auxiliary.items()}
        return {name: field for name, field in read.items() if field is not None}
