"""Lets hf://OWNER/NAME stand for a checkpoint."""

from runtime.registry import imported
from training.checkpoint.addresses import SCHEMES

SCHEMES["hf"] = imported("apps.hub.address", "parse_address")
