"""Damped and noisy updates of a latent."""

from typing import Any

import pytest
import torch

from models.recurrence import Recurrence
from tests.unit.models import tiny
from tests.unit.models.tiny import ARCHS, latents, small_inner


def damping(arch: dict[str, Any], **settings: float) -> Recurrence:
    return small_inner(**arch, techniques={"damped_noise": settings})


@pytest.mark.parametrize("settings", ARCHS)
def test_an_update_moves_a_share_of_the_way(settings: dict[str, Any]) -> None:
    one = {"H_cycles": 1, "L_cycles": 1, **settings}
    whole, part = small_inner(**one), damping(one, damping=0.75, noise=0.0)
    examples = tiny.make_examples()
    before = latents(whole, len(examples["inputs"]))
    (full, _), (damped, _) = whole(before, examples), part(before, examples)
    # The first update; the second one starts from its result.
    expected = 0.25 * before["z_L"] + 0.75 * full["z_L"]
    torch.testing.assert_close(damped["z_L"], expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(damped["z_H"], full["z_H"])


@pytest.mark.parametrize("settings", ARCHS)
def test_noise_has_its_width_and_follows_the_seed(settings: dict[str, Any]) -> None:
    one = {"H_cycles": 1, "L_cycles": 1, "hidden_size": 64, **settings}
    quiet, noisy = small_inner(**one), damping(one, damping=1.0, noise=0.1)
    examples = tiny.make_examples()
    before = latents(quiet, len(examples["inputs"]))
    torch.manual_seed(5)
    moved = noisy(before, examples)[0]
    difference = moved["z_L"] - quiet(before, examples)[0]["z_L"]
    assert difference.std().item() == pytest.approx(0.1, rel=0.1)
    torch.manual_seed(5)
    again = noisy(before, examples)[0]
    assert all(torch.equal(z, again[name]) for name, z in moved.items())
