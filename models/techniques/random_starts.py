"""Random starts (arXiv:2605.21488): each cell of each latent starts at fresh random numbers.

Such a model can solve a puzzle several times: chains with different starts (`evaluate.py chains=8
perturb=init`) give several answers to choose from. The published start is one fixed vector.
"""

from typing import TYPE_CHECKING, ClassVar

from models.technique import TECHNIQUES, Former, Technique
from runtime.schema import PositiveFloat

if TYPE_CHECKING:
    from torch import Tensor

    from models.draws import Draws


class RandomStarts(Technique):
    former: ClassVar = {"init": Former("", "fixed"), "init_std": Former("std")}

    std: PositiveFloat = 1.0
    """standard deviation of the normal numbers, before they are cut at twice that"""

    @property
    def draws_numbers(self) -> bool:
        return True

    @property
    def exported_facts(self) -> dict[str, object]:
        return {"init_std": self.std}

    def start(self, z: "Tensor", draws: "Draws") -> "Tensor":
        return draws.cut_normal(z, self.std)


TECHNIQUES.add("random_starts", RandomStarts, text="latents start at random numbers")
