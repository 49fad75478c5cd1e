"""What is pushed to the Hub is the checkpoint's own, and nothing of the machine."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.errors import ConfigError
from scripts import push_to_hub
from training.checkpoint.state import RunState


def test_settings_name_no_place_of_the_machine() -> None:
    config = {
        "data_path": "/home/me/data/hard",
        "data_paths": ["/home/me/data/hard", "data/easy"],
        "data": {"name": "built", "path": "/home/me/data/hard"},
        "plugins": ["/home/me/own.py"],
        "logger": {"mlflow": {"tracking_uri": "https://me:secret@host"}},
        "lr": 0.5,
    }
    found = push_to_hub.without_places(RunState(step=1, config=config)).config
    assert found == {
        "data_path": "hard",
        "data_paths": ["hard", "data/easy"],
        "data": {"name": "built", "path": "hard"},
        "plugins": ["own.py"],
        "logger": {},
        "lr": 0.5,
    }


def test_evaluations_of_other_checkpoints_are_not_its_own(tmp_path: Path) -> None:
    for step in (5, 10):
        (tmp_path / f"eval_step_{step}.json").write_text(json.dumps({"step": step}))
    trained: Any = SimpleNamespace(weights=tmp_path / "step_10", step=10)
    assert push_to_hub.evaluations_of(trained) == {"eval_step_10.json": {"step": 10}}


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """Above all the run's own, whose checkpoint a run can go on from."""
    (tmp_path / "step_1").mkdir()
    trained: Any = SimpleNamespace(weights=tmp_path / "step_1")
    with pytest.raises(ConfigError, match="is not empty, and nothing in it is overwritten"):
        push_to_hub.write_checkpoint(trained, RunState(step=1), tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "step_1"]


def test_a_package_that_is_missing_is_named_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(push_to_hub, "find_spec", lambda name: None)
    assert push_to_hub.main(["nowhere", "me/x"]) == 2
    assert "huggingface-hub is not installed (pip install '.[hub]')" in capsys.readouterr().err
