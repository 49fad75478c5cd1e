"""The lattice's choices of arch=, heads= and experiment=."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from apps.lattice.config import LatticeConfig
from evaluation.config import EvalConfig
from evaluation.job import what_differs
from models.heads.config import HeadsConfig
from training.config.composition import compose_runs, load_config, plain
from training.config.overrides import parse_arguments
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR, source_of

EXPERIMENTS = sorted(path.stem for path in (CONFIG_DIR / "experiment").glob("lattice*.yaml"))


@pytest.mark.parametrize(
    "command", ["arch=lattice heads=lattice", *(f"experiment={name}" for name in EXPERIMENTS)]
)
def test_every_choice_composes(command: str) -> None:
    settings = ["data_path=x", *command.split(), "arch.loss.weights.candidates=0.25"]
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    assert config.arch.name == "lattice"
    assert config.arch.loss.weights.model_dump()["candidates"] == 0.25


def test_the_heads_of_the_lattice() -> None:
    source = source_of("cfg_pretrain", parse_arguments([]))
    composed = plain(*compose_runs(TrainConfig, source, [["heads=lattice"]]))["arch"]["heads"]
    detach = {"detach": False}
    expected = {"q": None, "candidates": detach, "contradiction": detach}
    heads = HeadsConfig.model_validate(expected)
    assert HeadsConfig.model_validate(composed) == heads
    assert composed == {key: heads.model_dump()[key] for key in composed}
    assert {key for key, value in heads if value is not None} <= composed.keys()


@pytest.mark.parametrize(("steps", "differs"), [(100, ["halt_max_steps-100"]), (1, [])])
def test_its_own_evaluations_have_one_step(steps: int, differs: list[str]) -> None:
    asked = {"checkpoint": "x", "arch_overrides": {"halt_max_steps": steps}}
    run = SimpleNamespace(arch=LatticeConfig(), data_folders=lambda split: [])
    trained = SimpleNamespace(run=run, has_average=False)
    given = (EvalConfig.model_validate(asked), trained, SimpleNamespace(sets={}))
    assert what_differs(*cast(Any, given)) == differs
