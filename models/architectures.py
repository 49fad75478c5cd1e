"""All architectures, by our names and by those in published configurations. Imports no torch.

Each is a folder with `config.py`, its settings and registration, and `model.py`.
"""

from typing import Annotated

from pydantic import BeforeValidator

from models.config import ARCHITECTURES, RecurrenceConfig
from runtime.registry import import_all, rebuild_schemas

import_all("models", "*/config.py")
import_all("apps", "*/config.py")
rebuild_schemas()

# Names in the published configurations.
PUBLISHED_ARCHITECTURES = {
    "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1": "hrm",
    "recursive_reasoning.hrm@HierarchicalReasoningModel_ACTV1": "hrm",
    "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1": "trm",
    "recursive_reasoning.trm_singlez@TinyRecursiveReasoningModel_ACTV1": "trm_singlez",
    "recursive_reasoning.transformers_baseline@Model_ACTV2": "transformer",
}
PUBLISHED_LOSSES = {"losses@ACTLossHead": "act"}


def _with_own_names(arch: object) -> object:
    """Translate published names."""
    if not isinstance(arch, dict):
        return arch
    arch = {"name": ARCHITECTURES.default} | arch
    loss = arch.get("loss")
    if isinstance(loss, dict) and isinstance(name := loss.get("name"), str):
        arch["loss"] = loss | {"name": PUBLISHED_LOSSES.get(name, name)}
    if isinstance(name := arch["name"], str):
        arch["name"] = PUBLISHED_ARCHITECTURES.get(name, name)
    return arch


ArchConfig = Annotated[RecurrenceConfig, ARCHITECTURES, BeforeValidator(_with_own_names)]
