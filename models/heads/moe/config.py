"""Settings of the token head of experts."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from models.heads.config import TOKEN_HEADS, HeadLoss, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import Count, Size, StrictBool


class MoEHeadConfig(TokenHeadConfig):
    """Experts and a router that weights them cell by cell (Switch transformers, arXiv:2101.03961).

    When it helps: it is meant for sets of mixed tasks. On Sudoku it was no better than one matrix
    (docs/heads.md). All experts are computed, so that it saves no time.
    """

    further_losses: ClassVar[dict[str, HeadLoss]] = {
        "balance": HeadLoss(0.01, "load balance of a mixture of experts")
    }

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


_load = imported("models.heads.moe.model", "MixtureOfExperts")
TOKEN_HEADS.add("moe", MoEHeadConfig, _load, place=5)
