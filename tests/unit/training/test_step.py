"""One optimizer step, whole and in parts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from puzzle_dataset import PuzzleDataset
from runtime.compiler import Compiling
from runtime.errors import CheckpointError, NonFiniteError
from runtime.ranks import Ranks
from training import step as step_module
from training.checkpoint.tensors import model_tensors, optimizer_tensors
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.data import train_batches
from training.step import Learner
from training.stop_signals import StopSignals

SPARSE = ["techniques=[sparse_look_ahead]"]
ANCHORS = ["techniques=[anchors]", "arch.techniques.anchors.prob=0.5"]


class Outcome(NamedTuple):
    """The results of some steps."""

    gradient: Tensor  # The last step's.
    table: Tensor  # The puzzle embedding.
    carry: dict[str, Tensor]
    records: list[dict[str, Any]]
    sizes: set[int]  # Rows that passed through the model at once.


@pytest.fixture
def make_steps(tasks_data: Path, tiny_settings: list[str]) -> Callable[..., Outcome]:
    """Make four steps with 8 rows in float64 that change only the puzzle embedding."""

    def make(*more: str) -> Outcome:
        settings = [*tiny_settings, f"data_path={tasks_data}", "arch.forward_dtype=float64"]
        settings += ["arch.halt_exploration_prob=0.5", "lr=0", "puzzle_emb_lr=0.1"]
        settings += ["arch.heads.q.init_std=1.0", "arch.heads.q.init_bias=0.0", "log_interval=4"]
        settings += ["diagnose_interval=4", *more]
        config = load_config(TrainConfig, "cfg_pretrain", settings)
        dataset, sizes = PuzzleDataset([tasks_data], "train"), set()
        with Ranks("cpu") as ranks:
            learner = Learner(config, config.arch, dataset, ranks)
            learner.model.register_forward_pre_hook(lambda _, given: sizes.add(len(given[0].steps)))
            batches = train_batches(config, dataset).iterate(0)
            for step, (_, batch) in zip(range(1, 5), batches, strict=False):
                learner.step(step, batch, StopSignals())
            embedding = learner.model.puzzle_embedding
            assert embedding is not None
            gradient, carry = learner.bucket.flat, learner.carry.tensors()
            return Outcome(gradient, embedding.weights, carry, learner.metrics.drain(), sizes)

    return make


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ([], 4),
        ([], 1),
        (["reduction=exact"], 1),
        ([*SPARSE, "arch.techniques.sparse_look_ahead.every=2"], 2),
        ([*ANCHORS, "reduction=exact"], 1),
    ],
)
def test_micro_batches_make_the_step_of_the_whole_batch(
    make_steps: Callable[..., Outcome], settings: list[str], rows: int
) -> None:
    whole, parts = make_steps(*settings), make_steps(*settings, f"micro_batch_size={rows}")
    assert (whole.sizes, parts.sizes) == ({2 if "reduction=exact" in settings else 8}, {rows})
    # Gradients are added in float32, everything else is computed in float64.
    bound = 2.0**-20 * whole.gradient.abs().max().item()
    torch.testing.assert_close(parts.gradient, whole.gradient, rtol=1e-5, atol=bound)
    assert whole.table.abs().max() > 0.1
    torch.testing.assert_close(parts.table, whole.table, rtol=0, atol=1e-6)
    torch.testing.assert_close(parts.carry, whole.carry, rtol=1e-9, atol=1e-9)
    for own, expected in zip(parts.records, whole.records, strict=True):
        assert own == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert any("diagnose/nonfinite" in record for record in parts.records)


class NeverWaits(TorchDispatchMode):
    """A mode that refuses operations which make the host wait for the device."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = str(operation)
        assert "_local_scalar_dense" not in name, "the host waits for a number"
        assert "nonzero" not in name, "a shape depends on values"
        assert "lift_fresh" not in name, "a tensor is made of the host's numbers"
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def learner_of(tasks_data: Path, tiny_settings: list[str]) -> Callable[..., Learner]:
    def build(*more: str) -> Learner:
        settings = [*tiny_settings, f"data_path={tasks_data}", "arch.halt_exploration_prob=0.5"]
        settings += ["diagnose_interval=6", "log_interval=12", "eval_interval=null", *more]
        config = load_config(TrainConfig, "cfg_pretrain", settings)
        dataset = PuzzleDataset([tasks_data], "train")
        return Learner(config, config.arch, dataset, Ranks("cpu"))

    return build


SETTINGS = {
    "hrm": [],
    "several rates": ["optimizer=grouped", "optimizer.name=adam_atan2", "weight_decay=0.3"]
    + ["ema=true"],
    "few rows look ahead": [
        *SPARSE,
        "arch.techniques.sparse_look_ahead.every=2",
        "micro_batch_size=4",
    ],
    "anchors": [*ANCHORS, "micro_batch_size=4"],
    "not finite": ["on_nonfinite=skip"],
    "trm": ["arch=trm", "arch.mlp_t=true", "arch.pos_encodings=none", "arch.L_cycles=2"],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_host_waits_for_nothing_in_a_step(
    learner_of: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    learner = learner_of(*settings)
    copy = learner.ranks.on_device

    def on_device(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        with _disable_current_modes():
            return copy(arrays)

    monkeypatch.setattr(learner.ranks, "on_device", on_device)
    dataset = PuzzleDataset(learner.config.train_paths, "train")
    batches = train_batches(learner.config, dataset).iterate(0)
    for step, (_, batch) in zip(range(1, 6), batches, strict=False):
        with NeverWaits():
            learner.step(step, batch, StopSignals())


def test_what_pays_to_compile_is_counted_until_max_steps(
    learner_of: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []

    def choose(setting: object, device: str, *, saved: object, operations: Any) -> Compiling:
        counted.append(operations())
        return Compiling(False, "")

    monkeypatch.setattr(step_module, "choose_compiling", choose)
    for settings in ([], ["max_steps=2"], ["max_steps=1000000"]):
        learner = learner_of(*settings)
    assert counted[0] == counted[2] == counted[1] / 2 * learner.total_steps


def test_the_first_rank_alone_reads_the_start_weights(
    learner_of: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learner, missing = learner_of(), tmp_path / "missing"
    with pytest.raises(CheckpointError, match="missing: no such checkpoint"):
        learner._build_model(missing)
    monkeypatch.setattr(learner.ranks, "rank", 1)
    assert learner._build_model(missing).state_dict()
    fault = CheckpointError("rank 0 cannot read it")
    monkeypatch.setattr(learner.ranks, "broadcast_object", lambda own: fault)
    with pytest.raises(CheckpointError, match="rank 0 cannot read it"):
        learner._build_model(missing)


# on_nonfinite=skip

SKIP = ["on_nonfinite=skip", "max_nonfinite=3", "ema=true", "arch.halt_exploration_prob=1.0"]
PLACES = ("loss", "gradient", "gradient of the puzzle embedding", "carry")


class Steps:
    """The steps of a learner, some of them struck by a NaN."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.number = learner, 0
        dataset = PuzzleDataset(learner.config.train_paths, "train")
        self.batches = train_batches(learner.config, dataset).iterate(0)

    def make(self, place: str | None = None) -> None:
        self.number += 1
        learner, update = self.learner, Learner._update
        if place == "carry":
            row = int(learner.carry.halted.long().argmin())
            assert not learner.carry.halted[row]
            learner.carry.inner["z_H"][row, 1, 2] = torch.nan

        def struck(loss: Tensor, *rest: Any) -> Any:
            if place == "gradient":
                learner.bucket.flat[7] = torch.inf
            elif place == "loss":
                loss = loss * torch.nan
            elif place is not None and place != "carry":
                embedding = learner.model.puzzle_embedding
                assert embedding is not None
                assert embedding.local_weights.grad is not None
                embedding.local_weights.grad[0, 0] = torch.nan
            return update(learner, loss, *rest)

        learner._update = struck  # type: ignore[method-assign]
        learner.step(self.number, next(self.batches)[1], StopSignals())

    def state(self) -> dict[str, Tensor]:
        """Return copies of weights, tables, optimizer state and average."""
        learner = self.learner
        assert learner.average
        tensors = model_tensors(learner.model)
        tensors |= optimizer_tensors(learner.optimizer, learner.groups)
        tensors |= {f"average {name}": value for name, value in learner.average.tensors().items()}
        return {name: value.clone() for name, value in tensors.items()}


def is_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("place", "more"),
    [
        *((place, []) for place in PLACES),
        ("gradient", ["optimizer=grouped"]),
        ("carry", ["optimizer=muon", "micro_batch_size=4"]),
        ("loss", ["reduction=exact"]),
    ],
)
def test_a_step_that_is_not_finite_is_left_out(
    learner_of: Callable[..., Learner],
    place: str,
    more: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps, twin = (Steps(learner_of(*SKIP, *more)) for _ in range(2))
    for each in (steps, twin):
        each.make()
        each.make()
    before = steps.state()
    carry = steps.learner.carry
    struck = int(carry.halted.long().argmin()) if place == "carry" else None
    steps.make(place)
    twin.make()
    assert is_same(before, steps.state())
    assert not is_same(before, twin.state())

    # Only the broken row starts anew. No update was made, so the others are as in the twin.
    found, expected = steps.learner.carry, twin.learner.carry
    for row in range(8):
        assert found.halted[row] == (row == struck or expected.halted[row])
        for name, latent in found.inner.items():
            wanted = torch.zeros_like(latent[row]) if row == struck else expected.inner[name][row]
            assert torch.equal(latent[row], wanted)
    steps.make()
    assert not is_same(before, steps.state())
    assert found.examples.keys() == steps.learner.carry.examples.keys()
    if struck is not None:
        assert steps.learner.carry.steps[struck] == 1
    assert steps.learner.outcomes.check(wait=True) is False
    assert "step 3: the loss (" in capsys.readouterr().err
    counts = [record["train/nonfinite"] for record in steps.learner.metrics.drain()]
    assert counts == [0, 0, 1, 0]


def test_too_many_steps_in_a_row_end_the_run(learner_of: Callable[..., Learner]) -> None:
    steps = Steps(learner_of(*SKIP))
    for place in (None, "loss", "gradient", None, "loss", "loss"):
        steps.make(place)
        steps.learner.outcomes.check(wait=True)
    before = steps.state()
    steps.make("loss")
    steps.make()  # On a GPU, the host knows the outcome only two steps later.
    assert is_same(before, steps.state())
    for _ in range(2):
        with pytest.raises(NonFiniteError, match=r"step 7: the loss .* \(3 in a row\)"):
            steps.learner.outcomes.check(wait=True)


def test_without_a_fault_skip_changes_no_bit(learner_of: Callable[..., Learner]) -> None:
    steps, other = Steps(learner_of(*SKIP)), Steps(learner_of(*SKIP, "on_nonfinite=stop"))
    for each in (steps, other, steps, other, steps, other):
        each.make()
    assert is_same(steps.state(), other.state())
    assert is_same(steps.learner.carry.tensors(), other.learner.carry.tensors())
    pairs = zip(*(each.learner.metrics.drain() for each in (steps, other)), strict=True)
    for own, expected in pairs:
        assert own == expected | {"train/nonfinite": 0.0}


def test_the_gradient_is_that_of_the_mean_over_the_batch(
    learner_of: Callable[..., Learner],
) -> None:
    learner = learner_of()
    bias, forward = learner.model.get_parameter("model.inner.q_head.bias"), learner.forward

    def known(*given: Any) -> Any:
        output = forward(*given)
        return output._replace(loss=bias.sum() * 8 + output.loss * 0)

    learner.forward = known
    Steps(learner).make()  # Of 8 rows.
    assert bias.grad is not None
    assert bias.grad.tolist() == [1.0, 1.0]
