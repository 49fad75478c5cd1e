"""Light cone: in training a cell counts in the losses only once what its label depends on can have
reached it; ours.

In a cellular automaton a wave passes one cell an update. A cell that it has not reached can only
guess, and learned guesses stand in the wave's way.
"""

from typing import TYPE_CHECKING

from models.technique import TECHNIQUES, Technique

if TYPE_CHECKING:
    from torch import Tensor

    from models.config import RecurrenceConfig
    from models.heads.base import Examples


class LightCone(Technique):
    field: str = "arrivals"
    """field of the data set: pairs of updates before each cell's label can be known"""

    def require(self, arch: "RecurrenceConfig") -> None:
        if not hasattr(arch, "L_cycles"):
            raise ValueError(f"arch.name={arch.name} has no cycles of updates")

    @property
    def reads_field(self) -> str:
        return self.field

    def counted(self, examples: "Examples", updates: "Tensor") -> "Tensor":
        return 2 * examples[self.field] <= updates.unsqueeze(-1)


TECHNIQUES.add("light_cone", LightCone, text="cells count only once waves can have reached them")
