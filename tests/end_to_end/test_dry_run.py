"""dry_run=true does everything once, tells what the run would do, and leaves nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import CheckpointError, NonFiniteError
from training.checkpoint import run as keeping
from training.checkpoint.run import RunKeeper
from training.step import Learner


def told(text: str) -> dict[str, str]:
    """Return the figures that a dry run printed, by name."""
    return dict(re.findall(r"^  (\S.*?)  +(.*)$", text, re.MULTILINE))


def contents(folder: Path) -> dict[str, int]:
    """Return the files and folders below a folder, with the times of their last change."""
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["checkpoint_interval=3"],
        ["checkpoint_interval=3", "max_steps=8"],
        ["checkpoint_interval=4", "max_steps=10", "min_eval_interval=2"],
        ["checkpoint_every_eval=true", "min_eval_interval=2"],
        ["min_eval_interval=99", "eval_interval=null"],
        ["limit_train_batches=3", "checkpoint_interval=2", "ema=true"],
        ["eval_split=null", "optimizer=muon"],
    ],
)
def test_it_tells_what_the_run_does(
    run: Any,
    tiny_settings: list[str],
    train: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    settings: list[str],
    tmp_path: Path,
) -> None:
    before = contents(tmp_path)
    train([*tiny_settings, *settings, "dry_run=true"])
    out = capsys.readouterr().out
    assert before.keys() == contents(tmp_path).keys()
    assert f"its folder would be {tmp_path / 'run'}\n" in out

    saved, save = list[int](), RunKeeper.save

    def noted(keeper: RunKeeper, progress: Any, *rest: Any) -> None:
        saved.append(progress.step)
        save(keeper, progress, *rest)

    monkeypatch.setattr(RunKeeper, "save", noted)
    files, found = run(*settings), told(out)
    total = files.state(files.steps[-1])["total_steps"]
    assert found["steps"] == f"{len(files.train_records)} (schedule: {total})"
    assert found["examples"] == str(8 * len(files.train_records))
    assert found["evaluations"] == str(len(files.eval_records))
    assert found["checkpoints written"] == str(len(set(saved)))
    size = sum(path.stat().st_size for path in (files.folder / f"step_{saved[-1]}").iterdir())
    assert int(found["bytes of a checkpoint"].replace(",", "")) == pytest.approx(size, rel=0.02)
    assert re.fullmatch(r"[\d,]+ ms", found["the first step took"])


def test_an_existing_run_and_missing_folders_stay_as_they_are(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = run("max_steps=3")
    before = contents(files.folder)
    run("dry_run=true", "logger=tensorboard", "profile=true", "eval_save_outputs=[preds]")
    assert contents(files.folder) == before
    held = f"its folder would be {files.folder}, which already has a checkpoint at step 3"
    assert held in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    run("dry_run=true", name="deep/er/run")
    assert {path.name for path in tmp_path.iterdir()} == names


def break_step(patched: pytest.MonkeyPatch) -> None:
    update = Learner._update
    patched.setattr(Learner, "_update", lambda own, loss, *rest: update(own, loss / 0, *rest))


def break_restoring(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(keeping.tensors, "restore_optimizer", lambda *given: None)


FAULTS = {
    "step": (break_step, NonFiniteError, "step 1: the loss"),
    "restoring": (break_restoring, CheckpointError, "step_1 restores another .*exp_avg"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_and_nothing_stays(
    run: Any, monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path
) -> None:
    before = contents(tmp_path).keys()
    strike, error, said = FAULTS[fault]
    strike(monkeypatch)
    with pytest.raises(error, match=said):
        run("dry_run=true")
    assert contents(tmp_path).keys() == before


def test_a_sweep_makes_no_dry_runs(run_python: Any, tiny_settings: list[str]) -> None:
    finished = run_python("pretrain.py", "-m", *tiny_settings, "dry_run=true", "seed=0,1")
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert "dry_run=true tries a single run: leave out -m" in finished.err
