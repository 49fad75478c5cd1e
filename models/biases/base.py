"""The registry of attention biases. Imports no torch.

Each of ours is a folder beside this file: `config.py` registers it and checks the data, `model.py`
has its module.
"""

from typing import TYPE_CHECKING

from runtime.registry import NONE, Registry
from runtime.schema import Schema

if TYPE_CHECKING:
    from torch import nn

    from models.config import DataFacts


class AttentionBiasConfig(Schema):
    """The schema of an attention bias. It has no settings."""

    @classmethod
    def require_data(cls, facts: "DataFacts") -> None:
        """Raise ValueError if the data do not fit; the caller adds the key in front."""


ATTENTION_BIASES = Registry("attention bias", AttentionBiasConfig)
"""A name loads a module class that takes the numbers of attention heads (N), of cells (S) and of
positions in front of them (P). Each block has its own module. Called with a dtype, the module
returns the bias to add to the scores, [N, T, T] with T = P + S.
"""


def build_bias(bias: str, num_heads: int, seq_len: int, num_prefix: int) -> "nn.Module | None":
    """Build the module of one block for a value of `arch.attention_bias`; None for "none"."""
    return None if bias == NONE else ATTENTION_BIASES.load(bias)(num_heads, seq_len, num_prefix)
