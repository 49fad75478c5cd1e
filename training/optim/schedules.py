"""Learning rate schedules: the way of the rate from its peak to its end. Imports no torch."""

import math
from typing import Annotated, ClassVar

from pydantic import Field

from runtime.registry import Registry
from runtime.schema import Schema


class ScheduleConfig(Schema):
    """Half a cosine, as published (arXiv:1608.03983), and the base class of all schedules: the
    fields are the settings, `height` is the code. After the last step the cosine rises again.
    """

    needs_end: ClassVar[bool] = False
    """True: refuse `lr_min_ratio=1`, which takes away the schedule's effect"""
    name: str = "cosine"

    def height(self, step: int, first: int, last: int) -> float:
        """Return the height of the rate at `step`: 1 is the peak, 0 the end, `lr_min_ratio`.

        Args:
            first, last: the last steps of the warm-up and of the schedule. `step` is at least
                `first`; a run may end before or after `last`.
        """
        return 0.5 * (1 + math.cos(math.pi * ((step - first) / max(1, last - first))))


class LinearConfig(ScheduleConfig):
    """A straight fall."""

    needs_end: ClassVar[bool] = True
    name: str = "linear"

    def height(self, step: int, first: int, last: int) -> float:
        return min(1.0, max(0.0, (last - step) / max(1, last - first)))


class WSDConfig(LinearConfig):
    """Warm-up, stable, decay (arXiv:2404.06395): the peak, then a straight fall."""

    name: str = "wsd"
    decay_share: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.2
    """share of the schedule's steps in which the rate falls at the end"""

    def height(self, step: int, first: int, last: int) -> float:
        return super().height(step, max(first, last - round(self.decay_share * last)), last)


class ConstantConfig(ScheduleConfig):
    """The peak until the end; `lr_min_ratio` has no effect."""

    name: str = "constant"

    def height(self, step: int, first: int, last: int) -> float:
        return 1.0


PUBLISHED = ScheduleConfig()
LR_SCHEDULES = Registry("learning rate schedule", ScheduleConfig, PUBLISHED.name, "lr_schedule")
for _schema in (ScheduleConfig, WSDConfig, LinearConfig, ConstantConfig):
    LR_SCHEDULES.add(_schema().name, _schema)
