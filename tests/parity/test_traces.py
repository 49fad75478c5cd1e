"""The model, the loss and both optimizers against traces of the published implementations.

Every trace of the folder is replayed: `PARITY_DIR` if it is set, otherwise this one. README.md
describes a trace. Tests marked `gpu` replay them on a GPU.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.act import ACTCarry, ACTLossHead, Drawn, LossOutput, min_halt_steps
from models.config import DataFacts
from models.heads.base import Examples
from models.hrm.config import HRMConfig
from models.registry import build_model
from models.trm.config import TRMConfig
from runtime.ranks import Ranks
from runtime.schema import Schema
from runtime.streams import Address
from training.config.schema import OptimizerConfig, ParamGroupConfig
from training.optim.groups import GradientBucket, assign_groups, build_optimizer, skip_update
from training.optim.sparse_sign_sgd import SparseSignSGD

FOLDER = Path(os.environ.get("PARITY_DIR") or Path(__file__).parent)

# `arch` of a trace -> schema of the project; a new architecture is one line here.
SCHEMAS: dict[str, type[Schema]] = {"hrm": HRMConfig, "trm": TRMConfig}

FIRST_STEP, LATER_STEPS = 1e-5, 2e-4
# float32 rounding grows up to fourfold with each ACT step and differs between processors (4.1e-4
# was seen at the fourth step); float64 differs only by the rounding in the recording.
GROWTH = {"float32": 4, "float64": 1}
LOSSES, GRADIENTS, FINAL_WEIGHTS = 5e-5, 1e-5, 1e-4

EXACT_METRICS = ("count", "exact_accuracy", "q_halt_accuracy", "steps")


@dataclass(frozen=True)
class Trace:
    """A recorded run: its configuration, its arrays by key, and the device for its replay."""

    name: str
    spec: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    device: torch.device

    def under(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the arrays below `prefix` on the device, by the rest of their keys."""
        return {
            key.removeprefix(prefix): torch.from_numpy(self.arrays[key]).to(self.device)
            for key in self.arrays
            if key.startswith(prefix)
        }

    def num_steps(self, part: str) -> int:
        """Return the number of steps recorded under `part` (eval or train)."""
        steps = {key.split("/")[1] for key in self.arrays if key.startswith(f"{part}/step")}
        return len(steps)

    def build(self, **changes: str) -> ACTLossHead:
        """Build the project's model with the initial weights of the run."""
        settings = dict(self.spec["config"]) | changes
        settings.pop("batch_size")
        names = ("vocab_size", "seq_len", "num_puzzle_identifiers")
        facts = DataFacts(**{name: settings.pop(name) for name in names})
        settings["loss"] = {"loss_type": self.spec["loss_type"]}
        config: Any = SCHEMAS[self.spec["arch"]].model_validate(settings)
        model = build_model(config, facts)
        model.load_state_dict(self.under("init/"))
        return model.to(self.device)


def trace_names() -> list[str]:
    """Return the traces of the folder; its other files have no `arch`."""
    specs = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    return [name for name, spec in specs.items() if isinstance(spec, dict) and "arch" in spec]


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)], scope="module")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device("cpu" if request.param == "cpu" else request.getfixturevalue("gpu"))


@pytest.fixture(params=trace_names() or [None], scope="module")
def trace(request: pytest.FixtureRequest, device: torch.device) -> Trace:
    name = request.param
    assert name is not None, f"{FOLDER} holds no trace"
    spec = json.loads((FOLDER / f"{name}.json").read_text())
    if spec["arch"] not in SCHEMAS:
        pytest.skip(f"arch {spec['arch']} is not implemented yet")
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        return Trace(name, spec, dict(arrays), device)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, bound: float, what: str) -> None:
    assert actual.shape == expected.shape, what
    difference = (actual.detach().double() - expected.double()).abs().max().item()
    assert difference <= bound, f"{what}: off by {difference:.2e}, allowed {bound:.0e}"


def assert_measured(output: LossOutput, expected: Mapping[str, torch.Tensor], where: str) -> None:
    """Compare the loss and all metrics of a step; counts and names must match exactly."""
    assert_near(output.loss, expected["loss"], LOSSES, f"{where} loss")
    recorded = {
        key.removeprefix("metrics/"): value
        for key, value in expected.items()
        if key.startswith("metrics/")
    }
    assert set(output.metrics) == set(recorded), where
    for name, value in recorded.items():
        if name in EXACT_METRICS:
            assert output.metrics[name].item() == value.item(), f"{where} {name}"
        else:
            assert_near(output.metrics[name], value, LOSSES, f"{where} {name}")


@pytest.mark.parametrize("dtype", GROWTH)
def test_evaluation(trace: Trace, dtype: str) -> None:
    model = trace.build(forward_dtype=dtype).eval()
    examples: Examples = trace.under("eval/batch/")
    carry = model.initial_carry(examples)
    last, bound = trace.num_steps("eval") - 1, FIRST_STEP
    for step in range(last + 1):
        expected = trace.under(f"eval/step{step}/")
        with torch.no_grad():
            output = model(carry, examples)
        carry = output.carry
        bound = max(LATER_STEPS, FIRST_STEP * GROWTH[dtype] ** step) if step else FIRST_STEP
        for name in ("logits", "q_halt_logits", "q_continue_logits"):
            assert_near(output.outputs[name], expected[name], bound, f"step {step} {name}")
        assert_measured(output, expected, f"step {step}")
        assert carry.halted.all().item() == (step == last)
    state = trace.under(f"eval/step{last}/z_")
    assert_near(carry.inner["z_H"], state["H"], bound, "z_H")
    assert_near(carry.inner["z_L"], state["L"], bound, "z_L")


def test_bfloat16_differs_by_its_rounding(trace: Trace) -> None:
    # About ten layers in a row round to 8 bits.
    model = trace.build(forward_dtype="bfloat16")
    examples, expected = trace.under("eval/batch/"), trace.under("eval/step0/")
    with torch.no_grad():
        output = model.eval()(model.initial_carry(examples), examples)
    assert off_by(output.outputs["logits"], expected["logits"]) < 2**-4
    model.train().prepare(trace.spec["train"]["global_batch_size"])
    examples, expected = trace.under("train/step0/batch/"), trace.under("train/step0/grad/")
    model(model.initial_carry(examples), examples, no_exploration(trace, 0)).loss.backward()
    for key, leaf in leaves_of(model).items():
        assert leaf.grad is not None, key
        grad = leaf.grad / trace.spec["train"]["global_batch_size"]
        assert off_by(grad, expected[key]) < 2**-3, key


def test_training(trace: Trace) -> None:
    settings = trace.spec["train"]
    batch_size = settings["global_batch_size"]
    model = trace.build().train()
    model.prepare(batch_size)
    ranks = Ranks(trace.device.type)
    optimizer_config = OptimizerConfig(
        name=settings["optimizer"], groups={"all": ParamGroupConfig(params=["*"])}
    )
    groups = assign_groups(
        model.named_parameters(),
        optimizer_config.groups,
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
    )
    optimizer = build_optimizer(optimizer_config, groups, (settings["beta1"], settings["beta2"]))
    bucket = GradientBucket(groups, ranks.device)
    sparse = model.puzzle_embedding and SparseSignSGD(
        model.puzzle_embedding,
        ranks,
        lr=settings["puzzle_emb_lr"],
        weight_decay=settings["puzzle_emb_weight_decay"],
    )

    carry: ACTCarry = model.initial_carry(trace.under("train/step0/batch/"))
    for step in range(trace.num_steps("train")):
        expected = trace.under(f"train/step{step}/")
        bucket.zero_()
        output = model(carry, trace.under(f"train/step{step}/batch/"), no_exploration(trace, step))
        (output.loss / batch_size).backward()
        carry = output.carry

        assert torch.equal(carry.halted, expected["halted"]), f"step {step} halted"
        assert torch.equal(carry.steps, expected["steps"]), f"step {step} steps"
        assert_measured(output, expected, f"step {step}")
        if step == 0:
            assert_gradients(model, trace.under("train/step0/grad/"))

        norms, skip, stop = bucket.reduce(ranks, finite=output.loss.isfinite(), stop=False)
        assert not skip
        assert not stop
        bucket.clip_(norms, skip)
        skip_update(optimizer, skip)
        optimizer.step()
        if sparse:
            sparse.step(skip)
            sparse.zero_grad()

    final = trace.under("final/")
    state = model.state_dict()
    assert set(state) == set(final)
    for key, value in final.items():
        assert_near(state[key], value, FINAL_WEIGHTS, f"final {key}")


def no_exploration(trace: Trace, step: int) -> Drawn:
    config = trace.spec["config"]
    rows = trace.spec["train"]["global_batch_size"]
    at = Address(trace.spec["seed"], step, rows, range(rows), num_parts=1, seq_len=0)
    steps = min_halt_steps(at, config["halt_exploration_prob"], config["halt_max_steps"])
    return {"min_steps": torch.from_numpy(steps).to(trace.device)}


def leaves_of(model: ACTLossHead) -> dict[str, torch.Tensor]:
    """Return the tensors that get a gradient, by their key in a trace."""
    leaves: dict[str, torch.Tensor] = dict(model.named_parameters())
    if model.puzzle_embedding is not None:
        leaves["model.inner.puzzle_emb.local_weights"] = model.puzzle_embedding.local_weights
    return leaves


def off_by(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of the expected tensor."""
    return ((actual.float() - expected).norm() / expected.norm()).item()


def assert_gradients(model: ACTLossHead, expected: Mapping[str, torch.Tensor]) -> None:
    leaves = leaves_of(model)
    assert set(leaves) == set(expected)
    for key, value in expected.items():
        grad = leaves[key].grad
        assert grad is not None, key
        assert_near(grad, value, GRADIENTS, f"gradient of {key}")
