"""Settings of the token head that shares the embedding's matrix."""

from typing import Literal

from models.heads.config import TOKEN_HEADS, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import StrictBool


class TiedHeadConfig(TokenHeadConfig):
    """The token embedding's own matrix at both ends (arXiv:1608.05859).

    When it helps: large vocabularies, of whose two matrices it saves one. With a dozen tokens there
    is nothing to save.
    """

    name: Literal["tied"] = "tied"
    """the token embedding's matrix"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


TOKEN_HEADS.add("tied", TiedHeadConfig, imported("models.heads.tied.model", "Tied"), place=1)
