"""Settings of the published token head."""

from typing import Literal

from models.heads.config import TOKEN_HEADS, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import StrictBool


class LinearHeadConfig(TokenHeadConfig):
    """A matrix of its own: the published head (arXiv:2506.21734).

    When it helps: always; no other head was more often right on our puzzles (docs/heads.md). It is
    the only one for architectures with a state for each digit, where all digits share one row.
    """

    name: Literal["linear"] = "linear"
    """a matrix of its own (published)"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


TOKEN_HEADS.add("linear", LinearHeadConfig, imported("models.heads.linear.model", "build"), place=0)
