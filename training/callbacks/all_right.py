"""The end of a run that has learnt its training examples by heart."""

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.schema import Count
from training.callbacks.base import CALLBACKS, Callback, Run


class AllRight(Callback):
    examples: Count
    """the run ends when this many rows in a row were right when they halted"""

    def start(self, run: Run) -> None:
        self._state.setdefault("in_a_row", 0)
        self._stop_if_due(run)

    def logged(self, run: Run, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            if count := record.get("train/count", 0):
                are_right = record["train/exact_accuracy"] == 1
                self._state["in_a_row"] = (self._state["in_a_row"] + count) * are_right
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        if self._state["in_a_row"] >= self.examples:
            run.stop(f"the last {self.examples:,} rows were right")


CALLBACKS.add("all_right", AllRight)
