"""Schemas of the heads. Imports no torch: a configuration is checked before torch is loaded.

A registered auxiliary head is a field of `HeadsConfig`; its loss has a weight and a limit in
`models.config`.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from runtime.registry import Registry, imported, rebuild_schemas
from runtime.schema import Count, NonNegativeFloat, Schema, Size, StrictBool

if TYPE_CHECKING:
    from models.config import RecurrenceConfig


class TokenHeadConfig(Schema):
    """What every token head has in front of its projection."""

    if TYPE_CHECKING:
        name: Any

    norm: Literal["none", "layer", "rms"] = "none"
    """norm of the states in front of the projection"""
    dropout: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.0
    """share of the states that is set to 0 in training"""


class LinearHeadConfig(TokenHeadConfig):
    name: Literal["linear"] = "linear"
    """a matrix of its own (published)"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class TiedHeadConfig(TokenHeadConfig):
    name: Literal["tied"] = "tied"
    """the token embedding's matrix"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class FactorizedHeadConfig(TokenHeadConfig):
    name: Literal["factorized"] = "factorized"
    """two thin matrices"""
    rank: Size = 8
    """rank of their product"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class AdaptiveHeadConfig(TokenHeadConfig):
    name: Literal["adaptive"] = "adaptive"
    """adaptive softmax; needs loss=act_softmax"""
    cutoffs: Annotated[list[Count], Field(min_length=1)] | None = None
    """first tokens of the tails, ascending; null: one tail, the second half of the vocabulary"""
    div_value: Annotated[float, Field(strict=True, ge=1.0)] = 4.0
    """each tail's width is that of the one before, divided by this"""

    @field_validator("cutoffs")
    @classmethod
    def _ascend(cls, cutoffs: list[int] | None) -> list[int] | None:
        if cutoffs is not None and any(b <= a for a, b in pairwise(cutoffs)):
            raise ValueError(f"{cutoffs} do not ascend")
        return cutoffs


class PuzzleHeadConfig(TokenHeadConfig):
    name: Literal["puzzle"] = "puzzle"
    """a matrix that the puzzle embedding changes; needs puzzle_emb_ndim > 0"""
    rank: Size = 8
    """rank of the change"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class MoEHeadConfig(TokenHeadConfig):
    name: Literal["moe"] = "moe"
    """a mixture of experts"""
    num_experts: Size = 4
    """number of matrices"""
    top_k: Count | None = None
    """experts that each cell uses; null: all"""
    bias: StrictBool = False
    """add a learned bias to the logits"""

    @model_validator(mode="after")
    def _experts_are_there(self) -> Self:
        if self.top_k is not None and self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k} exceeds num_experts={self.num_experts}")
        return self


class HierarchicalHeadConfig(TokenHeadConfig):
    name: Literal["hierarchical"] = "hierarchical"
    """a cluster of tokens, then a token in it; needs loss=act_softmax"""
    num_clusters: Size | None = None
    """number of clusters; null: the square root of the vocabulary"""


TOKEN_HEADS = Registry("token head", TokenHeadConfig, "linear", "heads", "arch.heads", "lm")
"""Behind each name stands a function that takes the architecture's configuration, the number of
tokens and the token embedding, and returns a `models.heads.tokens.TokenHead`.
"""
for _schema in (
    LinearHeadConfig,
    TiedHeadConfig,
    FactorizedHeadConfig,
    AdaptiveHeadConfig,
    PuzzleHeadConfig,
    MoEHeadConfig,
    HierarchicalHeadConfig,
):
    _name = _schema.model_fields["name"].default
    TOKEN_HEADS.add(_name, _schema, imported("models.heads.build", "token_head"))


class QHeadConfig(Schema):
    init_bias: Annotated[float, Field(strict=True)] = -5.0
    """start of the bias"""
    init_std: NonNegativeFloat = 0.0
    """standard deviation of the weight's start"""
    rule: Literal["continue", "zero"] | None = None
    """halt when q_halt > q_continue or > 0; null: zero with no_ACT_continue, else continue"""
    halt_min_steps: Count = 1
    """ACT steps before which no puzzle halts early"""
    exploration_bonus: NonNegativeFloat = 0.0
    """in training added, divided by the root of the steps taken, to what q_halt must exceed"""


class AuxiliaryHeadConfig(Schema):
    """A head beside tokens and Q."""

    detach: StrictBool = False
    """keep the head's gradient from the trunk"""

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError where the architecture does not fit; the key is put in front."""


class FieldHeadConfig(AuxiliaryHeadConfig):
    """A head whose classes are told by a field that the data set declares."""

    field: str
    """name of the field"""


AUXILIARY_HEADS = Registry("head", AuxiliaryHeadConfig, None, "heads", "arch.heads", "NAME")
"""Behind each name stands a `models.heads.auxiliary.AuxiliaryHead`."""
for _name, _schema, _class, _text in (
    ("confidence", AuxiliaryHeadConfig, "ConfidenceHead", "is the token of each cell right?"),
    ("attention", AuxiliaryHeadConfig, "PositionAttentionHead", "which cells change?"),
    ("action", FieldHeadConfig, "FieldHead", "what is done at each cell"),
    ("pixel", FieldHeadConfig, "FieldHead", "colour of each cell"),
    ("halt", AuxiliaryHeadConfig, "HaltHead", "stop here? Without q it decides"),
):
    AUXILIARY_HEADS.add(_name, _schema, imported("models.heads.auxiliary", _class), _text)


class HeadsConfig(Schema):
    """What the model predicts. The auxiliary heads are left out unless they are named."""

    lm: Annotated[TokenHeadConfig, TOKEN_HEADS] = LinearHeadConfig()
    """the token of each cell"""
    q: QHeadConfig | None = QHeadConfig()
    """halt and continue; null: every puzzle takes all its ACT steps, unless `halt` ends it"""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        return AUXILIARY_HEADS.optional_fields()

    @property
    def auxiliary(self) -> dict[str, AuxiliaryHeadConfig]:
        """The auxiliary heads that are asked for, by name."""
        return AUXILIARY_HEADS.chosen(self)

    @property
    def fields(self) -> dict[str, str]:
        """Fields of the data set that the heads need, by head."""
        heads = self.auxiliary.items()
        return {name: head.field for name, head in heads if isinstance(head, FieldHeadConfig)}


rebuild_schemas([HeadsConfig])
