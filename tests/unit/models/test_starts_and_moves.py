"""Where latents start, and how far an update moves them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import HRMConfig, TRMConfig
from models.recurrence import Recurrence
from models.registry import build_model
from tests.unit.models import tiny

ARCHS = [{}, {"name": "trm", "mlp_t": True, "pos_encodings": "none"}]


def inner_of(name: str = "hrm", **settings: Any) -> Recurrence:
    kind = TRMConfig if name == "trm" else HRMConfig
    torch.manual_seed(0)
    config = kind.model_validate(tiny.TINY | {"forward_dtype": "float32"} | settings)
    return build_model(config, tiny.FACTS).eval().model.inner


def latents(inner: Recurrence, rows: int = 3) -> dict[str, Tensor]:
    return {name: z + 1 for name, z in inner.empty_carry(rows).items()}


def test_random_starts_are_drawn_for_each_cell_and_only_where_a_row_begins() -> None:
    inner = inner_of(init="random", init_std=0.5, hidden_size=64)
    reset = torch.tensor([True, False, True])
    first, second = (inner.reset_carry(reset, latents(inner)) for _ in range(2))
    for name, z in first.items():
        assert torch.equal(z[1], torch.ones_like(z[1]))
        assert not torch.equal(z[0], z[2])
        assert not torch.equal(z[0, 0], z[0, 1])
        assert not torch.equal(z, second[name])
        assert z[0].abs().max() <= 1.0
        # Of a normal cut at two deviations.
        assert z[0].std().item() == pytest.approx(0.5 * 0.88, rel=0.1)


@pytest.mark.parametrize("settings", ARCHS)
def test_an_update_moves_a_share_of_the_way(settings: dict[str, Any]) -> None:
    one = {"H_cycles": 1, "L_cycles": 1, **settings}
    whole, part = inner_of(**one), inner_of(**one, damping=0.75)
    examples = tiny.make_examples()
    before = latents(whole, len(examples["inputs"]))
    (full, _), (damped, _) = whole(before, examples), part(before, examples)
    # The first update; the second one sees where the first has led.
    expected = 0.25 * before["z_L"] + 0.75 * full["z_L"]
    torch.testing.assert_close(damped["z_L"], expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(damped["z_H"], full["z_H"])


@pytest.mark.parametrize("settings", ARCHS)
def test_noise_has_its_width_and_follows_the_seed(settings: dict[str, Any]) -> None:
    one = {"H_cycles": 1, "L_cycles": 1, "hidden_size": 64, **settings}
    quiet, noisy = inner_of(**one), inner_of(**one, noise=0.1)
    examples = tiny.make_examples()
    before = latents(quiet, len(examples["inputs"]))
    torch.manual_seed(5)
    moved = noisy(before, examples)[0]
    difference = moved["z_L"] - quiet(before, examples)[0]["z_L"]
    assert difference.std().item() == pytest.approx(0.1, rel=0.1)
    torch.manual_seed(5)
    again = noisy(before, examples)[0]
    assert all(torch.equal(z, again[name]) for name, z in moved.items())


def test_only_the_first_position_is_computed_alike() -> None:
    inner = inner_of(damping=0.75)
    examples = tiny.make_examples()
    before = latents(inner, len(examples["inputs"]))
    whole, first = inner(before, examples), inner(before, examples, only_first=True)
    torch.testing.assert_close(first[1], whole[1][:, :1], rtol=1e-5, atol=1e-6)
