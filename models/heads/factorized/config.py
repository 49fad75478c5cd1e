"""Settings of the token head of two thin matrices."""

from typing import Literal

from models.heads.config import TOKEN_HEADS, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import Size, StrictBool


class FactorizedHeadConfig(TokenHeadConfig):
    """Two matrices, D x rank and rank x V, in place of one (ALBERT, arXiv:1909.11942, section 3.1).

    When it helps: large vocabularies, where rank * (D + V) is much less than D * V. Below a rank of
    V some combinations of logits cannot be said.
    """

    name: Literal["factorized"] = "factorized"
    """two thin matrices"""
    rank: Size = 8
    """rank of their product"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


_load = imported("models.heads.factorized.model", "Factorized")
TOKEN_HEADS.add("factorized", FactorizedHeadConfig, _load, place=2)
