"""The moving average of the weights."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from runtime.errors import CheckpointError
from training.optim.ema import WeightAverage

GO, SKIP = torch.tensor(False), torch.tensor(True)


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_it_is_the_published_average(model: nn.Module) -> None:
    average = WeightAverage(model, rate=0.9)
    expected = {name: value.double() for name, value in weights(model).items()}
    for _ in range(5):
        change(model)
        average.update(GO)
        for name, value in weights(model).items():
            expected[name] = 0.9 * expected[name] + (1 - 0.9) * value.double()
    found = average.tensors()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=0, atol=1e-6)


def test_what_an_optimizer_has_averaged_is_left_to_it(model: nn.Sequential) -> None:
    average = WeightAverage(model, rate=0.9)
    before = {name: value.clone() for name, value in average.tensors().items()}
    change(model)
    average.update(GO, without=set(model[1].parameters()))
    moved = {name for name, value in average.tensors().items() if not value.equal(before[name])}
    assert moved == {"0.weight", "0.bias"}


def test_a_step_that_is_skipped_changes_no_bit(model: nn.Module) -> None:
    average = WeightAverage(model, rate=0.9)
    change(model)
    average.update(GO)
    before = {name: value.clone() for name, value in average.tensors().items()}
    change(model)
    with torch.no_grad():
        next(model.parameters())[0] = float("nan")
    average.update(SKIP)
    assert all(torch.equal(average.tensors()[name], value) for name, value in before.items())


def test_the_model_computes_with_it_and_gets_its_weights_back(model: nn.Module) -> None:
    average = WeightAverage(model, rate=0.5)
    change(model)
    average.update(GO)
    last = weights(model)
    with contextlib.suppress(KeyboardInterrupt), average.in_place_of_weights():
        inside = weights(model)
        raise KeyboardInterrupt
    for name, value in weights(model).items():
        assert torch.equal(value, last[name])
        assert torch.equal(inside[name], average.tensors()[name])
        assert not torch.equal(inside[name], last[name])


@pytest.mark.parametrize("damage", ["missing", "unknown", "of another shape"])
def test_it_is_restored_and_what_does_not_fit_is_named(model: nn.Module, damage: str) -> None:
    average = WeightAverage(model, rate=0.9)
    tensors = {name: value + 1 for name, value in average.tensors().items()}
    average.restore(tensors, Path("a/ema"))
    assert all(torch.equal(average.tensors()[name], value) for name, value in tensors.items())
    if damage == "missing":
        del tensors["0.weight"]
    else:
        tensors["more" if damage == "unknown" else "0.weight"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"a/ema does not fit the model: (0\.weight|more)"):
        average.restore(tensors, Path("a/ema"))
