"""The learning rate at steps with a known value."""

import math

import numpy as np
import pytest

from runtime.errors import ConfigError
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.data import published_total_steps
from training.optim.groups import lr_factor
from training.optim.schedules import LR_SCHEDULES


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


def test_the_cosine_keeps_the_bits_of_earlier_versions() -> None:
    rng = np.random.default_rng(0)
    for ratio in (0.0, 0.1, 1 / 3, 1.0, *rng.random(20)):
        for step in map(int, rng.integers(7, 3000, 50)):
            cosine = math.cos(math.pi * ((step - 7) / max(1, 2000 - 7)))
            expected = ratio + max(0.0, (1 - ratio) * 0.5 * (1 + cosine))
            assert lr_factor(step, warmup_steps=7, total_steps=2000, min_ratio=ratio) == expected


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", {2: 0.5, 4: 1.0, 9: 0.55, 14: 0.1, 19: 0.1}),
        ("constant", {2: 0.5, 4: 1.0, 9: 1.0, 14: 1.0, 19: 1.0}),
        # 0.2 of 14 steps are 3.
        ("wsd", {2: 0.5, 4: 1.0, 11: 1.0, 12: 0.7, 13: 0.4, 14: 0.1, 19: 0.1}),
        # The fall is longer than the time after the warm-up.
        ("wsd lr_schedule.decay_share=1.0", {2: 0.5, 4: 1.0, 9: 0.55, 14: 0.1}),
    ],
)
def test_other_schedules_pass_known_points(schedule: str, factors: dict[int, float]) -> None:
    settings = f"data_path=x lr_min_ratio=0.1 lr_schedule={schedule}".split()
    chosen = load_config(TrainConfig, "cfg_pretrain", settings).lr_schedule
    given = {"warmup_steps": 4, "total_steps": 14, "min_ratio": 0.1, "schedule": chosen}
    found = {step: lr_factor(step, **given) for step in factors}
    assert found == pytest.approx(factors, rel=1e-12)


@pytest.mark.parametrize("name", list(LR_SCHEDULES))
def test_no_schedule_divides_by_zero(name: str) -> None:
    schedule = LR_SCHEDULES[name].schema()
    for warmup, total in ((0, 0), (5, 5), (5, 3)):
        factor = lr_factor(
            5, warmup_steps=warmup, total_steps=total, min_ratio=0.5, schedule=schedule
        )
        assert 0.5 <= factor <= 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("lr_schedule=linera", "did you mean lr_schedule=linear?"),
        ("lr_schedule.name=wsb", "lr_schedule.name=wsb: .* cosine, wsd, .*did you mean wsd?"),
        ("lr_schedule=wsd lr_schedule.decay_share=0", "decay_share=0: input should be greater"),
        (
            "lr_schedule=wsd lr_min_ratio=1",
            "lr_schedule=wsd has no effect with lr_min_ratio=1: set",
        ),
        ("lr_schedule.decay_share=0.1", "the chosen files have no lr_schedule.decay_share"),
    ],
)
def test_a_wrong_schedule_is_refused(settings: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(TrainConfig, "cfg_pretrain", ["data_path=x", *settings.split()])


def test_the_published_number_of_steps_is_rounded_down() -> None:
    assert published_total_steps(20000, 1000, 1.0, 384) == 52083
    assert published_total_steps(100000, 960, 3.3, 768) == 412500
    assert published_total_steps(1, 5, 1.0, 6) == 0
