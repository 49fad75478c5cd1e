"""Settings of the Hierarchical Reasoning Model."""

from typing import Literal

from models.config import ARCHITECTURES, RecurrenceConfig
from runtime.registry import imported
from runtime.schema import NumLayers, Size


class HRMConfig(RecurrenceConfig):
    """Hierarchical Reasoning Model, arXiv:2506.21734."""

    name: Literal["hrm"] = "hrm"
    """Hierarchical Reasoning Model"""

    H_cycles: Size = 2
    """updates of z_H in an ACT step"""
    L_cycles: Size = 2
    """updates of z_L before each update of z_H"""
    H_layers: NumLayers = 4
    """blocks of the H level"""
    L_layers: NumLayers = 4
    """blocks of the L level"""
    gradient: Literal["last_step", "last_cycle"] = "last_step"
    """part with gradients: the last update of each level, or the whole last cycle as in TRM"""


ARCHITECTURES.add("hrm", HRMConfig, imported("models.hrm.model", "HRMInner"))
