import math

import numpy as np
import pytest

from apps.reports.thinning import MAX_BINS, Curve


def curve_of(values: list[float]) -> Curve:
    curve = Curve()
    for step, value in enumerate(values, 1):
        curve.add(step, value)
    return curve


def test_few_values_stay_as_they_are() -> None:
    assert curve_of([3.0, 1.0, 2.0]).points() == ([1, 2, 3], [3.0, 1.0, 2.0])
    assert curve_of([1.0, 2.0, 3.0, 4.0, 5.0, 7.0]).points(2) == ([2, 5], [2.0, 16 / 3])


def test_of_many_values_the_means_stay() -> None:
    values = np.random.default_rng(0).normal(size=50_000)
    steps, means = curve_of(values.tolist()).points()
    assert MAX_BINS / 2 <= len(steps) <= MAX_BINS
    assert steps == sorted(steps)
    sums = np.add.reduceat(values, np.arange(255, 50_000, 256))[:-1]
    assert np.array(means[1:-1], float) == pytest.approx(sums / 256)


def test_steps_may_lie_anywhere_and_come_in_any_order() -> None:
    curve = Curve()
    for step in (2**50, 5, 2**52, 5, 0):
        curve.add(step, float(step))
    assert curve.points()[0] == [0, 5, 2**50, 2**52]
    assert curve.last == (2**52, float(2**52))


def test_what_is_not_finite_is_a_gap_and_is_remembered() -> None:
    curve = curve_of([1.0, math.nan, 3.0, math.inf])
    assert curve.points() == ([1, 2, 3, 4], [1.0, None, 3.0, None])
    assert (curve.last, curve.not_finite) == ((3, 3.0), 2)
