"""Which class stands behind `arch.name`. A checkpoint's folder never has a say in it."""

from models.config import ArchConfig, DataFacts
from models.hrm import build_hrm
from models.losses import ACTLossHead

_BUILDERS = {"hrm": build_hrm}


def build_model(config: ArchConfig, facts: DataFacts) -> ACTLossHead:
    """Build the model that `config.name` names, with fresh weights, on the CPU."""
    return _BUILDERS[config.name](config, facts)
