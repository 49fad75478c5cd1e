"""Register addresses hf://OWNER/NAME as checkpoints."""

from runtime.registry import imported
from training.checkpoint.addresses import SCHEMES

SCHEMES["hf"] = imported("apps.hub.address", "parse_address")
