"""scripts/gpu_train.py: asks a run to stop in time, and shows its last metrics."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.bench import gpu_train
from apps.bench.gpu_train import last_metrics, run_for

# Ends at SIGTERM as a run does that has saved itself.
SAVES = "import signal, sys; signal.sigwait([signal.SIGTERM]); sys.exit(75)"


@pytest.fixture(autouse=True)
def _blocked() -> object:
    """Processes that start in a test wait for the signal from their first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_run_that_ends_by_itself_gives_its_exit_code() -> None:
    assert run_for([sys.executable, "-c", "raise SystemExit(3)"], 60.0, lambda: True) == 3


def test_a_run_is_asked_to_stop_once_it_has_begun() -> None:
    asked = iter([False, False, True])
    assert run_for([sys.executable, "-c", SAVES], 0.0, lambda: next(asked)) == 75
    assert next(asked, None) is None


def test_one_that_does_not_begin_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_train, "_FIRST_SECONDS", 0.1)
    assert run_for([sys.executable, "-c", SAVES], 0.0, lambda: False) == 75


def test_one_that_does_not_stop_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_train, "_SAVE_SECONDS", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert run_for(command, 0.0, lambda: True) == -signal.SIGKILL
    assert "killed" in capsys.readouterr().out


def test_the_command_is_that_of_pretrain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    metrics = tmp_path / "demo/metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text("{}\n" * 5)

    def run(command: list[str], seconds: float, has_begun: Callable[[], bool]) -> int:
        assert not has_begun()
        metrics.write_text("{}\n")  # It drops what was logged behind its checkpoint.
        assert not has_begun()
        metrics.write_text("{}\n" * 2)
        assert has_begun()
        asked.append((command[2:], seconds))
        return 75

    monkeypatch.setattr(gpu_train, "run_for", run)
    assert gpu_train.main(["demo", "--minutes=2", f"--folder={tmp_path}", "lr=1e-3"]) == 0
    own = ["experiment=demo", f"checkpoint_path={tmp_path / 'demo'}", "logger=jsonl", "lr=1e-3"]
    assert asked == [(own, 120.0)]
    assert capsys.readouterr().out == ""


def test_the_last_metrics_of_training_and_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = ['{"step": 1, "train/lr": 1.0}', '{"step": 1, "eval/accuracy": 0.5}']
    lines += ['{"step": 2, "train/lr": 2.0}', '{"step": 3, "tra']
    path.write_text("\n".join(lines))
    assert last_metrics(tmp_path / "none") == ["no step was logged"]
    assert last_metrics(path) == [lines[2], lines[1]]
