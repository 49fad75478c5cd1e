from models.act import ACTCarry, Drawn
from models.heads.base import Examples
from models.recurrence import Latents

__all__ = ["ACTCarry", "Drawn", "Examples", "Latents"]
