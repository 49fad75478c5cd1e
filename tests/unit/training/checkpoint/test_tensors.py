"""The parts of a run as tensors: save and restore them, on any number of ranks."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from models.act import ACTCarry
from runtime.errors import CheckpointError
from runtime.ranks import Ranks
from training.checkpoint import tensors as tensors_module
from training.checkpoint.background import BackgroundWrite
from training.checkpoint.environment import (
    NUMERICS,
    environment,
    environment_changes,
    saved_compiling,
)
from training.checkpoint.tensors import load_tensors, model_tensors, optimizer_tensors
from training.config.schema import OptimizerConfig, ParamGroupConfig
from training.optim.ema import WeightAverage
from training.optim.groups import ParamGroup, assign_groups, build_optimizer

ONE = Ranks("cpu")
assert_equal = partial(assert_close, rtol=0, atol=0)


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    tensors_module.write_tensors(tensors, path)
    return path


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


# Weights


def test_weights_and_buffers_come_back_by_the_names_of_the_uncompiled_model(tmp_path: Path) -> None:
    model, other = make_model(), make_model()
    prefixed = {f"_orig_mod.{name}": value for name, value in model.state_dict().items()}
    compiled: Any = SimpleNamespace(state_dict=lambda: prefixed)
    path = write(tmp_path / "m", model_tensors(compiled))
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    tensors_module.restore_model(other, load_tensors(path), path)
    assert_equal(model_tensors(other), model_tensors(model))
    assert "1.running_mean" in model_tensors(model)


def test_all_keys_and_shapes_that_do_not_fit_are_listed() -> None:
    model = make_model()
    tensors = model_tensors(model)
    del tensors["0.bias"]
    tensors |= {"extra": torch.zeros(1), "2.weight": torch.zeros(2, 5)}
    with pytest.raises(CheckpointError) as caught:
        tensors_module.restore_model(model, tensors, Path("step_1/model.safetensors"))
    assert str(caught.value) == (
        "step_1/model.safetensors does not fit the model: 0.bias is missing; 2.weight has shape "
        "(2, 5), the model has (2, 4); extra is unknown to this model"
    )
    assert_equal(model_tensors(model), model_tensors(make_model()))


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff" * 40)
    for name in ("x", "missing"):
        with pytest.raises(CheckpointError, match=str(tmp_path / name)):
            load_tensors(tmp_path / name)
    with pytest.raises(CheckpointError, match=str(tmp_path / "x")):
        tensors_module.load_carry(tmp_path / "x", of_rank(0, 1), make_carry())
    with pytest.raises(OSError, match="No such file"):
        write(tmp_path / "nowhere" / "x", {"a": torch.zeros(2)})


# Optimizers


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


@pytest.mark.parametrize("name", ["adam_atan2", "adamw"])
def test_a_copy_is_not_changed_by_later_steps(name: str) -> None:
    model, optimizer, groups = build(name)
    average = WeightAverage(model, 0.5)

    writing = BackgroundWrite(Ranks("cpu"))

    def state() -> dict[str, Tensor]:
        kept = {f"average {name}": value for name, value in average.tensors().items()}
        weights = model_tensors(model)
        weights = {name: weights[name] for name, _ in model.named_parameters()}
        return weights | kept | optimizer_tensors(optimizer, groups)

    take_steps(model, optimizer, 0, 1)
    copied = writing.copied({"all": state()})["all"]
    take_steps(model, optimizer, 1, 2)
    average.update(torch.tensor(False))
    assert copied.keys() == state().keys()
    # Counters of steps too, which some optimizers keep on the CPU.
    assert [key for key, value in state().items() if value.equal(copied[key])] == []
    memory = {key: value.data_ptr() for key, value in copied.items()}
    again = writing.copied({"all": state()})["all"]
    assert {key: value.data_ptr() for key, value in again.items()} == memory
    assert all(value.equal(again[key]) for key, value in state().items())


@pytest.mark.parametrize("name", ["adam_atan2", "adamw"])
def test_a_restored_optimizer_goes_on_in_the_same_bits(tmp_path: Path, name: str) -> None:
    model, optimizer, groups = build(name)
    assert optimizer_tensors(optimizer, groups) == {}
    tensors_module.restore_optimizer(optimizer, groups, {})
    assert optimizer_tensors(optimizer, groups) == {}
    take_steps(model, optimizer, 0, 3)
    saved = write(tmp_path / "o", optimizer_tensors(optimizer, groups))
    weights = write(tmp_path / "m", model_tensors(model))
    take_steps(model, optimizer, 3, 6)

    other, other_optimizer, other_groups = build(name)
    tensors_module.restore_model(other, load_tensors(weights), weights)
    tensors_module.restore_optimizer(other_optimizer, other_groups, load_tensors(saved))
    take_steps(other, other_optimizer, 3, 6)
    assert_equal(model_tensors(other), model_tensors(model))
    found = optimizer_tensors(other_optimizer, other_groups)
    assert_equal(found, optimizer_tensors(optimizer, groups))


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
        tensors_module.restore_optimizer(optimizer, groups, tensors)


class ByRow(torch.optim.Optimizer):
    """One that a plug-in may have: its states do not have the shape of the weight."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(step=torch.zeros(1), rows=torch.zeros(len(p)))
            state["step"] += 1
            state["rows"] += p.grad.view(len(p), -1).square().sum(1)
            p.sub_(p.grad, alpha=0.01)


def test_states_of_any_shape_come_back_and_must_fit_present_ones() -> None:
    model, _, groups = build("adamw")
    optimizer, other = ByRow(model.parameters()), ByRow(model.parameters())
    take_steps(model, optimizer, 0, 2)
    saved = optimizer_tensors(optimizer, groups)
    assert {tuple(saved[f"0.weight.{name}"].shape) for name in ("step", "rows")} == {(1,), (4,)}
    tensors_module.restore_optimizer(other, groups, saved)
    assert_equal(optimizer_tensors(other, groups), saved)
    saved["0.weight.rows"] = torch.zeros(3)
    with pytest.raises(CheckpointError, match=r"0.weight.rows has shape \(3,\), not \(4,\)"):
        tensors_module.restore_optimizer(other, groups, saved)


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


def of_rank(rank: int, world_size: int) -> Any:
    """Return a stand-in for one of several ranks, without its process."""
    return SimpleNamespace(rank=rank, world_size=world_size, device=torch.device("cpu"))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_rank_finds_its_rows_of_the_carry(tmp_path: Path, world_size: int) -> None:
    carry = make_carry()
    path = write(tmp_path / "c", tensors_module.gather_carry(carry, ONE))
    local = ROWS // world_size
    for rank in range(world_size):
        template = make_carry(local, seed=9)
        own = tensors_module.load_carry(path, of_rank(rank, world_size), template)
        assert own is not None
        rows = slice(rank * local, (rank + 1) * local)
        assert_equal(own.tensors(), {name: v[rows] for name, v in carry.tensors().items()})


def test_a_carry_of_another_run_is_not_used(tmp_path: Path) -> None:
    tensors = {name: value.contiguous() for name, value in make_carry().tensors().items()}
    save_file(tensors, tmp_path / "c")
    for template in (make_carry(rows=4), make_carry(dtype=torch.float32)):
        assert tensors_module.load_carry(tmp_path / "c", of_rank(0, 1), template) is None
    del tensors["steps"]
    save_file(tensors, tmp_path / "c")
    assert tensors_module.load_carry(tmp_path / "c", of_rank(0, 1), make_carry()) is None


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list maps")
def test_restored_tensors_are_not_mapped_from_the_checkpoint(tmp_path: Path) -> None:
    model, optimizer, groups = build("adam_atan2")
    take_steps(model, optimizer, 0, 1)
    saved = write(tmp_path / "o", optimizer_tensors(optimizer, groups))
    path = write(tmp_path / "c", tensors_module.gather_carry(make_carry(), ONE))
    tensors_module.restore_optimizer(optimizer, groups, load_tensors(saved))
    carry = tensors_module.load_carry(path, of_rank(0, 1), make_carry())
    assert carry is not None
    # A mapped file stays on the disk when deleted, and kills the process when cut.
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


# Random states and the environment


@pytest.mark.parametrize(
    ("same_on_all", "reader"),
    [(False, of_rank(0, 1)), (False, of_rank(5, 6)), (True, of_rank(0, 4)), (True, of_rank(3, 4))],
)
def test_random_states_come_back(tmp_path: Path, same_on_all: bool, reader: Any) -> None:
    torch.manual_seed(3)
    path = write(tmp_path / "r", tensors_module.gather_rng(ONE, same_on_all=same_on_all))
    expected = torch.rand(4)
    torch.manual_seed(4)
    tensors_module.restore_rng(load_tensors(path), reader)
    is_restored = same_on_all or reader.rank == 0  # A new rank keeps its own state.
    assert torch.equal(torch.rand(4), expected) == is_restored


def test_differences_that_may_change_bits_are_named() -> None:
    saved = environment(ONE, "bfloat16", compiled=False)
    assert environment_changes(saved, environment(ONE, "bfloat16", compiled=False)) == []
    present = environment(ONE, "float32", compiled=False)
    assert environment_changes(saved, present) == ["forward_dtype: bfloat16 -> float32"]
    changed = environment_changes(saved, saved | {"compiled": "block", "compiler": "g++ 12"})
    assert changed == ["compiled: False -> block", "compiler: None -> g++ 12"]
    older = saved | {"torch": "2.0", "python": "3.9", "numpy": "1.0", "world_size": 4}
    torch_changed = f"torch: 2.0 -> {torch.__version__}"
    assert environment_changes(older, saved) == [torch_changed, "world_size: 4 -> 1"]
    assert environment_changes(older, saved, any_world_size=True) == [torch_changed]
    present = saved | {"compiled": "model"}
    earlier = {name: value for name, value in present.items() if name != "numerics"}
    changes = environment_changes(earlier | {"compiled": True}, present)
    assert changes == [f"numerics: 1 -> {NUMERICS}"]


@pytest.mark.parametrize(
    ("compiled", "form"),
    [(True, "model"), (False, False), ("block", "block"), ("another", None), ([], None)],
)
def test_a_run_goes_on_compiled_as_it_began(compiled: object, form: object) -> None:
    assert saved_compiling({"device": "cpu", "compiled": compiled}, "cpu") == form
    assert saved_compiling({"device": "cuda", "compiled": compiled}, "cpu") is None
    assert saved_compiling({}, "cpu") is None
