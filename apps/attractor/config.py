"""Settings of TRM with a fixed point in place of its inner updates."""

from typing import Literal

from models.config import ARCHITECTURES, RecurrenceConfig
from runtime.registry import imported
from runtime.schema import NonNegativeFloat, NumLayers, PositiveFloat, Size, SizeOrZero, StrictBool


class AttractorConfig(RecurrenceConfig):
    """TRM whose z_L is solved for, not updated L_cycles times (arXiv:2605.12466)."""

    name: Literal["attractor"] = "attractor"
    """TRM whose z_L is a fixed point of its update, found by Anderson acceleration"""

    H_cycles: Size = 3
    """updates of z_H in an ACT step, the last of them with gradients"""
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
    regularization: PositiveFloat = 1e-4
    """added to the squared residuals in the solver's equations"""
    puzzle_emb_len: SizeOrZero = 16
    """positions of the puzzle embedding in front of the cells (P); 0: as many as its width needs"""
    no_ACT_continue: StrictBool = True
    """false: learn q_continue and halt as HRM does"""


ARCHITECTURES.add("attractor", AttractorConfig, imported("apps.attractor.model", "AttractorInner"))
