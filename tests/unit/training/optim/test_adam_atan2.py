"""AdamATan2 against the published formulas, one number at a time in float64."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runtime.ranks import Ranks
from training.checkpoint.tensors import optimizer_tensors, restore_optimizer
from training.config.schema import OptimizerConfig, ParamGroupConfig
from training.optim import adam_atan2, kernels
from training.optim.adam_atan2 import AdamATan2
from training.optim.ema import WeightAverage
from training.optim.groups import GradientBucket, assign_groups, build_optimizer, update_by


@pytest.fixture(autouse=True, params=["compiled pass", "torch"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    least = 0 if request.param == "compiled pass" else 2**20
    monkeypatch.setattr(adam_atan2, "MIN_FOR_KERNEL", least)


class Twin:
    """The published formulas on plain Python floats."""

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


# The compiled kernel on flat buffers


class Flat:
    """A model in two groups, one of them clipped, with biases that do not decay."""

    RATE = 0.9

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
        first = ParamGroupConfig(params=["0.*"], lr=0.03, max_grad_norm=0.5, decay_vectors=False)
        settings = {"first": first, "rest": ParamGroupConfig(params=["[12].*"])}
        self.groups = assign_groups(self.model.named_parameters(), settings, 0.1, 0.3)
        optimizer = build_optimizer(OptimizerConfig(), self.groups, (0.8, 0.95))
        assert isinstance(optimizer, AdamATan2)
        self.optimizer = optimizer
        self.bucket = GradientBucket(self.groups, torch.device("cpu"))
        self.average = WeightAverage(self.model, self.RATE)
        self.update = update_by(optimizer, self.bucket, self.average)

    def step(self, seed: int, *, skip: bool = False) -> Tensor:
        """Make a step on random gradients. Return the norms of the groups."""
        generator = torch.Generator().manual_seed(seed)
        self.bucket.zero_()
        for p in self.model.parameters():
            assert p.grad is not None
            p.grad.copy_(torch.randn(p.shape, generator=generator))
        norms, *_ = self.bucket.reduce(Ranks("cpu"), finite=torch.tensor(True), stop=False)
        if skip:
            self.bucket.flat.fill_(torch.nan)
        self.update(norms, torch.tensor(skip), 1.0)
        return norms

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors that a step changes."""
        state = optimizer_tensors(self.optimizer, self.groups)
        average = {f"average {name}": t for name, t in self.average.tensors().items()}
        every = dict(self.model.state_dict()) | state | average
        return {name: tensor.clone() for name, tensor in every.items()}


def test_the_pass_clips_decays_and_averages_as_the_twin() -> None:
    flat = Flat()
    twins: dict[str, list[list[Any]]] = {
        name: [[Twin(value), value] for value in p.flatten().tolist()]
        for name, p in flat.model.named_parameters()
    }
    for step in range(10):
        norms = flat.step(step)
        assert norms[0] > 0.5  # It is clipped,
        for name, p in flat.model.named_parameters():
            assert p.grad is not None
            is_first = name.startswith("0.")
            factor = 0.5 / (norms[0].item() + 1e-6) if is_first else 1.0
            decay = 0.0 if name == "0.bias" else 0.3
            for both, g in zip(twins[name], p.grad.flatten().tolist(), strict=True):
                twin, average = both
                twin.step(g * factor, 0.03 if is_first else 0.1, decay, 0.8, 0.95)
                both[1] = flat.RATE * average + (1 - flat.RATE) * twin.p
    assert flat.bucket.group_slices[0].norm() > 0.5  # though its gradients are not written.
    averages = flat.average.tensors()
    for name, p in flat.model.named_parameters():
        weights = torch.tensor([twin.p for twin, _ in twins[name]])
        means = torch.tensor([mean for _, mean in twins[name]])
        for found, expected in ((p.detach(), weights), (averages[name], means)):
            torch.testing.assert_close(found.flatten(), expected, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_skipped_step_changes_no_bit(steps_before: int) -> None:
    flat, twin = Flat(), Flat()
    for each in (flat, twin):
        for step in range(steps_before):
            each.step(step)
    flat.step(9, skip=True)
    for each in (flat, twin):
        each.step(steps_before)
    expected = twin.tensors()
    for name, tensor in flat.tensors().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_resumed_run_has_the_bits_of_one_that_went_on() -> None:
    flat, resumed = Flat(), Flat()
    for step in range(3):
        flat.step(step)
    saved, average = optimizer_tensors(flat.optimizer, flat.groups), flat.average.tensors()
    assert {name.rpartition(".")[2] for name in saved} == {"step", "exp_avg", "exp_avg_sq"}
    assert all(saved[f"{n}.exp_avg"].shape == p.shape for n, p in flat.model.named_parameters())
    resumed.model.load_state_dict({n: t.clone() for n, t in flat.model.state_dict().items()})
    restore_optimizer(resumed.optimizer, resumed.groups, saved)
    resumed.average.restore({name: t.clone() for name, t in average.items()}, Path("ema"))
    for step in range(3, 6):
        flat.step(step)
        resumed.step(step)
    expected = flat.tensors()
    for name, tensor in resumed.tensors().items():
        assert torch.equal(tensor, expected[name]), name


def test_bits_do_not_depend_on_threads() -> None:
    size = 2 * kernels.PIECE + 37
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator) for _ in range(5)]
    numbers = adam_atan2.StepNumbers(*map(np.float32, (0.7, 0.1, 0.05, 1.2, 0.99, 0.01, 0.1)))
    start[3].abs_()
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            p, g, m, v, average = tensors = [tensor.clone() for tensor in start]
            kernels.step_(kernels.arrays_of(p, g, m, v, average), numbers)
            results.append(tensors)
    finally:
        torch.set_num_threads(threads)
    assert not torch.equal(results[0][0][-1], start[0][-1])
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            assert torch.equal(actual, expected)


def test_the_angle_is_right_at_all_sizes() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.randint(-12, 12, (2, 5000), generator=generator)
    m, s = torch.randn(2, 5000, generator=generator) * sizes
    s = s.abs()
    m[:3], s[:3] = torch.tensor([0.0, 0.0, -1.0]), torch.tensor([0.0, 1.0, 0.0])
    p, v = torch.zeros(5000), s.square()
    one, zero = np.float32(1), np.float32(0)
    numbers = adam_atan2.StepNumbers(one, zero, zero, one, zero, -one, zero)
    kernels.step_(kernels.arrays_of(p, torch.zeros(5000), m, v, None), numbers)
    expected = torch.atan2(m.double(), v.double().sqrt())
    # At most eight roundings: root, ratio, the polynomial, and the operations after it.
    torch.testing.assert_close(p.double(), expected, rtol=8 * 2**-24, atol=1e-38)


def test_a_subclass_is_clipped_and_averaged_around_its_step() -> None:
    class Slower(AdamATan2):
        def step(self) -> None:  # type: ignore[override]
            super().step()

    p, bucket = nn.Parameter(torch.ones(3)), GradientBucket([], torch.device("cpu"))
    called = update_by(Slower([p]), bucket, None)
    assert update_by(AdamATan2([p]), bucket, None).func is AdamATan2.fused_update  # type: ignore[attr-defined]
    assert called.func is not AdamATan2.fused_update  # type: ignore[attr-defined]
