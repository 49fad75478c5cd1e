"""Curves of any length in bounded memory: bins of steps that keep the mean and both extremes."""

import math
from dataclasses import dataclass, field

MAX_BINS = 320
"""Bins of a curve; a band from the smallest to the largest value makes three points of each."""


@dataclass(slots=True)
class _Bin:
    count: int = 0
    step_sum: int = 0
    value_sum: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, count: int, step_sum: int, value_sum: float, low: float, high: float) -> None:
        self.count += count
        self.step_sum += step_sum
        self.value_sum += value_sum
        self.low, self.high = min(self.low, low), max(self.high, high)


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

    def add(self, step: int, value: float) -> None:
        """Add a value; one that is not finite leaves a gap where its bin has no other."""
        if not math.isfinite(value):
            if self.not_finite is None or step < self.not_finite:
                self.not_finite = step
            self._bins.setdefault(step // self._width, _Bin())
        else:
            own = self._bins.setdefault(step // self._width, _Bin())
            own.add(1, step, value, value, value)
            if self.last is None or step >= self.last[0]:
                self.last = step, value
        while len(self._bins) > MAX_BINS:
            self._widen()

    def _widen(self) -> None:
        """Make each bin twice as wide."""
        self._width *= 2
        before, self._bins = self._bins, {}
        for number, one in before.items():
            wide = self._bins.setdefault(number // 2, _Bin())
            wide.add(one.count, one.step_sum, one.value_sum, one.low, one.high)

    def points(self, limit: int = MAX_BINS) -> "Points":
        """Return the bins in their order, at most `limit` of them; this widens them."""
        while len(self._bins) > max(1, limit):
            self._widen()
        points = Points([], [], [], [])
        for number, one in sorted(self._bins.items()):
            points.steps.append(one.step_sum / one.count if one.count else number * self._width)
            points.means.append(one.value_sum / one.count if one.count else None)
            points.lows.append(one.low if one.count else None)
            points.highs.append(one.high if one.count else None)
        return points


@dataclass(frozen=True)
class Points:
    """The bins of a curve: mean step, and mean, smallest and largest value; None where no value is
    finite.
    """

    steps: list[float]
    means: list[float | None]
    lows: list[float | None]
    highs: list[float | None]

    @property
    def is_exact(self) -> bool:
        """Whether each bin has a single value."""
        return self.lows == self.highs
