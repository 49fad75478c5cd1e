"""AdamATan2 against the published formulas, one number at a time in float64."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from training.optim.adam_atan2 import AdamATan2


class Twin:
    """The formulas as they stand, on plain Python floats."""

    def __init__(self, value: float) -> None:
        self.p, self.m, self.v, self.t = value, 0.0, 0.0, 0

    def step(self, g: float, lr: float, wd: float, b1: float, b2: float) -> None:
        self.t += 1
        self.p *= 1 - lr * wd
        self.m += (1 - b1) * (g - self.m)
        self.v += (1 - b2) * (g * g - self.v)
        root = math.sqrt(self.v) / math.sqrt(1 - b2**self.t)
        self.p -= lr / (1 - b1**self.t) * math.atan2(self.m, root)


def random_parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def set_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    """Random gradients of very different sizes, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        sizes = 10.0 ** torch.randint(-6, 4, parameter.shape, generator=generator)
        grad = sizes * torch.randn(parameter.shape, generator=generator)
        grad[torch.rand(parameter.shape, generator=generator) < 0.1] = 0.0
        parameter.grad = grad


def test_twenty_steps_equal_the_twin() -> None:
    parameters = random_parameters((3, 4), (5,))
    groups: list[dict[str, Any]] = [
        {"params": parameters[:1], "lr": 1e-2, "weight_decay": 0.3},
        {"params": parameters[1:], "lr": 3e-3, "weight_decay": 0.0, "betas": (0.8, 0.99)},
    ]
    optimizer = AdamATan2(groups)
    twins = [[Twin(value) for value in p.flatten().tolist()] for p in parameters]
    for step in range(20):
        set_gradients(parameters, step)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        for p, own, group in zip(parameters, twins, optimizer.param_groups, strict=True):
            assert p.grad is not None
            b1, b2 = group["betas"]
            for twin, g in zip(own, p.grad.flatten().tolist(), strict=True):
                twin.step(g, group["lr"], group["weight_decay"], b1, b2)
        optimizer.step()
    for p, own in zip(parameters, twins, strict=True):
        expected = torch.tensor([twin.p for twin in own]).view_as(p)
        torch.testing.assert_close(p.detach(), expected, rtol=2e-6, atol=2e-7)
        state = optimizer.state[p]
        assert state["step"].item() == 20
        averages = torch.tensor([twin.m for twin in own]).view_as(p)
        torch.testing.assert_close(state["exp_avg"], averages, rtol=1e-4, atol=1e-9)


def test_parameters_without_gradient_stay() -> None:
    parameters = random_parameters((3,), (4,))
    before = parameters[1].detach().clone()
    optimizer = AdamATan2(parameters, lr=0.1)
    set_gradients(parameters[:1], 0)
    optimizer.step()
    assert torch.equal(parameters[1], before)
    assert not optimizer.state[parameters[1]]


def test_settings_out_of_range_are_refused() -> None:
    parameters = random_parameters((2,))
    settings: list[Any] = [{"lr": -1.0}, {"weight_decay": -0.1}, {"betas": (0.9, 1.0)}]
    for wrong in settings:
        with pytest.raises(ValueError, match="AdamATan2 needs lr >= 0"):
            AdamATan2(parameters, **wrong)
    with pytest.raises(ValueError, match="closure"):
        AdamATan2(parameters).step(lambda: 0.0)
