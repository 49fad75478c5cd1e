"""Damping and noise (arXiv:2605.21488): a latent moves only part of the way to its new value, plus
noise.

A recurrence trained like this settles at its answer and returns to it after a disturbance. So more
ACT steps than in training help rather than harm.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from models.technique import TECHNIQUES, Former, Technique
from runtime.schema import NonNegativeFloat

if TYPE_CHECKING:
    from torch import Tensor

    from models.draws import Draws


class DampedNoise(Technique):
    former: ClassVar = {"damping": Former("damping", 1.0), "noise": Former("noise", 0.0)}

    damping: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.95
    """share of the new value in each update of a latent; lower: slower changes; 1: no damping"""
    noise: NonNegativeFloat = 0.01
    """standard deviation of the noise that each update adds"""

    @property
    def draws_numbers(self) -> bool:
        return self.noise > 0

    def moved(self, before: "Tensor", after: "Tensor", draws: "Draws") -> "Tensor":
        if self.damping < 1.0:
            after = before.lerp(after, self.damping)
        return after + self.noise * draws.normal(after) if self.noise else after


TECHNIQUES.add("damped_noise", DampedNoise, text="updates are damped and noisy")
