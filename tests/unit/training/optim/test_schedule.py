"""The learning rate against the published formula, written out."""

import math

import pytest

from training.optim.schedule import lr_factor, published_total_steps


def published_rate(step: int, base: float, warmup: int, total: int, min_ratio: float) -> float:
    """The formula: linear up to `base`, then half a cosine down to min_ratio * base."""
    if step < warmup:
        return base * step / max(1, warmup)
    progress = (step - warmup) / max(1, total - warmup)
    half_cosine = 0.5 * (1 + math.cos(math.pi * 0.5 * 2.0 * progress))
    return base * (min_ratio + max(0.0, (1 - min_ratio) * half_cosine))


@pytest.mark.parametrize("min_ratio", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("warmup", "total"), [(0, 10), (4, 14), (2000, 100), (5, 5), (1, 1000)])
def test_factor_equals_the_published_formula(warmup: int, total: int, min_ratio: float) -> None:
    for step in [*range(1, 30), 99, 100, 999, 1000, 1500, 2000, 2500]:
        factor = lr_factor(step, warmup_steps=warmup, total_steps=total, min_ratio=min_ratio)
        expected = published_rate(step, 3e-4, warmup, total, min_ratio)
        assert 3e-4 * factor == pytest.approx(expected, rel=1e-12, abs=1e-18), step


def test_the_corners() -> None:
    def at(step: int, warmup: int = 4) -> float:
        return lr_factor(step, warmup_steps=warmup, total_steps=14, min_ratio=0.1)

    assert at(0) == 0
    assert at(1) == 0.25
    assert at(4) == 1
    assert at(9) == pytest.approx(0.55)
    assert at(14) == pytest.approx(0.1)
    # Past the end the cosine turns up again.
    assert at(19) == pytest.approx(0.55)
    # Without warm-up the first step has nearly the full rate, and no division by zero.
    assert at(0, warmup=0) == 1
    assert 0.98 < at(1, warmup=0) < 1


def test_the_published_number_of_steps_is_rounded_down() -> None:
    assert published_total_steps(20000, 1000, 1.0, 384) == 52083
    assert published_total_steps(100000, 960, 3.3, 768) == 412500
    assert published_total_steps(1, 5, 1.0, 6) == 0
