"""Curves of any length in bounded memory: bins of steps that keep the mean, both extremes, and a
sample for the quartiles.
"""

import math
from array import array
from dataclasses import dataclass, field
from random import Random

import numpy as np

MAX_BINS = 120
"""Bins of a curve; a band between the quartiles makes three points of each."""

_SAMPLE = 48  # Values of a bin that its quartiles are taken from.


@dataclass(slots=True)
class _Bin:
    count: int = 0
    step_sum: int = 0
    value_sum: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    sample: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float, random: Random) -> None:
        """Add a finite value; each is in the sample with the same probability."""
        self.count += 1
        self.step_sum += step
        self.value_sum += value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value
        if self.count <= _SAMPLE:
            self.sample.append(value)
        elif (place := int(random.random() * self.count)) < _SAMPLE:
            self.sample[place] = value

    def join(self, other: "_Bin", random: Random) -> None:
        """Add what another bin, as wide as this one, holds."""
        both = self.sample + other.sample
        self.sample = both if len(both) <= _SAMPLE else array("d", random.sample(both, _SAMPLE))
        self.count += other.count
        self.step_sum += other.step_sum
        self.value_sum += other.value_sum
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


@dataclass
class Curve:
    """Values by step, added in any order.

    Attributes:
        last: the value of the largest step.
        not_finite: the first step whose value was not finite; None: all were.
    """

    last: tuple[int, float] | None = None
    not_finite: int | None = None
    _width: int = 1
    _bins: dict[int, _Bin] = field(default_factory=dict)
    _random: Random = field(default_factory=lambda: Random(0))

    def add(self, step: int, value: float) -> None:
        """Add a value; one that is not finite leaves a gap where its bin has no other."""
        if step // self._width not in self._bins:
            self._bins[step // self._width] = _Bin()
            while len(self._bins) > MAX_BINS:
                self._widen()
        if math.isfinite(value):
            self._bins[step // self._width].add(step, value, self._random)
            if self.last is None or step >= self.last[0]:
                self.last = step, value
        elif self.not_finite is None or step < self.not_finite:
            self.not_finite = step

    def _widen(self) -> None:
        """Make each bin twice as wide."""
        self._width *= 2
        before, self._bins = self._bins, {}
        for number, one in before.items():
            self._bins.setdefault(number // 2, _Bin()).join(one, self._random)

    def points(self, limit: int = MAX_BINS) -> "Points":
        """Return the bins in their order, at most `limit` of them; this widens them."""
        while len(self._bins) > max(1, limit):
            self._widen()
        rows = []
        for number, one in sorted(self._bins.items()):
            if one.count:
                quartiles = np.quantile(one.sample, [0.25, 0.75]).tolist()
                means = one.step_sum / one.count, one.value_sum / one.count
                rows.append((*means, one.low, one.high, *quartiles))
            else:
                rows.append((number * self._width, *[None] * 5))
        return Points(*map(list, zip(*rows, strict=True))) if rows else Points(*([],) * 6)


@dataclass(frozen=True)
class Points:
    """The bins of a curve: mean step, mean, smallest and largest value, and both quartiles (of a
    sample where a bin has many values); None where no value is finite.
    """

    steps: list[float]
    means: list[float | None]
    lows: list[float | None]
    highs: list[float | None]
    first_quartiles: list[float | None]
    third_quartiles: list[float | None]

    @property
    def is_exact(self) -> bool:
        """Whether each bin has a single value."""
        return self.lows == self.highs
