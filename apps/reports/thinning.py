"""Curves of any length in bounded memory: the means of equal stretches of steps."""

import math
from dataclasses import dataclass, field

MAX_BINS = 240
"""Stretches of a curve."""


@dataclass(slots=True)
class _Bin:
    count: int = 0
    step_sum: int = 0
    value_sum: float = 0.0

    def add(self, count: int, step_sum: int, value_sum: float) -> None:
        """Add finite values."""
        self.count += count
        self.step_sum += step_sum
        self.value_sum += value_sum


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
        if step // self._width not in self._bins:
            self._bins[step // self._width] = _Bin()
            self._widen(MAX_BINS)
        if math.isfinite(value):
            self._bins[step // self._width].add(1, step, value)
            if self.last is None or step >= self.last[0]:
                self.last = step, value
        elif self.not_finite is None or step < self.not_finite:
            self.not_finite = step

    def _widen(self, limit: int) -> None:
        """Make each bin twice as wide until there are at most `limit` of them."""
        while len(self._bins) > max(1, limit):
            self._width *= 2
            before, self._bins = self._bins, {}
            for number, one in before.items():
                joined = self._bins.setdefault(number // 2, _Bin())
                joined.add(one.count, one.step_sum, one.value_sum)

    def points(self, limit: int = MAX_BINS) -> tuple[list[float], list[float | None]]:
        """Return steps and values: the means of each bin, None where no value is finite. There are
        at most `limit` of them; this widens the bins.
        """
        self._widen(limit)
        bins = sorted(self._bins.items())
        steps = [one.step_sum / one.count if one.count else n * self._width for n, one in bins]
        return steps, [one.value_sum / one.count if one.count else None for _, one in bins]
