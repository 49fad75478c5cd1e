"""What is registered of a bias of attention. Imports no torch.

A bias is a folder beside this file: `config.py` registers it and says for which data it is, and
`model.py` has its module.
"""

from typing import TYPE_CHECKING

from runtime.registry import NONE, Registry
from runtime.schema import Schema

if TYPE_CHECKING:
    from torch import nn

    from models.config import DataFacts


class AttentionBiasConfig(Schema):
    """A bias of attention; it has no settings."""

    @classmethod
    def require_data(cls, facts: "DataFacts") -> None:
        """Raise ConfigError where the data do not fit."""


ATTENTION_BIASES = Registry("attention bias", AttentionBiasConfig)
"""Behind each name stands a class of modules. It takes the numbers of attention heads (N), of cells
(S) and of positions in front of them (P); called with a dtype, a module gives what is added to the
scores, [N, T, T] with T = P + S.
"""


def require_data(bias: str, facts: "DataFacts") -> None:
    """Raise ConfigError where the data do not fit a value of `arch.attention_bias`."""
    if bias != NONE:
        schema = ATTENTION_BIASES[bias].schema
        assert issubclass(schema, AttentionBiasConfig)
        schema.require_data(facts)


def build_bias(bias: str, num_heads: int, seq_len: int, num_prefix: int) -> "nn.Module | None":
    """Build what a value of `arch.attention_bias` names, for each block anew.

    Raises:
        ConfigError: the data do not fit.
    """
    return None if bias == NONE else ATTENTION_BIASES.load(bias)(num_heads, seq_len, num_prefix)
