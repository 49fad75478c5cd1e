"""The run's folder: names, whether it can be written, which checkpoint the run goes on from."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from models.config import DataFacts
from runtime.errors import CheckpointError, ConfigError
from runtime.ranks import Ranks
from training.checkpoint.run_folder import (
    find_checkpoint,
    prepare_run_dir,
    rename_newer,
    save_config,
    take_over,
    with_names,
)
from training.checkpoint.state import RunState
from training.checkpoint.store import Checkpoint, list_steps, load_checkpoint, save_checkpoint
from training.config.composition import load_config
from training.config.schema import NEUTRAL_KEYS, TrainConfig

FACTS = DataFacts(vocab_size=6, seq_len=16, num_puzzle_identifiers=1)
FINGERPRINT = "f" * 64


@cache
def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", ["data_path=some/where", *settings])


def save(run_dir: Path, step: int, config: TrainConfig, /, **state: Any) -> Path:
    """Save what `find_checkpoint` looks at."""
    full = {"config": config.model_dump(mode="json"), **state}
    facts = FACTS.to_dict()
    return save_checkpoint(
        run_dir, RunState(step=step, facts=facts, data_fingerprint=FINGERPRINT, **full), {}
    )


def find(run_dir: Path, config: TrainConfig, **given: Any) -> tuple[int | None, list[str]]:
    """Return the step of the checkpoint found and the warnings."""
    warnings: list[str] = []
    facts, fingerprint = given.get("facts", FACTS), given.get("fingerprint", FINGERPRINT)
    found = find_checkpoint(config, run_dir, facts, fingerprint, warnings.append)
    return (None if found is None else found.step), warnings


# Names


def test_given_names_are_kept() -> None:
    config = with_names(configure("project_name=p", "run_name=r", "checkpoint_path=c/d"))
    assert (config.project_name, config.run_name, config.checkpoint_path) == ("p", "r", "c/d")


def test_names_follow_the_published_ones() -> None:
    config = with_names(configure("run_name=mine"))
    assert config.project_name == "Where ACT-torch"
    assert config.checkpoint_path == "checkpoints/Where ACT-torch/mine"
    assert with_names(configure("checkpoint_path=a/b")).run_name == "b"


def test_a_run_without_a_name_gets_a_new_one() -> None:
    first, second = with_names(configure()), with_names(configure())
    assert first.run_name is not None
    assert re.fullmatch(r"hrm [a-z]+-[a-z]+", first.run_name)
    assert first.run_name != second.run_name
    assert first.checkpoint_path == f"checkpoints/Where ACT-torch/{first.run_name}"


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "' '", "'a\\b'"])
@pytest.mark.parametrize("key", ["run_name", "project_name"])
def test_a_name_cannot_lead_elsewhere(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*used as a folder's name"):
        configure(f"{key}={name}")


# The folder


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    prepare_run_dir(tmp_path / "a" / "b")
    prepare_run_dir(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=f"checkpoint_path={path}: cannot be written: "):
            prepare_run_dir(path)

    def refuse(path: Path, content: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ConfigError, match=f"checkpoint_path={tmp_path}: .*: Permission denied"):
        prepare_run_dir(tmp_path)


def test_a_name_too_long_for_a_folder_is_a_mistake_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        prepare_run_dir(tmp_path / ("x" * 300))


def test_the_saved_settings_give_the_same_run(tmp_path: Path) -> None:
    config = with_names(configure("arch.hidden_size=64", "lr=3e-4", "experiment=sudoku_demo"))
    save_config(tmp_path, config)
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert TrainConfig.model_validate(content) == config


def test_a_configuration_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.yaml: could not be written: No such file"):
        save_config(tmp_path / "gone", configure())


# Where a run goes on


def test_a_new_run_has_no_checkpoint(tmp_path: Path) -> None:
    assert find(tmp_path, configure()) == (None, [])
    assert find(tmp_path / "nowhere", configure()) == (None, [])
    assert find(tmp_path, configure("resume=never")) == (None, [])


def test_auto_takes_the_newest_good_one_with_a_warning(tmp_path: Path) -> None:
    config = configure()
    save(tmp_path, 1, config)
    (save(tmp_path, 2, config) / "state.json").write_text("{}")
    step, warnings = find(tmp_path, config)
    assert step == 1
    assert len(warnings) == 1
    assert "step_2/state.json" in warnings[0]


def test_a_step_asked_for_by_name_never_falls_back(tmp_path: Path) -> None:
    config = configure()
    save(tmp_path, 1, config)
    damaged = save(tmp_path, 2, config)
    assert find(tmp_path, configure("resume=1")) == (1, [])
    (damaged / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"step_2/state\.json"):
        find(tmp_path, configure("resume=2"))
    with pytest.raises(CheckpointError, match="step_3: no such checkpoint"):
        find(tmp_path, configure("resume=3"))


def test_never_refuses_a_folder_with_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 1, configure())
    with pytest.raises(ConfigError, match=f"resume=never: {tmp_path} already holds checkpoints"):
        find(tmp_path, configure("resume=never"))


CHANGED = {
    "lr": ("lr=2e-4", "lr: 0.0001 -> 0.0002"),
    "arch.H_cycles": ("arch.H_cycles=3", "arch.H_cycles: 2 -> 3"),
    "arch.loss.loss_type": ("loss=act_softmax", "arch.loss.loss_type: stablemax"),
    "seed": ("seed=1", "seed: 0 -> 1"),
    "optimizer.name": ("optimizer=grouped", "optimizer.name: adam_atan2 -> adamw"),
    "eval_interval": ("eval_interval=5000", "eval_interval: 10000 -> 5000"),
    "reduction": ("reduction=exact", "reduction: fast -> exact"),
    "global_batch_size": ("global_batch_size=12", "global_batch_size: 768 -> 12"),
}


@pytest.mark.parametrize(("setting", "shown"), CHANGED.values(), ids=CHANGED)
def test_a_changed_setting_is_refused_by_name_unless_wanted(
    tmp_path: Path, setting: str, shown: str
) -> None:
    save(tmp_path, 1, configure())
    with pytest.raises(CheckpointError, match="resume_changed=true") as caught:
        find(tmp_path, configure(setting))
    assert shown in str(caught.value)
    step, warnings = find(tmp_path, configure(setting, "resume_changed=true"))
    assert step == 1
    assert len(warnings) == 1
    assert shown in warnings[0]


def test_every_changed_setting_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1, configure())
    with pytest.raises(CheckpointError, match=r"beta1: 0\.9 -> 0\.8; epochs: 100000 -> 10000; lr"):
        find(tmp_path, configure("lr=1", "beta1=0.8", "epochs=10000"))


def test_settings_that_an_older_version_did_not_have_are_no_change(tmp_path: Path) -> None:
    older = configure().model_dump(mode="json")
    del older["arch"]["heads"]
    older["arch"]["loss"] = {"name": "act", "loss_type": older["arch"]["loss"]["loss_type"]}
    save(tmp_path, 1, configure(), config=older)
    assert find(tmp_path, configure()) == (1, [])
    with pytest.raises(CheckpointError, match=r"arch\.heads\.lm\.name: linear -> tied"):
        find(tmp_path, configure("heads=tied"))


NEUTRAL = {
    "logger": "logger=jsonl",
    "data": "data=sudoku",
    "data_path": "data_path=./elsewhere",
    "data_paths": "data_paths=[elsewhere]",
    "project_name": "project_name=other",
    "run_name": "run_name=other",
    "checkpoint_path": "checkpoint_path=other",
    "load_checkpoint": "load_checkpoint=other",
    "resume": "resume=1",
    "resume_changed": "resume_changed=true",
    "checkpoint_interval": "checkpoint_interval=5",
    "checkpoint_every_eval": "checkpoint_every_eval=true",
    "keep_last": "keep_last=7",
    "keep_best": "keep_best=7",
    "min_eval_interval": "min_eval_interval=1",
    "eval_batch_size": "eval_batch_size=3",
    "eval_max_examples": "eval_max_examples=3",
    "eval_save_outputs": "eval_save_outputs=[preds]",
    "evaluators": "evaluators=[arc]",
    "arc_vote_across_evaluations": "arc_vote_across_evaluations=true",
    "data_paths_test": "data_paths_test=[other]",
    "device": "device=cpu",
    "compile": "compile=false",
    "num_threads": "num_threads=1",
    "rank_timeout": "rank_timeout=30",
    "log_interval": "log_interval=1",
    "diagnose_interval": "diagnose_interval=7",
    "max_steps": "max_steps=8",
}


def test_settings_that_change_no_result_may_change(tmp_path: Path) -> None:
    assert set(NEUTRAL) == NEUTRAL_KEYS
    save(tmp_path, 1, configure())
    assert find(tmp_path, configure(*NEUTRAL.values())) == (1, [])


def test_changed_data_are_refused_unless_wanted(tmp_path: Path) -> None:
    config = configure()
    save(tmp_path, 1, config)
    with pytest.raises(CheckpointError, match="the content of the training data"):
        find(tmp_path, config, fingerprint="0" * 64)
    step, warnings = find(tmp_path, configure("resume_changed=true"), fingerprint="0" * 64)
    assert (step, len(warnings)) == (1, 1)


def test_data_of_another_shape_are_refused_in_any_case(tmp_path: Path) -> None:
    save(tmp_path, 1, configure())
    other = DataFacts(vocab_size=11, seq_len=81, num_puzzle_identifiers=1)
    with pytest.raises(CheckpointError, match="step_1 does not fit the data"):
        find(tmp_path, configure("resume_changed=true"), facts=other)


# Going back


def names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths]


def test_newer_checkpoints_are_renamed_not_lost(tmp_path: Path) -> None:
    config = configure()
    for step in (1, 2, 3):
        save(tmp_path, step, config)
    assert names(rename_newer(tmp_path, 3)) == []
    assert names(rename_newer(tmp_path, 1)) == ["abandoned_step_2", "abandoned_step_3"]
    assert list_steps(tmp_path) == [1]
    save(tmp_path, 2, config)
    assert names(rename_newer(tmp_path, 1)) == ["abandoned_step_2_1"]
    assert len(names(list(tmp_path.iterdir()))) == 4
    assert find(tmp_path, config) == (1, [])


# The checkpoint that all ranks go on from


def second_rank(told: Any) -> Any:
    """Stands for the second of two ranks, which is told what the first has found."""
    return SimpleNamespace(
        rank=1,
        is_main=False,
        broadcast_object=lambda value: told,
        gather_objects=lambda value: [None, value],
    )


def found_by_first(found: Checkpoint | None) -> Any:
    """What the first rank tells of what it has found."""
    told = []
    first = SimpleNamespace(
        rank=0,
        is_main=True,
        broadcast_object=lambda value: told.append(value) or value,
        gather_objects=lambda value: [value, None],
    )
    assert take_over(found, first) is found  # type: ignore[arg-type]
    return told[0]


def test_a_rank_takes_the_checkpoint_of_the_first_whatever_it_sees_itself(tmp_path: Path) -> None:
    first, newer = (
        load_checkpoint(save_checkpoint(tmp_path, RunState(step=n), {})) for n in (1, 2)
    )
    taken = take_over(newer, second_rank(found_by_first(first)))
    assert taken is not None
    assert (taken.path, taken.step) == (first.path, 1)
    assert take_over(None, second_rank(found_by_first(first))) == taken
    assert take_over(newer, second_rank(found_by_first(None))) is None


def test_a_rank_that_cannot_take_it_stops_all(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, RunState(step=1), {})
    found = load_checkpoint(path)
    told = found_by_first(found)
    save_checkpoint(tmp_path, RunState(step=1, score=0.5), {})
    with pytest.raises(CheckpointError, match="rank 1: .*step_1: is not the one that rank 0 sees"):
        take_over(None, second_rank(told))
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"rank 1: .*step_1/state\.json"):
        take_over(None, second_rank(told))
    failed = SimpleNamespace(
        rank=0,
        is_main=True,
        broadcast_object=lambda value: value,
        gather_objects=lambda value: [value, "rank 1: no such checkpoint"],
    )
    with pytest.raises(CheckpointError, match="rank 1: no such checkpoint"):
        take_over(found, failed)  # type: ignore[arg-type]


def test_a_new_run_is_new_on_all_ranks() -> None:
    assert take_over(None, Ranks("cpu")) is None
