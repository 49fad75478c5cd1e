"""Curves of any length in bounded memory: means over bins of equal numbers of steps."""

import math
from dataclasses import dataclass, field

MAX_BINS = 240
"""Most bins of a curve."""


@dataclass
class Curve:
    """A curve of values over steps, which may be added in any order.

    Attributes:
        last: (step, value) of the largest step with a finite value.
        not_finite: the smallest step with a value that is not finite; None: there is none.
    """

    last: tuple[int, float] | None = None
    not_finite: int | None = None
    _width: int = 1
    # For each bin: number of finite values, sum of their steps, sum of the values.
    _bins: dict[int, tuple[int, int, float]] = field(default_factory=dict)

    def add(self, step: int, value: float) -> None:
        """Add a value. A bin with only values that are not finite is a gap in the curve."""
        if math.isfinite(value):
            self._put(step // self._width, 1, step, value)
            if self.last is None or step >= self.last[0]:
                self.last = step, value
        else:
            self._put(step // self._width, 0, 0, 0.0)
            if self.not_finite is None or step < self.not_finite:
                self.not_finite = step
        self._widen(MAX_BINS)

    def _put(self, number: int, count: int, steps: int, values: float) -> None:
        count_before, steps_before, values_before = self._bins.get(number, (0, 0, 0.0))
        self._bins[number] = count_before + count, steps_before + steps, values_before + values

    def _widen(self, limit: int) -> None:
        """Double the width of the bins until there are at most `limit`."""
        while len(self._bins) > max(1, limit):
            self._width *= 2
            before, self._bins = self._bins, {}
            for number, one in before.items():
                self._put(number // 2, *one)

    def points(self, limit: int = MAX_BINS) -> tuple[list[float], list[float | None]]:
        """Return the mean step and mean value of each bin; the value is None without finite values.
        Widens the bins until there are at most `limit`.
        """
        self._widen(limit)
        bins = sorted(self._bins.items())
        steps = [steps / count if count else n * self._width for n, (count, steps, _) in bins]
        return steps, [values / count if count else None for _, (count, _, values) in bins]
