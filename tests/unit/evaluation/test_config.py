from typing import Any

import pytest

from evaluation.config import EvalConfig, SolveConfig
from runtime.errors import ConfigError
from training.config.composition import load_config


def test_the_defaults_are_those_of_the_schemas() -> None:
    evaluation = load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x"])
    solving = load_config(SolveConfig, "cfg_solve", ["checkpoint=x"])
    assert evaluation == EvalConfig(checkpoint="x")
    assert solving == SolveConfig(checkpoint="x")


def test_folders() -> None:
    config = EvalConfig(checkpoint="x", data_path="d", data_paths=["a", "b"])
    assert config.data_folders == ["a", "b"]
    assert EvalConfig(checkpoint="x", data_path="d").data_folders == ["d"]
    assert EvalConfig(checkpoint="x").data_folders == []


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], ["checkpoint", "run's folder"]),
        (["checkpoint=x", "save_outputs=[pred]"], ["save_outputs", "pred", "'preds'"]),
        (["checkpoint=x", "evaluators=[mazes]"], ["evaluators.0=mazes", "sudoku, maze"]),
        (["checkpoint=x", "chekpoint=y"], ["chekpoint=y", "did you mean checkpoint"]),
        (["checkpoint=x", "arch_overrides.hidden_size=4"], ["arch_overrides.hidden_size"]),
        (["checkpoint=x", "split=dev"], ["split=dev", "'test', 'train' or 'selection'"]),
        (["checkpoint=x", "global_batch_size=0"], ["global_batch_size=0"]),
        (["checkpoint=x", "max_examples=1.5"], ["max_examples=1.5"]),
    ],
)
def test_mistakes_are_named(overrides: list[str], told: list[str]) -> None:
    _require_told(EvalConfig, "cfg_evaluate", overrides, told)


def test_null_overrides_nothing_of_an_architecture_that_is_not_there() -> None:
    config = EvalConfig.model_validate({"checkpoint": "x", "arch_overrides": {"absent": None}})
    assert config == EvalConfig(checkpoint="x")
    with pytest.raises(ValueError, match="absent"):
        EvalConfig.model_validate({"checkpoint": "x", "arch_overrides": {"absent": 1}})


def _require_told(schema: Any, name: str, overrides: list[str], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(schema, name, overrides)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in told)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"puzzle": "1", "file": "f"}, "puzzle and file"),
        ({"file": "f", "count": 2}, "file and count"),
        ({"data_path": "d"}, "count=N"),
    ],
)
def test_puzzles_have_one_source(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SolveConfig(checkpoint="x", **settings)


@pytest.mark.parametrize(
    "setting", ["halting=q", "save_records=true", "save_outputs=[preds]", "evaluators=[sudoku]"]
)
def test_thinking_longer_has_a_table_of_its_own(setting: str) -> None:
    load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", setting])
    for longer in ("depth=16", "breadth=[1,8]"):
        with pytest.raises(ConfigError, match="says nothing where depth or breadth is set"):
            load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", longer, setting])


def test_what_thinking_longer_has_another_setting_for_is_named() -> None:
    overrides = ["checkpoint=x", "breadth=8", "arch_overrides.halt_max_steps=4"]
    _require_told(EvalConfig, "cfg_evaluate", overrides, ["halt_max_steps", "use depth=N"])


@pytest.mark.parametrize("setting", ["select=majority", "perturb=noise", "noise=0.5"])
def test_settings_of_chains_need_chains(setting: str) -> None:
    name = setting.partition("=")[0]
    _require_told(EvalConfig, "cfg_evaluate", ["checkpoint=x", setting], [name, "neither depth"])
    load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", setting, "breadth=2"])


def test_a_single_chain_may_be_read_at_its_halt() -> None:
    overrides = ["checkpoint=x", "depth=16", "select=first_halt", "evaluators=[]"]
    assert load_config(EvalConfig, "cfg_evaluate", overrides).thinks_longer


def test_the_selection_puzzles_can_be_solved() -> None:
    assert load_config(SolveConfig, "cfg_solve", ["checkpoint=x", "split=selection"]).split


@pytest.mark.parametrize("setting", ["global_batch_size=65537", f"seed={2**64}"])
def test_what_is_too_large_is_refused_before_torch_is_loaded(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}: input should be less than"):
        load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", setting])
    largest = f"seed={2**64 - 1}"  # As in training.
    assert load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", largest]).seed == 2**64 - 1
