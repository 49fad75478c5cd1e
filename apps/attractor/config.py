"""Settings of TRM with a fixed point in place of its inner updates."""

from typing import Literal

from models.config import ARCHITECTURES
from models.trm.config import TRMConfig
from runtime.registry import imported
from runtime.schema import NonNegativeFloat, NumLayers, PositiveFloat, Size


class AttractorConfig(TRMConfig):
    """TRM whose z_L is solved for, not updated L_cycles times (arXiv:2605.12466)."""

    name: Literal["attractor"] = "attractor"
    """TRM whose z_L is a fixed point of its update, found by Anderson acceleration"""

    L_cycles: Size = 8
    """updates by the solver before each update of z_H, at most"""
    L_layers: NumLayers = 8
    """blocks of the network"""
    last_cycles: Size = 2
    """plain updates of z_L after the solver; they alone have gradients"""
    history: Size = 5
    """earlier points that the solver mixes; 1: plain updates"""
    tolerance: NonNegativeFloat = 1e-3
    """a puzzle's solver ends when its update moves z_L by less than this share"""
    ridge: PositiveFloat = 1e-4
    """added to the squared residuals in the solver's equations"""


ARCHITECTURES.add("attractor", AttractorConfig, imported("apps.attractor.model", "AttractorInner"))
