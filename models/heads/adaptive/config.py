"""Settings of adaptive softmax."""

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from models.heads.config import TOKEN_HEADS, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import Count

if TYPE_CHECKING:
    from models.config import RecurrenceConfig


class AdaptiveHeadConfig(TokenHeadConfig):
    """Adaptive softmax (arXiv:1609.04309): frequent tokens first, rare ones in ever thinner tails.

    When it helps: vocabularies of many thousands, sorted by falling frequency. With a dozen tokens
    it has more parameters than one matrix, and is no better.
    """

    by_softmax: ClassVar[bool] = True

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

    def require(self, arch: "RecurrenceConfig") -> None:
        super().require(arch)
        tails = len(self.cutoffs or [0])
        if arch.hidden_size < self.div_value**tails:
            raise ValueError(
                f"div_value={self.div_value:g}: with hidden_size={arch.hidden_size} the last of "
                f"{tails} tails would have no width; lower it, or give fewer cutoffs"
            )

    def require_tokens(self, vocab_size: int) -> None:
        if (self.cutoffs or [0])[-1] >= vocab_size:
            raise ValueError(f"cutoffs={self.cutoffs}")


_load = imported("models.heads.adaptive.model", "Adaptive")
TOKEN_HEADS.add("adaptive", AdaptiveHeadConfig, _load, place=3)
