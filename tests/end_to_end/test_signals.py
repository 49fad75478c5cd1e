"""SIGINT and SIGTERM save and stop with exit code 75. The same command resumes exactly."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import pretrain
from runtime.errors import Preempted
from training import stop_signals
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig
from training.tracking import Tracker
from training.trainer import Trainer


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Send signals to this process in the middle of a training step."""
    train_step = Trainer._train_step

    def arm(step: int, *numbers: signal.Signals) -> None:
        def interrupted(trainer: Trainer, batch: Any) -> None:
            if trainer.progress.step + 1 == step:
                for number in numbers:
                    os.kill(os.getpid(), number)
            train_step(trainer, batch)

        monkeypatch.setattr(Trainer, "_train_step", interrupted)

    return arm


@pytest.mark.parametrize(
    ("step", "number"),
    [(1, signal.SIGTERM), (6, signal.SIGINT), (8, signal.SIGTERM), (16, signal.SIGINT)],
)
def test_a_signal_saves_at_the_end_of_the_step_and_stops(
    run: Any, files: Any, signal_at: Callable[..., None], number: signal.Signals, step: int
) -> None:
    whole = run(name="whole")
    before = signal.getsignal(number)
    signal_at(step, number)
    with pytest.raises(Preempted, match=f"saved at step {step}; the same command resumes"):
        run()
    assert signal.getsignal(number) is before
    assert files.steps == [step]
    assert [record["step"] for record in files.train_records] == list(range(1, step + 1))
    signal_at(0)
    assert run().digest() == whole.digest()


def test_the_exit_code_of_a_run_that_was_asked_to_stop(
    tiny_settings: list[str],
    signal_at: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.py", *tiny_settings])
    signal_at(3, signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run_entry_point(TrainConfig, "cfg_pretrain", pretrain.main, "")
    assert ended.value.code == 75
    # The process is ending; another signal would only change its exit code.
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN
    line = "pretrain.py: asked to stop: saved at step 3; the same command resumes the run"
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_a_later_ctrl_c_ends_the_run_at_once(
    run: Any, files: Any, signal_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_signals, "_SAME_SIGNAL_SECONDS", -1.0)
    signal_at(3, signal.SIGTERM, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert files.steps == []


@pytest.mark.parametrize(
    "place", ["run_folder.find_checkpoint", "run_folder.rename_newer", "open_tracker"]
)
def test_a_signal_outside_of_training_stops_at_once(
    run: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    files = run("max_steps=3")
    saved = files.digest()

    def asked(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(f"pretrain.{place}", asked)
        with pytest.raises(Preempted, match="asked to stop while it was not training"):
            run()
    assert files.leftovers() == []
    assert files.digest() == saved
    assert max(run().steps) > 3


def test_signals_that_arrive_again_are_one(
    run: Any, signal_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Tracker.__exit__

    def asked_again(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        end(*given)

    monkeypatch.setattr(Tracker, "__exit__", asked_again)
    # The terminal sends Ctrl-C to torchrun and its workers, and torchrun passes it on.
    signal_at(3, signal.SIGINT, signal.SIGINT, signal.SIGTERM)
    with pytest.raises(Preempted, match="saved at step 3"):
        run()
