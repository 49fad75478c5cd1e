"""A sparse look-ahead: only some rows, or all rows at some steps, have a target for q_continue.

The target takes one more ACT step without gradients, 6 of the 16 passes of HRM's training step.
Here one row in a few has one, and counts so often, so that the gradient stays the same on average.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar, Literal

from models.technique import TECHNIQUES, Former, Technique
from runtime.schema import Size

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.act import ACT, Drawn
    from models.config import RecurrenceConfig
    from models.heads.base import Examples
    from models.recurrence import Latents
    from runtime.streams import Address

_STREAM = 0x6C6F6F6B


class SparseLookAhead(Technique):
    former: ClassVar = {
        # first: the same target as full, computed in another way.
        "q_target": Former("by", off="full", also_off="first"),
        "q_target_every": Former("every"),
    }

    by: Literal["rows", "steps"] = "rows"
    """rows: a few of each batch look ahead; steps: all of them, at a few steps"""
    every: Size = 4
    """one row, or step, in so many does"""

    @property
    def rows_per_target(self) -> int:
        return self.every

    def require(self, arch: "RecurrenceConfig") -> None:
        if arch.heads.q is None or arch.no_ACT_continue:
            why = "heads.q=null" if arch.heads.q is None else "no_ACT_continue=true"
            raise ValueError(f"with {why} no q_continue is learned, so it has no target")
        if self.every > 1 and arch.loss.clip.q_continue is not None:
            raise ValueError(
                "loss.clip.q_continue limits the loss of a row, and here rows count several times; "
                "use loss.clip.q_continue=null"
            )

    def require_rows(self, rows: int) -> None:
        if self.by == "rows" and rows % self.every:
            raise ValueError(
                f"every={self.every} must divide the {rows} rows that pass through the model at "
                "once on a rank"
            )

    @property
    def varies(self) -> str:
        return "not every step looks ahead" if self.by == "steps" else ""

    def form(self, step: int, share: float) -> Hashable:
        return self.by == "rows" or (step - 1) % self.every == 0

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Choose the rows that look ahead. By rows it is one of each few neighbours, at random: so
        a rank, a shard or a micro-batch has a fixed number of them, and the same ones however the
        batch is cut.

        Returns:
            `ahead`, int64 [parts, n], ascending.
        """
        import numpy as np

        rows = np.arange(0 if at.step % self.every else at.num_rows)
        if self.by == "rows":
            starts = np.arange(0, at.num_rows, self.every)
            # Of 64 bits: choices differ in probability by less than every / 2**64.
            chosen = at.words(_STREAM, len(starts)) % np.uint64(self.every)
            rows = starts + chosen.astype(np.int64)
        own = rows[(at.own.start <= rows) & (rows < at.own.stop)] - at.own.start
        return {"ahead": at.parts(own) % (len(at.own) // at.num_parts)}

    def look_ahead(
        self,
        act: "ACT",
        latents: "Latents",
        examples: "Examples",
        last_step: "Tensor",
        drawn: "Drawn",
    ) -> "dict[str, Tensor]":
        """Return `target_q_continue`, [B], and `weight_q_continue`, [B], which its loss is
        multiplied by: `every` of the rows that look ahead, 0 of all others.
        """
        rows = drawn["ahead"]
        target = last_step.float() * 0
        weight = target.index_fill(0, rows, self.every)
        if len(rows):  # Kernels of attention may not know an empty batch.
            own = [{n: value[rows] for n, value in part.items()} for part in (latents, examples)]
            few = act.target_of_continue(own[0], own[1], last_step[rows])
            target = target.to(few.dtype).index_copy(0, rows, few)
        return {"target_q_continue": target, "weight_q_continue": weight}


TECHNIQUES.add("sparse_look_ahead", SparseLookAhead, text="few rows have a target for q_continue")
