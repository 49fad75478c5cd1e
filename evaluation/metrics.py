"""What is reported of a test set: means over its rows, each with a 95 % confidence interval.

Computed in float64 on the host from the rows' own values, in test order: the same figures however
many ranks measured them. Imports no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.metrics import as_reported, is_loss

# Rows with a yes or no; over the labelled rows.
SHARES = ("exact_accuracy", "q_halt_accuracy", "halt_accuracy")

_BOUNDED = ("accuracy", "precision")
_NONE = (-math.inf, math.inf)
_Z95 = 1.959963984540054  # A normal distribution holds 95 % within so many standard deviations.


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval, the rows being a sample of all puzzles of their
    kind; None where a single row says nothing of spread.
    """

    value: float
    low: float | None
    high: float | None

    def with_interval(self) -> str:
        """Return it for people: 0.1234 [0.1200, 0.1300], without an interval the value alone."""
        if self.low is None or self.high is None:
            return f"{self.value:.4f}"
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class SetResult:
    """The figures of one test set; names of metrics without a single row are left out. They stand
    here before heads fold theirs, as they can be pooled; see `reported`.
    """

    num_examples: int  # Rows of the set that were measured, padding never included.
    count: int  # Those that have labels.
    metrics: dict[str, Estimate]

    @property
    def reported(self) -> dict[str, Estimate]:
        """The metrics for people; those that a head has folded have no interval."""
        values = {name: estimate.value for name, estimate in self.metrics.items()}
        return {
            name: self.metrics.get(name, Estimate(value, None, None))
            for name, value in as_reported(values).items()
        }


def summarize(rows: Mapping[str, np.ndarray]) -> SetResult:
    """Reduce the rows of a set, [num_examples] each, to what is reported.

    Args:
        rows: `count` (1 where the row has labels, else 0), and metrics; those that are no losses
            are 0 where `count` is.
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
    # At 0 and 1 the bound is the share itself; rounding would put it just beyond.
    return Estimate(share, min(max(center - half, 0.0), share), max(min(center + half, 1.0), share))


def normal(values: np.ndarray, limits: tuple[float, float] = _NONE) -> Estimate:
    """Return the mean of one value or more with mean +- 1.96 standard errors, within limits."""
    wide = np.ascontiguousarray(values, dtype=np.float64)
    mean = float(wide.mean())
    if len(wide) < 2:
        return Estimate(mean, None, None)
    half = _Z95 * float(wide.std(ddof=1)) / math.sqrt(len(wide))
    return Estimate(mean, max(mean - half, limits[0]), min(mean + half, limits[1]))
