"""Techniques: their registry, their former settings, and forbidden combinations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from models.former import in_present_terms
from models.hrm.config import HRMConfig
from models.technique import TECHNIQUES, Technique
from models.techniques.step_weights import StepWeights
from models.trm.config import TRMConfig
from runtime.errors import ConfigError
from tests.unit.models import tiny
from training.checkpoint.published import published_arch
from training.config.composition import load_config
from training.config.schema import TrainConfig

ROOT = Path(__file__).parents[3]


def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", ["data_path=none", *settings])


def test_each_file_registers_one_technique_and_the_published_models_have_none() -> None:
    files = {path.stem for path in (ROOT / "models/techniques").glob("[a-z]*.py")}
    assert files == set(TECHNIQUES) == {p.stem for p in (ROOT / "config/techniques").glob("*.yaml")}
    for name in ("hrm_v1", "trm", "trm_singlez", "transformer"):
        assert configure(f"arch={name}").arch.techniques.active == {}


@pytest.mark.parametrize(
    ("saved", "techniques"),
    [
        ({"init": "random", "init_std": 0.5}, {"random_starts": {"std": 0.5}}),
        ({"damping": 1.0, "noise": 0.1}, {"damped_noise": {"damping": 1.0, "noise": 0.1}}),
        ({"damping": 0.9}, {"damped_noise": {"damping": 0.9, "noise": 0.0}}),
        (
            {"anchor_prob": 0.25, "anchor_corruption": 0.1},
            {"anchors": {"prob": 0.25, "corruption": 0.1}},
        ),
        ({"curriculum": [{"until": 0.5}]}, {"curriculum": {"stages": [{"until": 0.5}]}}),
        ({"q_target": "rows", "q_target_every": 8}, {"sparse_look_ahead": {"every": 8}}),
        ({"loss": {"step_decay": 0.7, "name": "act"}}, {"step_weights": {"decay": 0.7}}),
        (
            {"init": "fixed", "init_std": 2.0, "damping": 1.0, "noise": 0.0, "anchor_prob": 0.0}
            | {"anchor_corruption": 0.2, "curriculum": None, "q_target": "full"}
            | {"q_target_every": 4, "loss": {"step_decay": 1.0}},
            None,
        ),
    ],
)
def test_settings_of_saved_runs_are_read(
    saved: dict[str, Any], techniques: dict[str, Any] | None
) -> None:
    before = {key: dict(value) if key == "loss" else value for key, value in saved.items()}
    now = in_present_terms(saved, training=True)
    assert saved == before
    assert now.get("techniques") == techniques
    assert now.keys() <= {"loss", "techniques"}
    assert now.get("loss", {}).keys() <= {"name"}


@pytest.mark.parametrize("value", [["anchors"], "anchors", 3, [[]]])
def test_a_saved_section_that_is_none_is_left_for_the_schema_to_refuse(value: Any) -> None:
    saved = {"techniques": value, "loss": value}
    assert in_present_terms(saved, training=True) == saved
    with pytest.raises(ValidationError, match="techniques"):
        HRMConfig.model_validate({"techniques": value})


@pytest.mark.parametrize(
    ("saved", "training", "evaluating"),
    [
        ({"chains": 1, "heads": {"q": {"exploration_bonus": 0.0}}}, {"heads": {"q": {}}}, ...),
        ({"chains": 4, "digit_attention": False}, {"chains": 4}, {}),
        ({"loss": {"clip": {"lm": None, "q_halt": None}}}, {"loss": {}}, ...),
        ({"loss": {"clip": {"lm": 1.0}}}, {"loss": {"clip": {"lm": 1.0}}}, {"loss": {}}),
        ({"digit_attention": True}, {"digit_attention": True}, ...),
        ({"shared_levels": False}, {}, ...),
        ({"learns_when_gone": False}, {"learn_after_mistakes": False}, ...),
        ({"heads": {"q": {"rule": None, "halt_min_steps": 1}}}, {"heads": {"q": {}}}, ...),
        ({"heads": {"q": {"rule": "zero"}}}, {"heads": {"q": {"rule": "zero"}}}, ...),
        ({"attention": "sdpa_cudnn"}, {"attention": "sdpa_cudnn"}, {"attention": "auto"}),
        ({"heads": {"q": None}, "loss": None}, {"heads": {"q": None}, "loss": None}, ...),
    ],
)
def test_settings_that_are_gone_stay_only_where_they_matter(
    saved: dict[str, Any], training: dict[str, Any], evaluating: Any
) -> None:
    assert in_present_terms(saved, training=True) == training
    expected = training if evaluating is ... else evaluating
    assert in_present_terms(saved, training=False) == expected


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("arch.techniques.anchors.prob=0.5", "another techniques= may have it, or write"),
        ("techniques=[anchor]", "did you mean techniques=anchors"),
        ("arch.learns_when_gone=0", r"renamed; write arch.learn_after_mistakes=\.\.\."),
        ("arch.anchor_prob=0.1", r"renamed; write techniques=\[anchors\] arch.techniques.anchors"),
        ("arch.q_target=rows", r"renamed; write techniques=\[sparse_look_ahead\](?! arch)"),
    ],
)
def test_a_technique_is_asked_for_by_name(setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure(setting)


def test_techniques_are_chosen_in_any_order() -> None:
    names = ["step_weights", "damped_noise", "anchors"]
    one, other = (
        configure(f"techniques=[{','.join(order)}]", "arch.techniques.anchors.prob=0.5")
        for order in (names, names[::-1])
    )
    assert one == other
    assert list(one.arch.techniques.active) == sorted(names)
    assert configure("techniques=[]") == configure()


def test_two_that_decide_the_same_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step_weights: Any = TECHNIQUES["step_weights"].schema
    monkeypatch.setattr(step_weights, "start", lambda self, z, draws: z, raising=False)
    with pytest.raises(ValidationError, match="random_starts and step_weights all set the start"):
        HRMConfig.model_validate({"techniques": {"random_starts": {}, "step_weights": {}}})


def test_those_that_change_evaluations_are_told_by_their_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arch = TRMConfig.model_validate({"techniques": {"step_weights": {}, "anchors": {}}})
    assert arch.techniques.in_evaluations == []
    assert published_arch(arch)
    step_weights: Any = TECHNIQUES["step_weights"].schema
    monkeypatch.setattr(step_weights, "moved", lambda self, before, after, draws: after)
    assert arch.techniques.in_evaluations == ["step_weights"]
    with pytest.raises(ConfigError, match=r"^arch\.techniques\.step_weights: no published class"):
        published_arch(arch)
    every = HRMConfig.model_validate({"techniques": {"random_starts": {}, "damped_noise": {}}})
    assert every.techniques.in_evaluations == ["damped_noise", "random_starts"]


@pytest.mark.parametrize("trains", [True, False])
def test_begun_runs_in_evaluations_too_where_nothing_is_drawn(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def begun(
        self: Technique, inner: Any, new: Any, steps: Any, latents: Any, examples: Any, drawn: Any
    ) -> Any:
        given.append(drawn)
        return latents

    monkeypatch.setattr(TECHNIQUES["anchors"].schema, "begun", begun)
    model = tiny.make_model(techniques={"anchors": {}}).train(trains)
    examples, drawn = tiny.make_examples(), {"min_steps": torch.zeros(3, dtype=torch.int32)}
    model(model.initial_carry(examples), examples, drawn if trains else None)
    assert given == [drawn if trains else {}]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*TECHNIQUES} - {"hints"}))  # That has its own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_traces_as_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"curriculum": {"stages": [{"until": 0.5, "H_cycles": 1, "L_cycles": 1}]}}
    own |= {"damped_noise": {"noise": 0.0}, "anchors": {"prob": 1.0}}
    model = tiny.make_model(techniques={name: own.get(name, {})}).train()
    technique: Technique = model.model.inner.techniques.active[name]
    model.model.inner.depth = technique.depth_at(0.0)
    if name == "random_starts":
        monkeypatch.setattr("models.recurrence.BATCH_DRAWS", Ones())
    tiny.require_same_compiled(model, "aot_eager", [1] if name == "sparse_look_ahead" else None)


class Ones:
    """Draws that are not random."""

    def cut_normal(self, like: torch.Tensor, std: float) -> torch.Tensor:
        return std * torch.ones_like(like)


def test_step_weights_fall_and_are_1_on_average() -> None:
    weights = StepWeights(decay=0.5).weighed(torch.ones(4), torch.arange(1, 5), 4)
    torch.testing.assert_close(weights, torch.tensor([8.0, 4.0, 2.0, 1.0]) * 4 / 15)
