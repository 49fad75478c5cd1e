"""Settings of the Tiny Recursive Model and of its variant with one latent."""

from typing import Literal

from models.config import ARCHITECTURES, RecurrenceConfig
from runtime.registry import imported
from runtime.schema import NumLayers, Size, SizeOrZero, StrictBool


class TRMConfig(RecurrenceConfig):
    """Tiny Recursive Model, arXiv:2510.04871; `trm_singlez` is its variant with a single latent.

    Without a puzzle embedding `puzzle_emb_len` is ignored.
    """

    name: Literal["trm", "trm_singlez"] = "trm"
    """Tiny Recursive Model; trm_singlez has one latent for answer and reasoning"""

    H_cycles: Size = 3
    """updates of z_H in an ACT step, the last of them with gradients"""
    L_cycles: Size = 6
    """updates of z_L before each update of z_H"""
    H_layers: SizeOrZero = 0
    """ignored, but accepted as published: there is only one network"""
    L_layers: NumLayers = 2
    """blocks of the network"""
    puzzle_emb_len: SizeOrZero = 16
    """positions of the puzzle embedding in front of the cells (P); 0: as many as its width needs"""
    no_ACT_continue: StrictBool = True
    """false: learn q_continue and halt as HRM does"""


ARCHITECTURES.add("trm", TRMConfig, imported("models.trm.model", "TRMInner"))
ARCHITECTURES.add("trm_singlez", TRMConfig, imported("models.trm.model", "TRMSingleInner"))
