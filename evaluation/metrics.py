"""The figures of a test set: means over its rows, each with a 95 % confidence interval.

They are computed in float64 on the host, in test order, so that the number of ranks does not change
them. Imports no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.metrics import as_reported, is_loss

# Metrics that are 0 or 1 for each labelled row.
SHARES = ("exact_accuracy", "q_halt_accuracy", "halt_accuracy")

_BOUNDED = ("accuracy", "precision")
_NONE = (-math.inf, math.inf)
_Z95 = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations.


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval for all puzzles of the kind; bounds None: unknown."""

    value: float
    low: float | None
    high: float | None

    def with_interval(self) -> str:
        """Return it as text: 0.1234 [0.1200, 0.1300], or 0.1234 without an interval."""
        if self.low is None or self.high is None:
            return f"{self.value:.4f}"
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class SetResult:
    """The figures of one test set. Metrics without rows are left out."""

    num_examples: int  # Measured rows, without padding.
    count: int  # Measured rows with labels.
    metrics: dict[str, Estimate]  # Means that can be pooled over sets; reports show `reported`.

    @property
    def reported(self) -> dict[str, Estimate]:
        """The metrics as reports show them: heads may combine several into one, which has no
        interval.
        """
        values = {name: estimate.value for name, estimate in self.metrics.items()}
        return {
            name: self.metrics.get(name, Estimate(value, None, None))
            for name, value in as_reported(values).items()
        }


def summarize(rows: Mapping[str, np.ndarray]) -> SetResult:
    """Return the figures of a set.

    Args:
        rows: values [num_examples] by name: `count` (1 if the row has labels, else 0) and metrics,
            which are 0 for rows without labels unless they are losses.
    """
    labelled = rows["count"] > 0
    num_examples, count = len(labelled), int(labelled.sum())
    metrics: dict[str, Estimate] = {}
    for name, values in rows.items():
        if is_loss(name):
            metrics |= {name: normal(values)} if num_examples else {}
        elif name in SHARES and count:
            metrics[name] = wilson(int(values[labelled].sum()), count)
        elif name != "count" and count:
            limits = (0.0, 1.0) if name.endswith(_BOUNDED) else _NONE
            metrics[name] = normal(values[labelled], limits)
    return SetResult(num_examples, count, metrics)


def wilson(successes: float, trials: int) -> Estimate:
    """Return a share with its Wilson score interval, which has a width even at 0 and 1."""
    share, z2 = successes / trials, _Z95**2
    center = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    # At 0 and 1 a bound equals the share; rounding could push it beyond.
    return Estimate(share, min(max(center - half, 0.0), share), max(min(center + half, 1.0), share))


def normal(values: np.ndarray, limits: tuple[float, float] = _NONE) -> Estimate:
    """Return the mean of values (at least one) with mean +- 1.96 standard errors, cut at limits."""
    wide = np.ascontiguousarray(values, dtype=np.float64)
    mean = float(wide.mean())
    if len(wide) < 2:
        return Estimate(mean, None, None)
    half = _Z95 * float(wide.std(ddof=1)) / math.sqrt(len(wide))
    return Estimate(mean, max(mean - half, limits[0]), min(mean + half, limits[1]))
