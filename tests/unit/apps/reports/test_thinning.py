import math

import numpy as np
import pytest

from apps.reports.thinning import MAX_BINS, Curve


def curve_of(values: list[float], first: int = 1) -> Curve:
    curve = Curve()
    for step, value in enumerate(values, first):
        curve.add(step, value)
    return curve


def test_few_values_stay_as_they_are() -> None:
    points = curve_of([3.0, 1.0, 2.0]).points()
    assert (points.steps, points.means) == ([1, 2, 3], [3.0, 1.0, 2.0])
    assert points.is_exact
    few = curve_of([1.0, 2.0, 3.0, 4.0, 5.0, 7.0]).points(2)
    assert few.first_quartiles == [1.5, 4.5]
    assert few.third_quartiles == [2.5, 6.0]


def test_of_many_values_means_and_extremes_stay() -> None:
    values = np.random.default_rng(0).normal(size=50_000)
    values[31_234] = 40.0
    points = curve_of(values.tolist()).points()
    assert MAX_BINS / 2 <= len(points.steps) <= MAX_BINS
    assert not points.is_exact
    assert max(value for value in points.highs if value is not None) == 40.0
    assert points.steps == sorted(points.steps)
    for step, mean, low, high in zip(
        points.steps, points.means, points.lows, points.highs, strict=True
    ):
        assert low <= mean <= high
        assert 1 <= step <= 50_000
    for low, first, third, high in zip(
        points.lows, points.first_quartiles, points.third_quartiles, points.highs, strict=True
    ):
        assert low <= first < third <= high
    # Of a normal distribution, from samples.
    assert np.mean(points.first_quartiles) == pytest.approx(-0.67, abs=0.05)
    assert np.mean(points.third_quartiles) == pytest.approx(0.67, abs=0.05)


def test_steps_may_lie_anywhere_and_come_in_any_order() -> None:
    curve = Curve()
    for step in (2**50, 5, 2**52, 5, 0):
        curve.add(step, float(step))
    points = curve.points()
    assert points.steps == [0, 5, 2**50, 2**52]
    assert curve.last == (2**52, float(2**52))


def test_what_is_not_finite_is_a_gap_and_is_remembered() -> None:
    curve = curve_of([1.0, math.nan, 3.0, math.inf])
    points = curve.points()
    assert points.means == [1.0, None, 3.0, None]
    assert (curve.last, curve.not_finite) == ((3, 3.0), 2)
