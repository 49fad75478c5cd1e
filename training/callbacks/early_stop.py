"""The end of a run that no longer gets better."""

import math
from collections.abc import Mapping
from typing import Literal

from runtime.errors import ConfigError
from runtime.schema import Count, NonNegativeFloat
from runtime.text import many
from training.callbacks.base import CALLBACKS, Callback, Run
from training.config.explain import did_you_mean


class EarlyStop(Callback):
    """Keeps the best value and counts the evaluations since. A resumed run with another metric or
    mode starts anew; one with more patience goes on.
    """

    metric: str = "eval/exact_accuracy"
    """a figure of the evaluations, as metrics.jsonl names it"""
    mode: Literal["max", "min"] = "max"
    """max: higher is better; min: lower is better"""
    patience: Count = 5
    """the run ends after this many evaluations in a row without an improvement"""
    min_delta: NonNegativeFloat = 0.0
    """a change by this much or less is no improvement"""

    def start(self, run: Run) -> None:
        new = {"of": f"{self.mode} {self.metric}", "best": None, "waited": 0}
        self._state |= new if self._state.get("of") != new["of"] else {}
        self._stop_if_due(run)

    def evaluated(self, run: Run, metrics: Mapping[str, float]) -> None:
        if self.metric not in metrics:
            known = f"{', '.join(sorted(metrics)) or 'none'}{did_you_mean(self.metric, metrics)}"
            raise ConfigError(f"metric={self.metric}: no evaluation gives it; accepted: {known}")
        value, sign, best = metrics[self.metric], 2 * (self.mode == "max") - 1, self._state["best"]
        is_better = best is None or sign * (value - best) > self.min_delta
        if is_better and math.isfinite(value):
            self._state |= {"best": value, "waited": 0}
        else:
            self._state["waited"] += 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        best, waited = self._state["best"], self._state["waited"]
        if waited >= self.patience:
            since = f"no better in the last {many(waited, 'evaluation')}"
            run.stop(f"{self.metric} was at best {best}, and {since}")


CALLBACKS.add("early_stop", EarlyStop)
