"""The registry of attention biases. Imports no torch.

Each of ours is a folder beside this file: `config.py` registers it and says for which data it is,
and `model.py` has its module. A plug-in's may lie anywhere.
"""

from typing import TYPE_CHECKING

from runtime.errors import ConfigError
from runtime.registry import NONE, Registry
from runtime.schema import Schema

if TYPE_CHECKING:
    from torch import nn

    from models.config import DataFacts


class AttentionBiasConfig(Schema):
    """A bias of attention; it has no settings."""

    @classmethod
    def require_data(cls, facts: "DataFacts") -> None:
        """Raise ValueError if the data do not fit; the caller puts the key in front."""


ATTENTION_BIASES = Registry("attention bias", AttentionBiasConfig)
"""Behind each name stands a class of modules. It takes the numbers of attention heads (N), of cells
(S) and of positions in front of them (P). Each block has a module of its own. At each attention it
is called with a dtype, and returns what is added to the scores, [N, T, T] with T = P + S.
"""


def require_data(bias: str, facts: "DataFacts") -> None:
    """Raise ConfigError if the data do not fit a value of `arch.attention_bias`."""
    if bias != NONE:
        try:
            ATTENTION_BIASES[bias].schema.require_data(facts)
        except ValueError as error:
            raise ConfigError(f"arch.attention_bias={bias}: {error}") from None


def build_bias(bias: str, num_heads: int, seq_len: int, num_prefix: int) -> "nn.Module | None":
    """Build what a value of `arch.attention_bias` names, for each block anew."""
    return None if bias == NONE else ATTENTION_BIASES.load(bias)(num_heads, seq_len, num_prefix)
