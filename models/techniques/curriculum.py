"""A curriculum of depth (arXiv:2511.08653): fewer cycles in an ACT step early in the training.

Early in the training the last cycles teach little but cost as much; the paper saves a third of all
operations. Evaluations always run all cycles.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from models.technique import TECHNIQUES, Depth, Former, Technique
from runtime.schema import Schema, Size

if TYPE_CHECKING:
    from models.config import RecurrenceConfig


class CurriculumStage(Schema):
    """A part of the training with fewer cycles in an ACT step."""

    until: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)]
    """share of the run's steps at which the stage ends"""
    H_cycles: Size
    L_cycles: Size


class Curriculum(Technique):
    former: ClassVar = {"curriculum": Former("stages", None)}

    stages: Annotated[list[CurriculumStage], Field(min_length=1, max_length=4)] = [
        CurriculumStage(until=0.3, H_cycles=1, L_cycles=2),
        CurriculumStage(until=0.6, H_cycles=2, L_cycles=4),
    ]
    """the end of each stage, as a share of the run's steps, and its cycles; then come all cycles"""

    def require(self, arch: "RecurrenceConfig") -> None:
        if not arch.has_cycles:
            raise ValueError(f"name={arch.name} has no cycles; leave the technique out")
        ends = [stage.until for stage in self.stages]
        if ends != sorted(set(ends)):
            raise ValueError(f"until={ends}: it must rise from stage to stage")
        for stage in self.stages:
            for name in ("H_cycles", "L_cycles"):
                if (cycles := getattr(stage, name)) > (full := getattr(arch, name)):
                    raise ValueError(f"{name}={cycles} exceeds arch.{name}={full}")

    def depth_at(self, share: float) -> Depth | None:
        stages = (stage for stage in self.stages if share < stage.until)
        return next(((stage.H_cycles, stage.L_cycles) for stage in stages), None)


TECHNIQUES.add("curriculum", Curriculum, text="fewer cycles at the beginning of the training")
