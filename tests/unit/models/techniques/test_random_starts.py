"""Latents that start at random numbers."""

import pytest
import torch

from tests.unit.models.tiny import latents, small_inner


def test_random_starts_are_drawn_for_each_cell_and_only_where_a_row_begins() -> None:
    inner = small_inner(hidden_size=64, techniques={"random_starts": {"std": 0.5}})
    reset = torch.tensor([True, False, True])
    first, second = (inner.reset_carry(reset, latents(inner)) for _ in range(2))
    for name, z in first.items():
        assert torch.equal(z[1], torch.ones_like(z[1]))
        assert not torch.equal(z[0], z[2])
        assert not torch.equal(z[0, 0], z[0, 1])
        assert not torch.equal(z, second[name])
        assert z[0].abs().max() <= 1.0
        # The standard deviation of a normal distribution cut at two deviations.
        assert z[0].std().item() == pytest.approx(0.5 * 0.88, rel=0.1)
