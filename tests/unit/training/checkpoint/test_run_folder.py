"""The run's folder: its name, its creation, and the checkpoint to resume."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from models.config import DataFacts
from runtime.errors import CheckpointError, ConfigError
from runtime.ranks import Ranks
from training.checkpoint import run_folder
from training.checkpoint.run_folder import (
    agree_on_checkpoint,
    prepare_run_dir,
    save_config,
    with_names,
)
from training.checkpoint.store import (
    Checkpoint,
    RunState,
    list_steps,
    load_checkpoint,
    save_checkpoint,
)
from training.config.composition import load_config
from training.config.schema import NEUTRAL_KEYS, TrainConfig

FACTS = DataFacts(vocab_size=6, seq_len=16, num_puzzle_identifiers=1)
FINGERPRINT = "f" * 64


@cache
def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", ["data_path=some/where", *settings])


def save(run_dir: Path, step: int, config: TrainConfig, /, **state: Any) -> Path:
    """Save a checkpoint with the state that `find_checkpoint` reads."""
    full = {"config": config.model_dump(mode="json"), "facts": FACTS.to_dict(), **state}
    return save_checkpoint(run_dir, RunState(step=step, data_fingerprint=FINGERPRINT, **full), {})


def find(run_dir: Path, config: TrainConfig, **given: Any) -> tuple[int | None, list[str]]:
    """Return the step of the checkpoint found and the warnings."""
    warnings: list[str] = []
    facts, fingerprint = given.get("facts", FACTS), given.get("fingerprint", FINGERPRINT)
    found = run_folder.find_checkpoint(config, run_dir, facts, fingerprint, warnings.append)
    return (None if found is None else found.step), warnings


def test_names_are_kept_or_follow_the_published_ones() -> None:
    config = with_names(configure("project_name=p", "run_name=r", "checkpoint_path=c/d"))
    assert (config.project_name, config.run_name, config.checkpoint_path) == ("p", "r", "c/d")
    config = with_names(configure("run_name=mine"))
    assert config.project_name == "Where ACT-torch"
    assert config.checkpoint_path == "checkpoints/Where-ACT-torch/mine"
    assert with_names(configure("checkpoint_path=a/b")).run_name == "b"
    assert with_names(configure("checkpoint_path=.")).run_name == Path.cwd().name
    first, second = with_names(configure()), with_names(configure())
    assert re.fullmatch(r"hrm [a-z]+-[a-z]+", str(first.run_name))
    assert first.run_name != second.run_name
    assert first.checkpoint_path == f"checkpoints/Where-ACT-torch/{first.run_name}".replace(
        " ", "-"
    )


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "' '", "'a\\b'"])
@pytest.mark.parametrize("key", ["run_name", "project_name"])
def test_a_name_cannot_lead_elsewhere(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*used as a folder's name"):
        configure(f"{key}={name}")


# The folder


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint_path=: string should have at least 1"):
        configure("checkpoint_path=")


def test_a_path_that_is_not_utf_8_is_refused_by_name() -> None:
    config = configure("checkpoint_path='a \udcff'")
    with pytest.raises(ConfigError, match=r"^checkpoint_path=.*: the name is not UTF-8:"):
        prepare_run_dir(Path(str(config.checkpoint_path)))


def test_a_folder_is_created_or_the_error_names_it(tmp_path: Path) -> None:
    for _ in range(2):
        prepare_run_dir(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/run", "x" * 300):
        with pytest.raises(ConfigError, match=f"{tmp_path / name}: "):
            prepare_run_dir(tmp_path / name)


def test_the_saved_settings_give_the_same_run(tmp_path: Path) -> None:
    config = with_names(configure("arch.hidden_size=64", "lr=3e-4", "experiment=trm_sudoku_easy"))
    save_config(tmp_path, config)
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert TrainConfig.model_validate(content) == config
    with pytest.raises(CheckpointError, match=r"config\.yaml: No such file"):
        save_config(tmp_path / "gone", configure())


# The checkpoint to resume


def test_a_new_run_has_no_checkpoint_and_resume_never_refuses_old_ones(tmp_path: Path) -> None:
    for folder, setting in ((tmp_path, "resume=auto"), (tmp_path / "nowhere", "resume=auto")):
        assert find(folder, configure(setting)) == (None, [])
    assert find(tmp_path, configure("resume=never")) == (None, [])
    save(tmp_path, 1, configure())
    told = f"resume=never: {tmp_path} already holds checkpoints; choose another checkpoint_path, or"
    with pytest.raises(ConfigError, match=told):
        find(tmp_path, configure("resume=never"))


def test_only_auto_falls_back_to_an_older_checkpoint(tmp_path: Path) -> None:
    config = configure()
    save(tmp_path, 1, config)
    (save(tmp_path, 2, config) / "state.json").write_text("{}")
    step, (warning,) = find(tmp_path, config)
    assert step == 1
    assert "step_2/state.json" in warning
    assert find(tmp_path, configure("resume=1")) == (1, [])
    for number, told in ((2, r"step_2/state\.json"), (3, "step_3: no such checkpoint")):
        with pytest.raises(CheckpointError, match=told):
            find(tmp_path, configure(f"resume={number}"))


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("lr=2e-4 beta1=0.8", "beta1: 0.9 -> 0.8; lr: 0.0001 -> 0.0002"),
        ("arch.H_cycles=3", "arch.H_cycles: 2 -> 3"),
        ("loss=act_softmax", "arch.loss.loss_type: stablemax"),
        ("seed=1", "seed: 0 -> 1"),
        ("optimizer=grouped", "optimizer.name: adam_atan2 -> adamw"),
        ("eval_interval=5000", "eval_interval: 10000 -> 5000"),
        ("reduction=exact", "reduction: fast -> exact"),
        ("global_batch_size=12", "global_batch_size: 768 -> 12"),
    ],
)
def test_a_changed_setting_is_refused_by_name_unless_wanted(
    tmp_path: Path, setting: str, shown: str
) -> None:
    save(tmp_path, 1, configure())
    with pytest.raises(CheckpointError, match="resume_changed=true") as caught:
        find(tmp_path, configure(*setting.split()))
    assert shown in str(caught.value)
    assert "another checkpoint_path, or" in str(caught.value)  # It outranks run_name.
    step, (warning,) = find(tmp_path, configure(*setting.split(), "resume_changed=true"))
    assert step == 1
    assert shown in warning


def test_settings_newer_than_the_checkpoint_are_not_changes(tmp_path: Path) -> None:
    older = configure().model_dump(mode="json")
    del older["arch"]["heads"]
    older["arch"]["loss"] = {"name": "act", "loss_type": older["arch"]["loss"]["loss_type"]}
    older["arch"] |= {"chains": 1, "rollout_prob": 0.0, "rollout_max_steps": 64}
    older |= {"data_on_device": True, "batches_ahead": 2, "cuda_graph": False}
    older |= {"arc_vote_across_evaluations": True}
    save(tmp_path, 1, configure(), config=older)
    assert find(tmp_path, configure()) == (1, [])
    with pytest.raises(CheckpointError, match=r"arch\.heads\.lm\.name: linear -> tied"):
        find(tmp_path, configure("heads=tied"))
    older["arch"]["chains"], older["optimizer"]["kernel"] = 4, "package"
    save(tmp_path, 2, configure(), config=older)
    told = r"arch\.chains: 4 -> \(not set\); .*optimizer\.kernel: package -> ours"
    with pytest.raises(CheckpointError, match=told):
        find(tmp_path, configure())


NEUTRAL = """
    logger=jsonl data=sudoku data_path=./elsewhere data_paths=[elsewhere] data_paths_test=[other]
    project_name=other run_name=other checkpoint_path=other load_checkpoint=other resume=1
    resume_changed=true checkpoint_interval=5 checkpoint_every_eval=true keep_last=7 keep_best=7
    min_eval_interval=1 eval_batch_size=3 eval_max_examples=3 eval_save_outputs=[preds]
    limit_eval_batches=2 max_time=1h dry_run=true on_nonfinite=skip max_nonfinite=3
    evaluators=[arc] device=cpu compile=false num_threads=1
    rank_timeout=30 log_interval=1 diagnose_interval=7 max_steps=8
    sweep_name=other plugins=[] micro_batch_size=4 profile=true eval_split=null
    callbacks=[early_stop] background_save=false load_puzzle_rows=zero
"""


def test_settings_that_change_no_result_may_change(tmp_path: Path) -> None:
    neutral = NEUTRAL.split()
    assert {setting.split("=")[0] for setting in neutral} == NEUTRAL_KEYS
    save(tmp_path, 1, configure())
    assert find(tmp_path, configure(*neutral)) == (1, [])


def test_an_older_record_does_not_name_the_kind_of_its_data(tmp_path: Path) -> None:
    config, named = configure(), replace(FACTS, kind="maze")
    save(tmp_path, 1, config)
    assert find(tmp_path, config, facts=named) == (1, [])
    save(tmp_path, 2, config, facts=named.to_dict())
    assert find(tmp_path, config, facts=named) == (2, [])


def test_changed_data_are_refused_unless_wanted_and_another_shape_always(tmp_path: Path) -> None:
    config, wanted = configure(), configure("resume_changed=true")
    save(tmp_path, 1, config)
    with pytest.raises(CheckpointError, match="the content of the training data"):
        find(tmp_path, config, fingerprint="0" * 64)
    step, warnings = find(tmp_path, wanted, fingerprint="0" * 64)
    assert (step, len(warnings)) == (1, 1)
    other = DataFacts(vocab_size=11, seq_len=81, num_puzzle_identifiers=1)
    with pytest.raises(CheckpointError, match="step_1 does not fit the data"):
        find(tmp_path, wanted, facts=other)


# Going back


def test_newer_checkpoints_are_renamed_not_lost(tmp_path: Path) -> None:
    def renamed(step: int) -> list[str]:
        return [path.name for path in run_folder.rename_newer(tmp_path, step)]

    config = configure()
    for step in (1, 2, 3):
        save(tmp_path, step, config)
    assert renamed(3) == []
    assert renamed(1) == ["abandoned_step_2", "abandoned_step_3"]
    assert list_steps(tmp_path) == [1]
    save(tmp_path, 2, config)
    assert renamed(1) == ["abandoned_step_2_1"]
    assert len(list(tmp_path.iterdir())) == 4
    assert find(tmp_path, config) == (1, [])


# The checkpoint that all ranks resume


def rank(number: int, broadcast: Callable[[Any], Any], *others: str) -> Any:
    """Return a stand-in for one of several ranks; `others` are the faults of the other ranks."""
    return SimpleNamespace(
        rank=number,
        is_main=number == 0,
        broadcast_object=broadcast,
        gather_objects=lambda fault: [fault, *others],
    )


def second_rank(received: Any) -> Any:
    return rank(1, lambda value: received)


def found_by_first(found: Checkpoint | None) -> Any:
    """Return the message that rank 0 sends to the others about its checkpoint."""
    sent = []
    assert agree_on_checkpoint(found, rank(0, lambda value: sent.append(value) or value)) is found
    return sent[0]


def test_a_rank_takes_the_checkpoint_of_the_first_whatever_it_sees_itself(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, RunState(step=n), {}) for n in (1, 2)]
    first, newer = map(load_checkpoint, paths)
    taken = agree_on_checkpoint(newer, second_rank(found_by_first(first)))
    assert taken is not None
    assert (taken.path, taken.step) == (first.path, 1)
    assert agree_on_checkpoint(None, second_rank(found_by_first(first))) == taken
    assert agree_on_checkpoint(newer, second_rank(found_by_first(None))) is None
    assert agree_on_checkpoint(None, Ranks("cpu")) is None


def test_a_rank_that_cannot_take_it_stops_all(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, RunState(step=1), {})
    found = load_checkpoint(path)
    told = found_by_first(found)
    with pytest.raises(CheckpointError, match="rank 1: not found"):
        agree_on_checkpoint(found, rank(0, lambda value: value, "rank 1: not found"))
    save_checkpoint(tmp_path, RunState(step=1, score=0.5), {})
    with pytest.raises(CheckpointError, match="rank 1: .*step_1: differs from what rank 0 sees"):
        agree_on_checkpoint(None, second_rank(told))
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"rank 1: .*step_1/state\.json"):
        agree_on_checkpoint(None, second_rank(told))
