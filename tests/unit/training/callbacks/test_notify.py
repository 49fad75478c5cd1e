"""notify: the command's environment, and a command that fails or hangs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import NonFiniteError, Preempted
from training.trainer import Trainer

FACTS = '"$RUN_OUTCOME|$RUN_STEP|$RUN_BEST_SCORE|$RUN_REASON|$RUN_FOLDER"'


@pytest.fixture
def asks(tmp_path: Path) -> str:
    """Return a setting with a command that writes its facts to `tmp_path / "told"`."""
    path = tmp_path / "notify.sh"
    path.write_text(f"echo {FACTS} >> {tmp_path / 'told'}\n")
    return f"callbacks=[{{name: notify, command: 'sh {path}'}}]"


def told(tmp_path: Path) -> list[str]:
    return (tmp_path / "told").read_text().splitlines()


def test_a_finished_and_an_unfinished_run(run: Any, asks: str, tmp_path: Path) -> None:
    run(asks, "eval_split=null", "max_steps=2")
    run(asks)
    folder = tmp_path / "run"
    stopped, finished = told(tmp_path)
    assert stopped == f"stopped|2|||{folder}"
    outcome, step, score, reason, where = finished.split("|")
    assert (outcome, step, reason, where) == ("finished", "16", "", str(folder))
    assert 0.0 <= float(score) <= 1.0


def test_a_preempted_and_a_failed_run(
    run: Any, asks: str, tmp_path: Path, signal_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_at(2, 15)
    with pytest.raises(Preempted):
        run(asks)
    monkeypatch.undo()

    def fail(trainer: Trainer, batch: Any) -> None:
        raise NonFiniteError("step 3: not finite")

    monkeypatch.setattr(Trainer, "_train_step", fail)
    with pytest.raises(NonFiniteError):
        run(asks)
    assert [line.rpartition("|")[0] for line in told(tmp_path)] == [
        "preempted|2||Preempted: asked to stop: saved at step 2; the same command resumes the run",
        "failed|2||NonFiniteError: step 3: not finite",
    ]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("exit 3", "the command ended with exit code 3"),
        ("sleep 60 & echo $! > pid; wait", "the command was killed after 0.5 s"),
    ],
)
def test_a_command_that_fails_or_hangs_is_one_warning(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notify.sh").write_text(command)
    own = "{name: notify, command: 'sh notify.sh', timeout: 0.5, on_error: stop}"
    files = run(f"callbacks=[{own}]", "max_steps=1")
    assert files.steps == [1]
    assert capsys.readouterr().err.count(f"warning: callback notify: ConfigError: {line}") == 1
    if (tmp_path / "pid").exists():
        pid = (tmp_path / "pid").read_text().strip()
        state = subprocess.run(["ps", "-o", "stat=", pid], capture_output=True, text=True).stdout
        assert state.strip()[:1] in ("", "Z")
