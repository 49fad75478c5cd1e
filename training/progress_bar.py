"""The bar, or the lines of a log, that tell how far a run is."""

import time
from collections.abc import Sequence
from typing import Any

from runtime.progress import bar


class ProgressBar:
    """Steps done, with loss, accuracy, ACT steps and speed; closed at the end of its block."""

    def __init__(self, *, done: int, total: int | None, rows_per_step: int, show: bool) -> None:
        self._rows_per_step, self._num_steps = rows_per_step, 0
        self._started = time.monotonic()
        self._figures: dict[str, float] = {}
        self._bar = bar(None, "training", "steps", total=total, done=done, show=show, leave=True)

    def advance(self, records: Sequence[dict[str, Any]]) -> None:
        """Show the steps of these records, at least one."""
        self._figures["loss"] = records[-1]["train/lm_loss"]
        # Where nothing halted in this block, what the last one showed stays.
        if counted := [record for record in records if record["train/count"] > 0]:
            self._figures["exact"] = counted[-1]["train/exact_accuracy"]
            self._figures["act"] = counted[-1]["train/steps"]
        self._num_steps += len(records)
        elapsed = max(time.monotonic() - self._started, 1e-9)
        self._figures["ex/s"] = self._num_steps * self._rows_per_step / elapsed
        shown = {name: f"{value:.3g}" for name, value in self._figures.items()}
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(len(records))

    def finish(self) -> None:
        """Show that all is done, at however many steps."""
        self._bar.total = self._bar.n

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
