"""What a run is made of: to tensors and back, for any number of ranks."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.carry import ACTCarry
from runtime.errors import CheckpointError
from runtime.ranks import Ranks
from training.checkpoint.environment import environment, environment_changes
from training.checkpoint.tensors import (
    gather_carry,
    gather_rng,
    load_carry,
    load_tensors,
    model_tensors,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
    restore_rng,
    tensor_writer,
)
from training.config.schema import OptimizerConfig, ParamGroupConfig
from training.optim.groups import ParamGroup, assign_groups, build_optimizer


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return Ranks("cpu")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name])
        for name in first
    )


# Weights


def test_weights_and_buffers_come_back_by_name(tmp_path: Path) -> None:
    model = make_model()
    tensor_writer(model_tensors(model))(tmp_path / "m")
    other = make_model()
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    restore_model(other, load_tensors(tmp_path / "m"), tmp_path / "m")
    assert equal(model_tensors(other), model_tensors(model))
    assert "1.running_mean" in model_tensors(model)


def test_names_are_those_of_the_model_that_was_not_compiled() -> None:
    model = make_model()
    compiled = SimpleNamespace(
        state_dict=lambda: {f"_orig_mod.{name}": v for name, v in model.state_dict().items()}
    )
    assert equal(model_tensors(compiled), model_tensors(model))  # type: ignore[arg-type]


def test_everything_that_does_not_fit_is_listed() -> None:
    model = make_model()
    tensors = model_tensors(model)
    del tensors["0.bias"]
    tensors["extra"] = torch.zeros(1)
    tensors["2.weight"] = torch.zeros(2, 5)
    before = model_tensors(make_model())
    with pytest.raises(CheckpointError) as caught:
        restore_model(model, tensors, Path("step_1/model.safetensors"))
    assert str(caught.value) == (
        "step_1/model.safetensors does not fit the model: 0.bias is missing; 2.weight has shape "
        "(2, 5), the model has (2, 4); extra is unknown to this model"
    )
    assert equal(model_tensors(model), before)


def test_files_that_are_not_safetensors_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match=str(tmp_path / "x")):
        load_tensors(tmp_path / "x")
    with pytest.raises(CheckpointError, match=str(tmp_path / "missing")):
        load_tensors(tmp_path / "missing")


def test_a_disk_that_refuses_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        tensor_writer({"a": torch.zeros(2)})(tmp_path / "nowhere" / "x")


# Optimizers


OPTIMIZERS = ["adam_atan2", "adamw"]


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer, list[ParamGroup]]:
    model = make_model()
    configs = {
        "weights": ParamGroupConfig(params=["*.weight"]),
        "biases": ParamGroupConfig(params=["*.bias"], lr=0.1, weight_decay=0.0),
    }
    groups = assign_groups(model.named_parameters(), configs, lr=0.01, weight_decay=0.1)
    config = OptimizerConfig.model_validate({"name": name, "groups": configs})
    return model, build_optimizer(config, groups, (0.9, 0.95)), groups


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        for i, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(100 * step + i)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_optimizer_goes_on_in_the_same_bits(tmp_path: Path, name: str) -> None:
    model, optimizer, groups = build(name)
    take_steps(model, optimizer, 0, 3)
    tensor_writer(optimizer_tensors(optimizer, groups))(tmp_path / "o")
    tensor_writer(model_tensors(model))(tmp_path / "m")
    take_steps(model, optimizer, 3, 6)

    other, other_optimizer, other_groups = build(name)
    restore_model(other, load_tensors(tmp_path / "m"), tmp_path / "m")
    restore_optimizer(other_optimizer, other_groups, load_tensors(tmp_path / "o"))
    take_steps(other, other_optimizer, 3, 6)
    assert equal(model_tensors(other), model_tensors(model))
    assert equal(
        optimizer_tensors(other_optimizer, other_groups), optimizer_tensors(optimizer, groups)
    )


def test_before_the_first_step_there_is_nothing_to_restore() -> None:
    _, optimizer, groups = build("adam_atan2")
    assert optimizer_tensors(optimizer, groups) == {}
    restore_optimizer(optimizer, groups, {})
    assert optimizer_tensors(optimizer, groups) == {}


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda t: [t.pop(k) for k in list(t) if k.startswith("0.w")], "0.weight is missing"),
        (lambda t: t.update({"9.weight.step": torch.zeros(())}), "unknown parameters: 9.weight"),
        (
            lambda t: t.update({"0.weight.exp_avg": torch.zeros(3)}),
            r"0.weight.exp_avg has shape \(3,\), not \(4, 3\)",
        ),
    ],
)
def test_an_optimizer_state_that_does_not_fit_is_refused(
    change: Callable[[dict[str, Tensor]], Any], shown: str
) -> None:
    model, optimizer, groups = build("adam_atan2")
    take_steps(model, optimizer, 0, 1)
    tensors = optimizer_tensors(optimizer, groups)
    change(tensors)
    with pytest.raises(CheckpointError, match=shown):
        restore_optimizer(optimizer, groups, tensors)


# The carry


ROWS, WIDTH = 8, 3


def make_carry(rows: int = ROWS, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> ACTCarry:
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(2, rows, 4, WIDTH, generator=generator).to(dtype)
    return ACTCarry(
        {"z_H": latent[0], "z_L": latent[1]},
        torch.arange(rows, dtype=torch.int32),
        torch.arange(rows) % 3 == 0,
        {"inputs": torch.arange(rows * 5, dtype=torch.int32).view(rows, 5)},
    )


def of_rank(rank: int, world_size: int) -> Ranks:
    """Say what a rank would read, without its process."""
    place = SimpleNamespace(rank=rank, world_size=world_size, device=torch.device("cpu"))
    return place  # type: ignore[return-value]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_rank_finds_its_rows_of_the_carry(
    tmp_path: Path, ranks: Ranks, world_size: int
) -> None:
    carry = make_carry()
    tensor_writer(gather_carry(carry, ranks))(tmp_path / "c")
    local = ROWS // world_size
    for rank in range(world_size):
        template = make_carry(local, seed=9)
        own = load_carry(tmp_path / "c", of_rank(rank, world_size), template)
        assert own is not None
        rows = slice(rank * local, (rank + 1) * local)
        expected = {name: value[rows] for name, value in carry.tensors().items()}
        assert equal(own.tensors(), expected)


@pytest.mark.parametrize(
    "template",
    [make_carry(rows=4), make_carry(dtype=torch.float32)],
    ids=["another batch size", "another forward dtype"],
)
def test_a_carry_of_another_run_is_not_used(
    tmp_path: Path, ranks: Ranks, template: ACTCarry
) -> None:
    tensor_writer(gather_carry(make_carry(), ranks))(tmp_path / "c")
    assert load_carry(tmp_path / "c", of_rank(0, 1), template) is None


def test_a_carry_with_other_parts_is_not_used(tmp_path: Path) -> None:
    tensors = {name: value.contiguous() for name, value in make_carry().tensors().items()}
    del tensors["steps"]
    save_file(tensors, tmp_path / "c")
    assert load_carry(tmp_path / "c", of_rank(0, 1), make_carry()) is None


def test_a_carry_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match=str(tmp_path / "c")):
        load_carry(tmp_path / "c", of_rank(0, 1), make_carry())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list maps")
def test_nothing_that_trains_on_is_mapped_from_a_checkpoint(tmp_path: Path, ranks: Ranks) -> None:
    model, optimizer, groups = build("adam_atan2")
    take_steps(model, optimizer, 0, 1)
    tensor_writer(optimizer_tensors(optimizer, groups))(tmp_path / "o")
    tensor_writer(gather_carry(make_carry(), ranks))(tmp_path / "c")
    restore_optimizer(optimizer, groups, load_tensors(tmp_path / "o"))
    carry = load_carry(tmp_path / "c", of_rank(0, 1), make_carry())
    assert carry is not None
    # A deleted file would stay on the disk, and one that is cut would end the process.
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


# Random states and the environment


def test_random_states_come_back(tmp_path: Path, ranks: Ranks) -> None:
    torch.manual_seed(3)
    tensor_writer(gather_rng(ranks))(tmp_path / "r")
    expected = torch.rand(4)
    torch.manual_seed(4)
    restore_rng(load_tensors(tmp_path / "r"), ranks)
    assert torch.equal(torch.rand(4), expected)


def test_a_rank_that_was_not_there_keeps_its_random_state(ranks: Ranks) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    restore_rng({"rank5.cpu": torch.get_rng_state()}, ranks)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("rank", [0, 3])
def test_one_random_state_fits_any_rank(rank: int, ranks: Ranks) -> None:
    torch.manual_seed(3)
    states = gather_rng(ranks, same_on_all=True)
    expected = torch.rand(4)
    torch.manual_seed(4)
    restore_rng(states, of_rank(rank, 4))
    assert torch.equal(torch.rand(4), expected)


def test_what_changes_bits_is_named(ranks: Ranks) -> None:
    saved = environment(ranks, "bfloat16", compiled=False)
    assert environment_changes(saved, environment(ranks, "bfloat16", compiled=False)) == []
    assert environment_changes(saved, environment(ranks, "float32", compiled=True)) == [
        "compiled: False -> True",
        "forward_dtype: bfloat16 -> float32",
    ]
    older = saved | {"torch": "2.0", "python": "3.9", "numpy": "1.0", "world_size": 4}
    assert environment_changes(older, saved) == [
        f"torch: 2.0 -> {torch.__version__}",
        "world_size: 4 -> 1",
    ]
    assert environment_changes(older, saved, any_world_size=True) == [
        f"torch: 2.0 -> {torch.__version__}"
    ]
