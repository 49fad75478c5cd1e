"""SIGINT, SIGTERM and the end of max_time save and stop with exit code 75; the same command resumes
to the same bits.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pretrain
from runtime.errors import ConfigError, Preempted
from runtime.schema import seconds_of
from training import stop_signals
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig
from training.tracking import Tracker
from training.trainer import Trainer


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


def test_a_run_without_a_name_tells_its_folder(
    tiny_settings: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signal_at: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [one for one in tiny_settings if not one.startswith("checkpoint_path=")]
    signal_at(3, signal.SIGTERM)
    told = "the same command resumes the run, with checkpoint_path="
    with pytest.raises(Preempted, match=told) as stopped:
        pretrain.run(load_config(TrainConfig, "cfg_pretrain", settings))
    (saved,) = tmp_path.glob("checkpoints/*/*/step_3")
    assert str(stopped.value).endswith(f"={saved.parent.relative_to(tmp_path)}")


def test_a_run_that_went_back_is_resumed_by_another_command(
    run: Any, files: Any, signal_at: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["checkpoint_interval=4", "resume=4"]
    run("checkpoint_interval=4", "max_steps=6")
    signal_at(6, signal.SIGTERM)
    with pytest.raises(Preempted, match="the same command with resume=auto resumes the run"):
        run(*own)
    assert files.steps == [4, 6]
    signal_at(0)
    run(*own, "max_steps=5")
    told = "stopped at max_steps=5; a larger one with resume=auto resumes the run"
    assert told in capsys.readouterr().out


def test_a_stopped_run_exits_with_75(
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
    # The process is ending; a second signal would only change its exit code.
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN
    line = "pretrain.py: asked to stop: saved at step 3; the same command resumes the run"
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_ctrl_c_after_another_signal_ends_the_run_at_once(
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
def test_a_signal_outside_training_stops_at_once(
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


def test_repeated_signals_count_once(
    run: Any, signal_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Tracker.__exit__

    def asked_again(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        end(*given)

    monkeypatch.setattr(Tracker, "__exit__", asked_again)
    # The terminal sends Ctrl-C to torchrun and its workers, and torchrun forwards it too.
    signal_at(3, signal.SIGINT, signal.SIGINT, signal.SIGTERM)
    with pytest.raises(Preempted, match="saved at step 3"):
        run()


# max_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Return a function that lets a method of the trainer take some seconds, on a clock that stands
    still otherwise.
    """
    now = [0.0]
    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes(method: str, seconds: float) -> None:
        original = getattr(Trainer, method)

        def timed(*given: Any) -> Any:
            now[0] += seconds
            return original(*given)

        monkeypatch.setattr(Trainer, method, timed)

    return takes


def test_a_run_in_pieces_of_max_time_ends_with_the_same_bits(
    run: Any, files: Any, clock: Callable[[str, float], None]
) -> None:
    whole = run(name="whole")
    clock("_train_step", 60)
    for step in (5, 10, 15):
        with pytest.raises(Preempted, match=f"max_time=5m is over: saved at step {step}; "):
            run("max_time=5m")
        assert files.steps[-1] == step
    assert run("max_time=5m").digest() == whole.digest()


def test_max_time_ends_an_evaluation(
    run: Any, files: Any, clock: Callable[[str, float], None]
) -> None:
    whole = run(name="whole")
    clock("_evaluate", 3600)
    with pytest.raises(Preempted, match="max_time=1h is over: saved at step 4; "):
        run("max_time=1h")
    assert (files.steps, files.eval_records) == ([4], [])
    assert run().digest() == whole.digest()


@pytest.mark.parametrize("given", ["0", "0h", "90", "-1h", "1h30", "1.5h", "30m1h", "'8 h'", "h"])
def test_a_max_time_that_is_no_time_is_refused(tiny_settings: list[str], given: str) -> None:
    with pytest.raises(ConfigError, match="max_time: '.*' is not a time above 0; write it"):
        load_config(TrainConfig, "cfg_pretrain", [*tiny_settings, f"max_time={given}"])


@pytest.mark.parametrize(
    ("given", "seconds"), [("8h", 28800), ("30m", 1800), ("90s", 90), ("1h30m", 5400)]
)
def test_a_time_has_units(tiny_settings: list[str], given: str, seconds: int) -> None:
    config = load_config(TrainConfig, "cfg_pretrain", [*tiny_settings, f"max_time={given}"])
    assert seconds_of(str(config.max_time)) == seconds
