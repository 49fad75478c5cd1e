"""Curves of any length in bounded memory: the means of equal stretches of steps."""

import math
from dataclasses import dataclass, field

MAX_BINS = 240
"""Stretches of a curve."""


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
    # Of each stretch the number of finite values, the sum of their steps, and their own.
    _bins: dict[int, tuple[int, int, float]] = field(default_factory=dict)

    def add(self, step: int, value: float) -> None:
        """Add a value; one that is not finite leaves a gap where its stretch has no other."""
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
        """Make each stretch twice as wide until there are at most `limit` of them."""
        while len(self._bins) > max(1, limit):
            self._width *= 2
            before, self._bins = self._bins, {}
            for number, one in before.items():
                self._put(number // 2, *one)

    def points(self, limit: int = MAX_BINS) -> tuple[list[float], list[float | None]]:
        """Return steps and values: the means of each stretch, None where no value is finite. There
        are at most `limit` of them; this widens the stretches.
        """
        self._widen(limit)
        bins = sorted(self._bins.items())
        steps = [steps / count if count else n * self._width for n, (count, steps, _) in bins]
        return steps, [values / count if count else None for _, (count, _, values) in bins]
