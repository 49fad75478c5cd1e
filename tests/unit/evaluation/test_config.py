from pathlib import Path
from typing import Any

import pytest

from evaluation.config import ArchOverrides, EvalConfig, SolveConfig
from evaluation.job import require_overrides
from models.transformer.config import TransformerConfig
from models.trm.config import TRMConfig
from runtime.errors import ConfigError
from training.config.composition import load_config
from training.config.source import CONFIG_DIR


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
        ("chains=8 arch_overrides.halt_max_steps=4", ["halt_max_steps", "use steps=N"]),
        ("select=majority", ["select has no effect without steps or chains"]),
        ("perturb=noise", ["perturb has no effect without steps"]),
        ("noise=0.5", ["noise has no effect without steps"]),
        ("chains=8 noise=0.5", ["noise has no effect without perturb=noise"]),
        ("steps=16 perturb=noise", ["perturb has no effect on a single chain; set chains=N"]),
        ("chains=4 energy.puzzles=9", ["energy has no effect without select=energy"]),
        ("steps=4 select=energy", ["select=energy chooses one of several chains; set chains=N"]),
        ("search.chains=4 steps=8", ["search.chains excludes steps and chains"]),
        ("search.chains=4 global_batch_size=4", ["global_batch_size has no effect with search"]),
        ("search.chains=4 arch_overrides.halt_max_steps=4", ["use search.rounds=N"]),
        ("breadth=8 chains=4", ["breadth=8 and chains=4 are the same setting", "set chains only"]),
        ("steps=[2,4] depth=[2]", ["depth=[2] and steps=[2,4] are the same setting"]),
        ("chains=1 breadth=8", ["breadth=8 and chains=1 are the same setting"]),
        ("breadth=0", ["chains.0=0: input should be greater"]),
    ],
)
def test_mistakes_are_named(overrides: str, told: list[str]) -> None:
    given = ["checkpoint=x", *overrides.split()] if overrides else []
    with pytest.raises(ConfigError) as caught:
        load_config(EvalConfig, "cfg_evaluate", given)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in told)


def test_an_override_must_change_the_architecture() -> None:
    more = ArchOverrides(H_cycles=8)
    require_overrides(more, TRMConfig())
    told = r"^arch_overrides.H_cycles: arch=transformer has no cycles"
    with pytest.raises(ConfigError, match=told):
        require_overrides(more, TransformerConfig())  # It has the setting, but ignores it.


def test_null_overrides_nothing_of_an_architecture_that_is_not_there() -> None:
    config = EvalConfig.model_validate({"checkpoint": "x", "arch_overrides": {"absent": None}})
    assert config == EvalConfig(checkpoint="x")
    with pytest.raises(ValueError, match="absent"):
        EvalConfig.model_validate({"checkpoint": "x", "arch_overrides": {"absent": 1}})


@pytest.mark.parametrize(
    "former", [["depth=16", "breadth=8"], ["steps=16", "breadth=[8]", "chains=[8]"]]
)
def test_former_names_of_steps_and_chains_are_accepted(former: list[str]) -> None:
    for schema, name in ((EvalConfig, "cfg_evaluate"), (SolveConfig, "cfg_solve")):
        config = load_config(schema, name, ["checkpoint=x", *former])
        assert config == load_config(schema, name, ["checkpoint=x", "steps=16", "chains=8"])


def test_former_names_are_accepted_in_files_and_the_command_line_comes_after_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.yaml"
    asked = [f"--config-dir={tmp_path}", "--config-name=mine", "checkpoint=x"]
    for text, overrides, chains in (
        ("breadth: 8", [], [8]),
        ("breadth: 8", ["chains=1"], [1]),
        ("breadth: 8", ["breadth=2"], [2]),
        ("chains: 8", ["breadth=2"], [2]),
        ("breadth: [1]\nchains: 8", [], [8]),
    ):
        file.write_text(f"defaults: [cfg_evaluate, _self_]\n{text}\n")
        assert load_config(EvalConfig, "mine", [*asked, *overrides]).chains == chains
    # A copy of the whole file, as it was before.
    written = (CONFIG_DIR / "cfg_evaluate.yaml").read_text()
    file.write_text(written.replace("\nsteps:", "\ndepth:").replace("\nchains:", "\nbreadth:"))
    assert load_config(EvalConfig, "mine", [*asked, "steps=4"]).steps == [4]
    file.write_text("defaults: [cfg_evaluate, _self_]\nbreadth: 8\nchains: 4\n")
    with pytest.raises(ConfigError, match="breadth=8 and chains=4 are the same setting"):
        load_config(EvalConfig, "mine", asked)


def test_saved_settings_keep_their_former_names() -> None:
    config = EvalConfig(checkpoint="x", steps=[16], chains=[1, 8])
    saved = config.model_dump(mode="json", by_alias=True)
    assert (saved["depth"], saved["breadth"]) == ([16], [1, 8])
    assert EvalConfig.model_validate(saved) == config


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"puzzle": "1", "file": "f"}, "puzzle and file"),
        ({"file": "f", "count": 2}, "file and count"),
        ({"data_path": "d"}, "count=N"),
        ({"data_path": "d", "file": "f"}, "data_path needs count=N"),
        ({"data_path": "d", "file": "f"}, r"index=N \(puzzle N\) or file=TASK\.json"),
        ({"set": "s", "file": "f.json"}, "set needs count=N"),
        ({"set": "s", "file": "f"}, r"index=N \(puzzle N\)(?! or)"),
        ({"chains": [1, 8]}, r"chains=\[1, 8\]: a puzzle gets one answer"),
        ({"depth": [2, 4]}, r"steps=\[2, 4\]: a puzzle gets one answer"),
        ({"chains": 8, "noise": 0.5}, "noise has no effect without perturb=noise"),
        ({"perturb": "noise"}, "perturb has no effect on a single chain"),
        ({"chains": 8, "select": "energy"}, "select=energy: only evaluate.py learns an energy"),
    ],
)
def test_puzzles_have_one_source_and_one_answer(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SolveConfig(checkpoint="x", **settings)


def test_a_data_set_names_the_arc_tasks_that_a_model_knows() -> None:
    assert SolveConfig(checkpoint="x", file="f.json", data_path="d").is_task


@pytest.mark.parametrize(
    "setting", ["halting=q", "save_records=true", "save_outputs=[preds]", "evaluators=[sudoku]"]
)
def test_thinking_longer_has_a_table_of_its_own(setting: str) -> None:
    load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", setting])
    for longer in ("steps=16", "chains=[1,8]"):
        with pytest.raises(ConfigError, match="has no effect with steps or chains"):
            load_config(EvalConfig, "cfg_evaluate", ["checkpoint=x", longer, setting])
