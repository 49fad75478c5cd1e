"""Sparse look-ahead: only some rows get a target for q_continue.

The target takes one more ACT step without gradients, 6 of the 16 passes of HRM's training step.
Here one row in `every` has a target. Its loss counts `every` times: the mean gradient is the same.
On a small task a step took 0.67 of the time, with accuracy within the spread over seeds
(docs/log/benchmarks.md).
"""

from typing import TYPE_CHECKING, ClassVar

from models.technique import TECHNIQUES, Former, Technique
from runtime.schema import Size

if TYPE_CHECKING:
    import numpy as np

    from models.config import RecurrenceConfig
    from runtime.streams import Address

_STREAM = 0x6C6F6F6B


class SparseLookAhead(Technique):
    former: ClassVar = {"q_target": Former("by", "full"), "q_target_every": Former("every")}
    gone: ClassVar = {"by": "rows"}

    every: Size = 4
    """one row in this many looks ahead"""

    @property
    def rows_per_target(self) -> int:
        return self.every

    def require(self, arch: "RecurrenceConfig") -> None:
        for why, holds in (
            ("heads.q=null", arch.heads.q is None),
            ("no_ACT_continue=true", arch.no_ACT_continue),
            ("halt_max_steps=1", arch.halt_max_steps == 1),
        ):
            if holds:
                raise ValueError(f"with {why} q_continue is not learned and needs no target")

    def require_rows(self, rows: int) -> None:
        if rows % self.every:
            raise ValueError(
                f"every={self.every} must divide the {rows} rows that pass through the model at "
                "once on a rank"
            )

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Choose the rows that look ahead, one at random of each `every` neighbours. So each rank,
        shard and micro-batch has a fixed number, and cutting the batch never changes the choice.

        Returns:
            `ahead`, int64 [parts, n], ascending.
        """
        import numpy as np

        starts = np.arange(0, at.num_rows, self.every)
        # The modulo makes some rows likelier, by less than every / 2**64.
        chosen = at.words(_STREAM, len(starts)) % np.uint64(self.every)
        rows = starts + chosen.astype(np.int64)
        own = rows[(at.own.start <= rows) & (rows < at.own.stop)] - at.own.start
        return {"ahead": at.parts(own) % (len(at.own) // at.num_parts)}


TECHNIQUES.add("sparse_look_ahead", SparseLookAhead, text="few rows get a target for q_continue")
