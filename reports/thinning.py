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

    def join(self, other: "_Bin") -> None:
        """Add what another bin holds."""
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

    def add(self, step: int, value: float) -> None:
        """Add a value; one that is not finite leaves a gap where its bin has no other."""
        own = self._bins.get(step // self._width)
        if own is None:
            own = self._bins[step // self._width] = _Bin()
            while len(self._bins) > MAX_BINS:
                self._widen()
            own = self._bins[step // self._width]
        if not math.isfinite(value):
            if self.not_finite is None or step < self.not_finite:
                self.not_finite = step
            return
        own.count += 1
        own.step_sum += step
        own.value_sum += value
        if value < own.low:
            own.low = value
        if value > own.high:
            own.high = value
        if self.last is None or step >= self.last[0]:
            self.last = step, value

    def _widen(self) -> None:
        """Make each bin twice as wide."""
        self._width *= 2
        before, self._bins = self._bins, {}
        for number, one in before.items():
            self._bins.setdefault(number // 2, _Bin()).join(one)

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
