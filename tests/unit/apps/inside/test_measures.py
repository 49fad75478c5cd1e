"""Measures on systems whose answer is known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from apps.inside.measures import FATES, fate, influence, largest_lyapunov, plane, residuals


def _turn(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]])


def _path(move: object, start: Tensor, steps: int) -> Tensor:
    states = [start]
    for _ in range(steps - 1):
        states.append(move(states[-1]))  # type: ignore[operator]
    return torch.stack(states)


def test_residuals_are_shares_of_the_later_state() -> None:
    path = torch.tensor([[[0.0, 3.0]], [[4.0, 3.0]], [[4.0, 3.0]]])
    assert residuals(path).tolist() == [[pytest.approx(0.8), 0.0]]


@pytest.mark.parametrize(
    ("name", "period", "move"),
    [
        ("fixed", 1, lambda x: 1 + 0.5 * (x - 1)),
        ("cycle", 5, lambda x: x @ _turn(2 * math.pi / 5).T),
        ("drift", 0, lambda x: x + torch.tensor([1.0, 2.0])),
        # Turns by a share of the circle that no period up to 8 closes.
        ("moving", 0, lambda x: x @ _turn(2 * math.pi * 0.382).T),
    ],
)
def test_fates(name: str, period: int, move: object) -> None:
    path = _path(move, torch.tensor([[3.0, 1.0], [0.5, -2.0]]), 48)
    found, periods = fate(path, 0.01, 8)
    assert [FATES[i] for i in found.tolist()] == [name] * 2
    assert periods.tolist() == [period] * 2


def test_a_state_that_settles_does_not_drift() -> None:
    found, _ = fate(_path(lambda x: 0.8 * x + 1, torch.zeros(1, 3), 24), 1e-4, 4)
    assert FATES[int(found)] == "moving"


def test_one_move_is_no_drift() -> None:
    found, _ = fate(_path(lambda x: x @ _turn(2.0).T, torch.ones(1, 2), 4), 0.01, 8)
    assert FATES[int(found)] == "moving"


def test_a_fate_needs_the_whole_second_half() -> None:
    path = torch.zeros(20, 1, 3) + 1
    path[14] = 2  # One jump among equal states.
    found, period = fate(path, 0.01, 4)
    assert (FATES[int(found)], int(period)) == ("moving", 0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7])
def test_exponent_of_a_line(factor: float) -> None:
    found = largest_lyapunov(lambda x: factor * x, torch.ones(3, 4).double(), 1e-3, 8)
    assert found.tolist() == pytest.approx([math.log(factor)] * 3, abs=1e-3)


def test_exponent_is_that_of_the_fastest_direction() -> None:
    scale = torch.tensor([0.1, 0.5, 1.3])
    found = largest_lyapunov(lambda x: scale * x, torch.ones(1, 3).double(), 1e-3, 32)
    assert float(found) == pytest.approx(math.log(1.3), abs=0.02)


def test_exponent_of_the_logistic_map() -> None:
    """x -> 4 x (1 - x) has the exponent ln 2."""
    start = torch.linspace(0.1, 0.4, 64).double().unsqueeze(1)
    found = largest_lyapunov(lambda x: 4 * x * (1 - x), start, 1e-7, 400)
    assert float(found.mean()) == pytest.approx(math.log(2), abs=0.02)


def test_a_path_in_a_plane_keeps_its_distances() -> None:
    torch.manual_seed(0)
    flat = torch.randn(6, 2, 2)
    basis, _ = torch.linalg.qr(torch.randn(10, 2))
    places, share = plane(flat @ basis.T)
    assert float(share) == pytest.approx(1.0, abs=1e-5)
    wanted = torch.cdist(flat.flatten(0, 1), flat.flatten(0, 1))
    found = torch.cdist(places.flatten(0, 1), places.flatten(0, 1))
    assert torch.allclose(found, wanted, atol=1e-4)
    assert places[..., 0].var() >= places[..., 1].var()
    shown, _ = plane(flat @ basis.T, (flat[:2] + 1) @ basis.T)
    moved = shown[0, 0] - places[0, 0]
    assert float(moved.norm()) == pytest.approx(2**0.5, abs=1e-4)


def test_influence_is_that_of_the_move() -> None:
    """Cell i takes the state of cell i - 1: only this one changes it."""
    states = torch.eye(4).unsqueeze(0).squeeze(0) + 1
    found = influence(lambda x: x.roll(1, 1), states, lambda x: x.softmax(-1), 0.5)
    changes = found.numpy()
    assert np.array_equal(changes > 1e-6, np.roll(np.eye(4), 1, 0) > 0)
    assert changes.max() <= 1
