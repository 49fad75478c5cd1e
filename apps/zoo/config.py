"""Register addresses zoo:NAME as checkpoints."""

from runtime.registry import imported
from training.checkpoint.addresses import SCHEMES

SCHEMES["zoo"] = imported("apps.zoo.address", "parse_address")
