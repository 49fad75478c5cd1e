"""Fewer cycles at the beginning of a training (arXiv:2511.08653)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from models.config import RecurrenceConfig
from models.hrm.config import HRMConfig
from models.recurrence import CycledRecurrence
from models.registry import build_model
from models.techniques.curriculum import Curriculum
from models.transformer.model import TransformerInner
from models.trm.config import TRMConfig
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError
from runtime.ranks import Ranks
from tests.unit.models import tiny
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.data import train_batches
from training.step import Learner
from training.stop_signals import StopSignals

PUBLISHED = [
    {"until": 0.3, "H_cycles": 1, "L_cycles": 2},
    {"until": 0.6, "H_cycles": 2, "L_cycles": 4},
]


def test_the_stages_of_the_paper() -> None:
    curriculum = Curriculum.model_validate({"stages": PUBLISHED})
    assert curriculum == Curriculum()
    found = [curriculum.depth_at(share) for share in (0.0, 0.29, 0.3, 0.59, 0.6, 1.0, 1.2)]
    assert found == [(1, 2), (1, 2), (2, 4), (2, 4), None, None, None]


@pytest.mark.parametrize(
    ("curriculum", "told"),
    [
        (PUBLISHED[::-1], r"until=\[0.6, 0.3\]: it must rise from stage to stage"),
        ([PUBLISHED[0]] * 2, "it must rise"),
        ([{"until": 0.5, "H_cycles": 4, "L_cycles": 1}], "H_cycles=4 exceeds arch.H_cycles=3"),
        ([{"until": 0.5, "H_cycles": 1, "L_cycles": 7}], "L_cycles=7 exceeds arch.L_cycles=6"),
        ([{"until": 1.0, "H_cycles": 1, "L_cycles": 1}], "less than 1"),
        ([], "at least 1"),
    ],
)
def test_stages_that_do_not_lead_to_all_cycles_are_refused(curriculum: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TRMConfig.model_validate({"techniques": {"curriculum": {"stages": curriculum}}})


def test_an_architecture_without_cycles_has_no_curriculum(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["arch=transformer", "techniques=[curriculum]"]
    with pytest.raises(ConfigError, match="name=transformer has no cycles; leave the technique"):
        load_config(TrainConfig, "cfg_pretrain", settings)
    monkeypatch.setattr("models.registry.CycledRecurrence", TransformerInner)
    own = {"techniques": {"curriculum": {"stages": [{"until": 0.3, "H_cycles": 1, "L_cycles": 2}]}}}
    config = HRMConfig.model_validate(tiny.TINY | own)
    with pytest.raises(ConfigError, match="HRMInner is no CycledRecurrence"):
        build_model(config, tiny.FACTS)


ARCHS: list[tuple[type[RecurrenceConfig], dict[str, Any]]] = [
    (HRMConfig, {"no_ACT_continue": False}),
    (HRMConfig, {"gradient": "last_cycle"}),
    (TRMConfig, {"name": "trm", "no_ACT_continue": False}),
    (TRMConfig, {"name": "trm_singlez", "mlp_t": True}),
]


@pytest.mark.parametrize(("kind", "settings"), ARCHS)
def test_a_stage_is_the_model_with_fewer_cycles_and_evaluates_with_all(
    kind: type[RecurrenceConfig], settings: dict[str, Any]
) -> None:
    """In training the look-ahead for q_continue has fewer cycles, too."""
    models = []
    for cycles in ((3, 4), (2, 1)):
        torch.manual_seed(0)
        own = {"H_cycles": cycles[0], "L_cycles": cycles[1], "forward_dtype": "float32"}
        model = build_model(kind.model_validate(tiny.TINY | settings | own), tiny.FACTS)
        model.prepare(3)
        models.append(model)
    full, shallow = models
    inner = tiny.inner_of(full)
    assert isinstance(inner, CycledRecurrence)
    deep = tiny.first_step(full)
    inner.depth = (2, 1)
    output, twin = tiny.first_step(full), tiny.first_step(shallow)
    assert torch.equal(output.loss, twin.loss)
    pairs = zip((output, twin), models, strict=True)
    gradients = [torch.autograd.grad(own.loss, [*model.parameters()]) for own, model in pairs]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert not torch.equal(output.loss, deep.loss)
    full.eval()
    evaluated = tiny.first_step(full)
    inner.depth = None
    assert torch.equal(evaluated.loss, tiny.first_step(full).loss)
    full.train()
    assert torch.equal(tiny.first_step(full).loss, deep.loss)


def test_a_run_makes_each_step_with_the_cycles_of_its_stage(
    sudoku_data: Path, tiny_settings: list[str]
) -> None:
    stages = "{until:0.3,H_cycles:1,L_cycles:2},{until:0.5,H_cycles:2,L_cycles:1}"
    settings = ["arch=trm", "arch.L_layers=1", "techniques=[curriculum]"]
    settings += [f"arch.techniques.curriculum.stages=[{stages}]"]
    settings += ["eval_interval=null", "log_interval=16", "diagnose_interval=null"]
    config = load_config(TrainConfig, "cfg_pretrain", [*tiny_settings, *settings])
    dataset = PuzzleDataset([sudoku_data], "train")
    learner = Learner(config, config.arch, dataset, Ranks("cpu"))
    level = learner.model.model.inner.get_submodule("L_level")
    found = []
    level.register_forward_hook(lambda *_: found.append(step))
    for step, (_, batch) in enumerate(train_batches(config, dataset).iterate(0), 1):
        learner.step(step, batch, StopSignals())
    # 5 of 16 steps begin below 0.3 of the run, 8 below 0.5.
    assert [found.count(step) for step in range(1, 17)] == [1 * 3] * 5 + [2 * 2] * 3 + [3 * 7] * 8
