"""Only the checkpoint is pushed to the Hub, without private texts and paths."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.hub import pushing as push_to_hub
from apps.hub.card import card
from apps.reports.solving import names_known_to
from models.config import DataFacts
from models.hrm.config import HRMConfig
from runtime.errors import ConfigError
from training.checkpoint.store import RunState, load_checkpoint
from training.checkpoint.trained_model import RecordedRun, TrainedModel


def test_settings_have_no_paths_of_the_machine_and_no_commands() -> None:
    config = {
        "arch": {"name": "hrm", "hidden_size": 8, "table": "~/own/table.npy"},
        "data_path": "/home/me/data/hard",
        "data_paths": ["/home/me/data/hard", "data/easy", "../../me/other"],
        "data": {
            "name": "built",
            "path": "https://me:secret@host/hard",
            "evaluators": ["arc"],
            "build_command": "fetch --token secret",
            "builder": {"name": "own", "flags": "--token secret"},
        },
        "plugins": ["/home/me/own.py"],
        "logger": {"mlflow": {"tracking_uri": "https://me:secret@host"}},
        "load_checkpoint": "/home/me/secret",
        "run_name": "secret",
        "lr": 0.5,
        "ema": True,
        "weight_decay": None,
    }
    found = push_to_hub.without_private_texts(RunState(step=1, config=config)).config
    assert found == {
        "arch": {"name": "hrm", "hidden_size": 8, "table": "table.npy"},
        "data_path": "hard",
        "data_paths": ["hard", "data/easy", "other"],
        "data": {"name": "built", "path": "hard", "evaluators": ["arc"]},
        "plugins": ["own.py"],
        "lr": 0.5,
        "ema": True,
        "weight_decay": None,
    }


def test_commands_that_built_the_data_have_no_paths(tmp_path: Path) -> None:
    command = ["dataset/build.py", "--source", "/home/me/raw", "--output-dir=/home/me/data"]
    (tmp_path / "manifest.json").write_text(json.dumps({"command": command, "seed": 1}))
    trained: Any = SimpleNamespace(run=SimpleNamespace(data_folders=lambda split: [str(tmp_path)]))
    (found,) = push_to_hub.manifests(trained).values()
    assert found["command"] == ["dataset/build.py", "--source", "raw", "--output-dir=data"]


@pytest.mark.parametrize(
    ("written", "pushed"),
    [
        ("/home/alice/lr=3/data", "data"),
        ("--source=/home/alice/lr=3/data", "--source=data"),
        ("--set=data.path=~/data", "--set=data.path=data"),
        ("--source=https://me:secret@host/raw?a=b", "--source=raw?a=b"),
        ("--parts=data/a,/home/me/b", "--parts=data/a,b"),
        ("--parts=data/../../me/a", "--parts=a"),
        ("data_paths=[a, /home/me/b]", "data_paths=[a, b]"),
        ("data/builder=../me/own", "data/builder=own"),
        ("--parts=/home/me/a,../b", "--parts=a,b"),
        ("/home/me,you/data", "data"),
        ("--parts=data/a,data/lr=3/b", "--parts=data/a,data/lr=3/b"),
        ("data/builder=/home/me/own", "data/builder=own"),
        ("data/builder=~/own", "data/builder=own"),
        ("data/builder=data/own", "data/builder=data/own"),
        ("data_paths=[/home/me/data]", "data_paths=[data]"),
        ("--sizes=1,2", "--sizes=1,2"),
    ],
)
def test_paths_are_shortened_wherever_they_stand(written: str, pushed: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"command": [written]}))
    trained: Any = SimpleNamespace(run=SimpleNamespace(data_folders=lambda split: [str(tmp_path)]))
    (found,) = push_to_hub.manifests(trained).values()
    assert found["command"] == [pushed]


def test_data_sets_of_the_same_name_are_all_on_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface-hub is not installed")
    folders = [tmp_path / name / "sudoku" for name in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"command": ["build"], "seed": 1}')
    run = SimpleNamespace(data_folders=lambda split: list(map(str, folders)))
    trained: Any = SimpleNamespace(run=run, weights=tmp_path)
    monkeypatch.setattr(push_to_hub, "num_parameters", lambda trained: 1)
    saved = SimpleNamespace(state=RunState(step=1, config={}))
    monkeypatch.setattr(push_to_hub.store, "load_checkpoint", lambda path: saved)
    text = card(push_to_hub.card_facts(trained, "hf://me/x", license="mit"))
    assert text.count("\n- sudoku: built by `build`, seed 1\n") == 2
    assert str(tmp_path) not in text


def test_the_names_in_a_puzzle_embedding_are_pushed(
    arc_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = HRMConfig(hidden_size=32, num_heads=2, puzzle_emb_ndim=32)
    run = RecordedRun(arch=arch, data_path=str(arc_data))
    trained = TrainedModel(tmp_path / "step_1", run, DataFacts(12, 25, 13), 1)
    monkeypatch.setattr(push_to_hub, "shared_state", lambda trained: RunState(step=1))
    push_to_hub.write_checkpoint(trained, tmp_path / "pushed")
    folder = load_checkpoint(tmp_path / "pushed" / "step_1").path
    names = json.loads((arc_data / "identifiers.json").read_text())
    assert names_known_to(replace(trained, weights=folder), pytest.fail) == names
    gone = replace(trained, run=RecordedRun(arch=arch, data_path="nowhere"))
    push_to_hub.write_checkpoint(gone, tmp_path / "without")
    assert not (tmp_path / "without" / "step_1" / "identifiers.json").exists()


def test_evaluations_of_other_checkpoints_are_left_out(tmp_path: Path) -> None:
    for step in (5, 10):
        (tmp_path / f"eval_step_{step}.json").write_text(json.dumps({"step": step}))
    trained: Any = SimpleNamespace(weights=tmp_path / "step_10", step=10)
    assert push_to_hub.evaluations_of(trained) == {"eval_step_10.json": {"step": 10}}


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """Above all the run's own folder: the run can resume from its checkpoint."""
    (tmp_path / "step_1").mkdir()
    trained: Any = SimpleNamespace(weights=tmp_path / "step_1")
    with pytest.raises(ConfigError, match="is not empty; name a new or empty folder"):
        push_to_hub.write_checkpoint(trained, tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "step_1"]


def test_a_package_that_is_missing_is_named_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(push_to_hub, "find_spec", lambda name: None)
    assert push_to_hub.main(["nowhere", "me/x"]) == 2
    assert "huggingface-hub is not installed (pip install '.[hub]')" in capsys.readouterr().err
