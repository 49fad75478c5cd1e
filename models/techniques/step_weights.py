"""Step weights (arXiv:2511.08653, hierarchical supervision weighting): in training the losses of a
puzzle count less with each ACT step.

All puzzles take the first steps; only hard ones take the last, and their gradients are noisier.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from models.technique import TECHNIQUES, Former, Technique

if TYPE_CHECKING:
    from torch import Tensor


class StepWeights(Technique):
    former: ClassVar = {"loss.step_decay": Former("decay", 1.0)}

    decay: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)] = 0.7
    """factor on a puzzle's losses from one ACT step to the next; lower: late steps count less"""

    def weighed(self, losses: "Tensor", steps: "Tensor", most: int) -> "Tensor":
        """Weight losses so that the mean weight over all steps is 1 (in the paper: the sum)."""
        decay = self.decay
        return losses * (decay ** (steps - 1) * (most * (1 - decay) / (1 - decay**most)))


TECHNIQUES.add("step_weights", StepWeights, text="later ACT steps of a puzzle count less")
