"""Settings of the token head of clusters."""

from typing import ClassVar, Literal

from models.heads.config import TOKEN_HEADS, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import Size


class HierarchicalHeadConfig(TokenHeadConfig):
    """First a cluster of tokens, then a token in it (class-based softmax, arXiv:cs/0108006).

    When it helps: large vocabularies of which few tokens are asked for at a time: these need the
    outputs of their own clusters alone. All logits together cost a little more than one matrix.
    """

    by_softmax: ClassVar[bool] = True

    name: Literal["hierarchical"] = "hierarchical"
    """a cluster of tokens, then a token in it; needs loss=act_softmax"""
    num_clusters: Size | None = None
    """number of clusters; null: the square root of the vocabulary"""

    def require_tokens(self, vocab_size: int) -> None:
        if (self.num_clusters or 1) > vocab_size:
            raise ValueError(f"num_clusters={self.num_clusters}")


_load = imported("models.heads.hierarchical.model", "Hierarchical")
TOKEN_HEADS.add("hierarchical", HierarchicalHeadConfig, _load, place=6)
