"""Settings of the baseline without an inner recursion."""

from typing import Literal

from models.config import ARCHITECTURES, RecurrenceConfig
from runtime.registry import imported
from runtime.schema import NumLayers, Size


class TransformerConfig(RecurrenceConfig):
    """A plain transformer under the ACT loop, without an inner recursion."""

    name: Literal["transformer"] = "transformer"
    """plain transformer under the ACT loop"""

    H_cycles: Size = 1
    """ignored, but accepted as published: there are no inner cycles"""
    H_layers: NumLayers = 8
    """blocks"""


ARCHITECTURES.add(
    "transformer", TransformerConfig, imported("models.transformer.model", "TransformerInner")
)
