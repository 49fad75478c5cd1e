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


def test_several_folders_come_before_one() -> None:
    config = EvalConfig(checkpoint="x", data_path="d", data_paths=["a", "b"])
    assert config.data_folders == ["a", "b"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("", ["checkpoint", "run's folder"]),
        ("save_outputs=[pred]", ["save_outputs", "pred", "'preds'"]),
        ("evaluators=[mazes]", ["evaluators.0=mazes", "sudoku, maze"]),
        ("chekpoint=y", ["chekpoint=y", "did you mean checkpoint"]),
        ("arch_overrides.hidden_size=4", ["arch_overrides.hidden_size"]),
        ("split=dev", ["split=dev", "'test', 'train' or 'selection'"]),
        ("global_batch_size=0", ["global_batch_size=0"]),
        ("global_batch_size=65537", ["global_batch_size=65537: input should be less than"]),
        (f"seed={2**64}", [f"seed={2**64}: input should be less than"]),
        ("max_examples=1.5", ["max_examples=1.5"]),
        ("breadth=8 arch_overrides.halt_max_steps=4", ["halt_max_steps", "use depth=N"]),
        ("select=majority", ["select says nothing where neither depth"]),
        ("perturb=noise", ["perturb says nothing where neither depth"]),
        ("noise=0.5", ["noise says nothing where neither depth"]),
        ("search.chains=4 depth=8", ["search.chains and depth or breadth are both set"]),
        ("search.chains=4 global_batch_size=4", ["global_batch_size says nothing where search"]),
        ("search.chains=4 arch_overrides.halt_max_steps=4", ["use search.rounds=N"]),
    ],
)
def test_mistakes_are_named(overrides: str, told: list[str]) -> None:
    given = ["checkpoint=x", *overrides.split()] if overrides else []
    with pytest.raises(ConfigError) as caught:
        load_config(EvalConfig, "cfg_evaluate", given)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in told)


def test_null_overrides_nothing_of_an_architecture_that_is_not_there() -> None:
    config = EvalConfig.model_validate({"checkpoint": "x", "arch_overrides": {"absent": None}})
    assert config == EvalConfig(checkpoint="x")
    with pytest.raises(ValueError, match="absent"):
        EvalConfig.model_validate({"checkpoint": "x", "arch_overrides": {"absent": 1}})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"puzzle": "1", "file": "f"}, "puzzle and file"),
        ({"file": "f", "count": 2}, "file and count"),
        ({"data_path": "d"}, "count=N"),
        ({"breadth": [1, 8]}, r"breadth=\[1, 8\]: a puzzle gets one answer"),
        ({"depth": [2, 4]}, r"depth=\[2, 4\]: a puzzle gets one answer"),
    ],
)
def test_puzzles_have_one_source_and_one_answer(settings: dict[str, Any], told: str) -> None:
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
