"""Settings of the Hierarchical Reasoning Model."""

from typing import Any, Literal

from models.config import ARCHITECTURES, RecurrenceConfig
from models.trm.config import TRMConfig
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
    """what has gradients: the last update of each level, or the whole last cycle, as in TRM"""

    @classmethod
    def in_present_terms(cls, arch: dict[str, Any]) -> dict[str, Any]:
        """Read an HRM with one stack for both levels: with `gradient=last_cycle` that is TRM."""
        if not isinstance(arch.get("shared_levels"), bool):
            return arch
        arch = dict(arch)
        if not arch.pop("shared_levels"):
            return arch
        if arch.pop("gradient", "last_step") != "last_cycle":
            raise ValueError(
                "shared_levels=true with gradient=last_step: one stack for both levels is not "
                "supported any more, except with gradient=last_cycle, which is TRM"
            )
        fields = cls.model_fields
        defaults = {n: fields[n].default for n in TRMConfig.model_fields if n in fields}
        return defaults | arch | {"name": "trm", "H_layers": 0}


ARCHITECTURES.add("hrm", HRMConfig, imported("models.hrm.model", "HRMInner"))
