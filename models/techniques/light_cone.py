"""Light cone: in training a cell counts in the losses of tokens and fields only once what its
labels depend on can have reached it; ours.

In a cellular automaton a wave passes one cell an update. A cell that it has not reached can only
guess, and learned guesses stand in the wave's way. Cells that keep their token always count in the
loss of tokens, so that nothing is drawn before the wave comes.
"""

from typing import TYPE_CHECKING

from models.technique import TECHNIQUES, Technique

if TYPE_CHECKING:
    from torch import Tensor

    from models.config import RecurrenceConfig
    from models.heads.base import Outputs, Targets


class LightCone(Technique):
    field: str = "arrivals"
    """field of the data set: pairs of updates before the labels of each cell can be known"""

    def require(self, arch: "RecurrenceConfig") -> None:
        if not arch.local_updates:
            raise ValueError(f"one update of arch.name={arch.name} reaches all cells")
        if arch.techniques.acting("depth_at"):
            raise ValueError("the number of updates in a step must not change (curriculum)")

    @property
    def reads_field(self) -> str:
        return self.field

    def aimed(self, targets: "Targets", outputs: "Outputs", updates: "Tensor") -> "Targets":
        counted = 2 * targets.examples[self.field] <= updates.unsqueeze(-1)
        return targets._replace(counted=counted)


TECHNIQUES.add("light_cone", LightCone, text="cells count only once waves can have reached them")
