"""The learning rate at steps with a known value."""

import pytest

from training.data import published_total_steps
from training.optim.groups import lr_factor


@pytest.mark.parametrize(
    ("step", "warmup", "total", "min_ratio", "factor"),
    [
        (0, 4, 14, 0.1, 0.0),
        (1, 4, 14, 0.1, 0.25),
        (4, 4, 14, 0.1, 1.0),
        (9, 4, 14, 0.1, 0.55),
        (14, 4, 14, 0.1, 0.1),
        (19, 4, 14, 0.1, 0.55),  # After the end the cosine rises again.
        (9, 4, 14, 0.0, 0.5),
        (14, 4, 14, 0.0, 0.0),
        (9, 4, 14, 1.0, 1.0),
        (0, 0, 10, 0.1, 1.0),  # Without warm-up, and no division by zero.
        (5, 5, 5, 0.1, 1.0),
        (50, 2000, 100, 0.1, 0.025),  # A warm-up that is longer than the run.
        (7, 4, 13, 0.0, 0.75),  # A third of the way: (1 + cos 60 deg) / 2.
    ],
)
def test_the_rate_rises_and_falls(
    step: int, warmup: int, total: int, min_ratio: float, factor: float
) -> None:
    found = lr_factor(step, warmup_steps=warmup, total_steps=total, min_ratio=min_ratio)
    assert found == pytest.approx(factor, rel=1e-12, abs=1e-15)


def test_the_published_number_of_steps_is_rounded_down() -> None:
    assert published_total_steps(20000, 1000, 1.0, 384) == 52083
    assert published_total_steps(100000, 960, 3.3, 768) == 412500
    assert published_total_steps(1, 5, 1.0, 6) == 0
