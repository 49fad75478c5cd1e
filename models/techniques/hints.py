"""Hints: training tells each cell what to answer after every ACT step, not only after the last, as
CLRS does for classical algorithms (arXiv:2205.15659). A step begins with the right answers of the
step before. So the model learns each step by itself, however many there are.

The data say when a cell's token and field can be known: in a maze, when the waves from the goal and
along the path can have come. Before that, the right answers are its own token and the class 0.
"""

from typing import TYPE_CHECKING

from pydantic import field_validator

from models.technique import TECHNIQUES, Technique
from runtime.schema import Size

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.act import Drawn
    from models.config import RecurrenceConfig
    from models.heads.base import Examples, Outputs, Targets
    from models.recurrence import Latents, Recurrence
    from runtime.streams import Address

_STREAM = 0x68696E74


class Hints(Technique):
    field: str = "closer"
    """field of the data set that is shown beside the tokens"""
    times: str = "arrivals"
    """field of the data set: pairs of updates before a cell's token and `field` can be known"""
    pace: Size = 4
    """cells that a wave should pass in an ACT step; even, and at most its updates"""

    @field_validator("pace")
    @classmethod
    def _even(cls, pace: int) -> int:
        if pace % 2:
            raise ValueError(f"{pace} is odd, and the data count pairs of cells")
        return pace

    def require(self, arch: "RecurrenceConfig") -> None:
        if not arch.local_updates:
            raise ValueError("it needs arch=nca with arch.keeps=answers")
        predicted = [n for key, n in arch.fields.items() if key.startswith("heads.")]
        if predicted != [self.field]:
            raise ValueError(f"the heads must predict the field {self.field}, and no other")
        if self.pace > arch.local_updates:
            raise ValueError(f"pace={self.pace} exceeds the {arch.local_updates} updates of a step")
        if arch.techniques.acting("depth_at"):
            raise ValueError("the number of updates in a step must not change (curriculum)")

    @property
    def reads_field(self) -> str:
        return self.times

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Draw the share of its ACT steps that each new row skips: `skipped`, float32 [parts, rows]
        in [0, 1).
        """
        import numpy as np

        shares = at.uniform(_STREAM)[0][at.own.start : at.own.stop]
        return {"skipped": at.parts(np.minimum(shares, 1 - 2.0**-24).astype(np.float32))}

    def shown(self, examples: "Examples", steps: "Tensor") -> "Examples":
        """Return the examples with the labels that rows should hold after `steps`, int32 [B]."""
        import torch

        passed = self.pace * steps.view(-1, 1, 1)
        known = 2 * examples[self.times] <= passed  # [B, S, 2]
        labels = torch.where(known[..., 0], examples["labels"], examples["inputs"])
        field = torch.where(known[..., 1], examples[self.field], 0)
        return {**examples, "labels": labels, self.field: field}

    def begun(
        self,
        inner: "Recurrence",
        new: "Tensor",
        steps: "Tensor",
        latents: "Latents",
        examples: "Examples",
        drawn: "Drawn",
    ) -> "Latents":
        """Replace what all rows kept by what they should have kept."""
        if "skipped" not in drawn:
            return latents
        return inner.holding(latents, self.shown(examples, steps - 1))

    def aimed(self, targets: "Targets", outputs: "Outputs", steps: "Tensor") -> "Targets":
        return targets._replace(examples=self.shown(targets.examples, steps))


TECHNIQUES.add("hints", Hints, text="cells are shown what they should hold at each ACT step")
