"""Callbacks in a run: their events, their requests, their states and their failures."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch

from runtime.errors import ConfigError
from runtime.registry import Part
from training.callbacks.base import CALLBACKS, Callback


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Register a callback for one test."""

    def register(name: str, code: type[Callback]) -> None:
        monkeypatch.setitem(CALLBACKS._parts, name, Part(code, lambda: code, ""))

    return register


class Noted(Callback):
    """Notes the events."""

    seen: ClassVar[list[tuple[Any, ...]]]

    def start(self, run: Any) -> None:
        self.seen.append(("start", run.step, run.total_steps, run.folder.name, {**run.metrics}))

    def logged(self, run: Any, records: Any) -> None:
        assert run.metrics["train/lm_loss"] == records[-1]["train/lm_loss"]
        self.seen.append(("logged", run.step, [record["step"] for record in records]))

    def evaluated(self, run: Any, metrics: Any) -> None:
        assert run.metrics["eval/count"] == metrics["eval/count"] == 10
        self.seen.append(("evaluated", run.step))

    def saved(self, run: Any) -> None:
        self.seen.append(("saved", run.step, (run.folder / f"step_{run.step}").is_dir()))

    def end(self, run: Any, outcome: Any, why: str) -> None:
        self.seen.append(("end", run.step, outcome, why))


def test_events_come_in_order(run: Any, add: Any) -> None:
    seen: list[Any] = []
    add("noted", type("Own", (Noted,), {"seen": seen}))
    run("callbacks=[noted]", "epochs=8", "checkpoint_interval=5")
    assert seen == [
        ("start", 0, 8, "run", {}),
        ("logged", 3, [1, 2, 3]),
        ("logged", 4, [4]),
        ("saved", 4, True),
        ("evaluated", 4),
        ("logged", 5, [5]),
        ("saved", 5, True),
        ("logged", 8, [6, 7, 8]),
        ("saved", 8, True),
        ("evaluated", 8),
        ("saved", 8, True),
        ("end", 8, "finished", ""),
    ]


def test_the_best_score_includes_the_evaluation_that_is_told(
    run: Any, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Best(Callback):
        def evaluated(self, run: Any, metrics: Any) -> None:
            seen.append(run.best_score)

    add("best", Best)
    results = iter({"eval/exact_accuracy": score} for score in (0.2, 0.9, 0.5, 0.7))
    monkeypatch.setattr("evaluation.measure.flatten", lambda _: next(results))
    run("callbacks=[best]")
    assert seen == [0.2, 0.9, 0.9, 0.9]


class Asks(Callback):
    """Saves and stops at given places; draws numbers, and looks at the model."""

    saves: ClassVar[tuple[Any, ...]] = ()
    stops: ClassVar[tuple[Any, ...]] = ()

    def _at(self, run: Any, event: str) -> None:
        torch.rand(3)
        with run.model() as model:
            assert not model.training
            self._state["sum"] = float(next(model.parameters()).detach().sum())
        if (event, run.step) in self.saves:
            run.save()
        if (event, run.step) in self.stops:
            run.stop("enough")

    def logged(self, run: Any, records: Any) -> None:
        self._at(run, "logged")

    def evaluated(self, run: Any, metrics: Mapping[str, float]) -> None:
        self._at(run, "evaluated")


def asks(**places: Any) -> type[Callback]:
    return type("Own", (Asks,), places)


MORE = ("ema=true", "arch.halt_exploration_prob=0.5", "keep_last=99")
DROPS = ("heads=tied", "arch.heads.lm.dropout=0.2")  # Draws torch's random numbers.


def test_saves_and_a_look_at_the_model_change_nothing(run: Any, add: Any) -> None:
    whole = run(*MORE, *DROPS, name="whole")
    add("asks", asks(saves=(("logged", 3), ("evaluated", 8), ("logged", 15))))
    random.seed(0)
    files = run(*MORE, *DROPS, "callbacks=[asks]", name="asked")
    assert files.digest() == whole.digest()
    assert files.steps == [3, 8, 15, 16]
    assert "score" in files.state(8)
    averaged = files.state(16)["callbacks"]["asks"]["sum"]
    raw = files.state(3)["callbacks"]["asks"]["sum"]
    assert averaged != raw
    for later in (16, 15):
        (files.folder / f"step_{later}").rename(files.folder / f"old_{later}")
    assert run(*MORE, *DROPS, "callbacks=[asks]", name="asked").digest() == whole.digest()


@pytest.mark.parametrize(
    ("place", "step", "num_evaluations"),
    [(("logged", 3), 3, 0), (("logged", 4), 4, 0), (("evaluated", 8), 8, 2)],
)
def test_a_stop_is_the_end_of_the_run_and_can_be_undone(
    run: Any,
    add: Any,
    capsys: pytest.CaptureFixture[str],
    place: Any,
    step: int,
    num_evaluations: int,
) -> None:
    whole = run(name="whole")
    add("asks", asks(stops=(place,)))
    files = run("callbacks=[asks]")
    assert f"ended at step {step} by asks: enough" in capsys.readouterr().out
    assert (files.steps[-1], len(files.eval_records)) == (step, num_evaluations)
    assert run().digest() == whole.digest()


def test_a_stop_at_the_last_evaluation_ends_a_finished_run(
    run: Any, add: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    add("asks", asks(stops=(("evaluated", 16),)))
    run("callbacks=[asks]")
    assert "training ended at step 16" in capsys.readouterr().out


# Failures


def fails_at(event: str) -> type[Callback]:
    def fail(*_: object) -> None:
        raise OSError("no\nline")

    return type("Own", (Callback,), {event: fail})


EVENTS = ("start", "logged", "evaluated", "saved", "end")


@pytest.mark.parametrize("event", EVENTS)
def test_a_failure_is_one_line_and_the_run_goes_on(
    run: Any, add: Any, capsys: pytest.CaptureFixture[str], event: str
) -> None:
    add("fails", fails_at(event))
    files = run("callbacks=[fails]", "epochs=8")
    assert files.steps[-1] == 8
    # Each event but the first and the last comes several times; the line comes once.
    told = [line for line in capsys.readouterr().err.splitlines() if "fails" in line]
    assert told == ["warning: callback fails: OSError: no\\nline"]


@pytest.mark.parametrize(
    ("event", "step"), [("start", 0), ("logged", 3), ("evaluated", 4), ("saved", 2)]
)
def test_with_on_error_stop_the_run_saves_and_fails(
    run: Any, add: Any, event: str, step: int
) -> None:
    add("fails", fails_at(event))
    own = ["epochs=8", f"checkpoint_interval={2 if event == 'saved' else 'null'}"]
    line = r"on_error=stop ended the run: callback fails: OSError: no\\nline"
    with pytest.raises(ConfigError, match=line):
        run(*own, "callbacks=[{name: fails, on_error: stop}]")
    if step:
        assert run(*own, "max_steps=1").steps[-1] == step


def test_a_failure_at_the_last_evaluation_fails_the_run_too(run: Any, add: Any) -> None:
    add("fails", fails_at("evaluated"))
    with pytest.raises(ConfigError, match="callback fails"):
        run("callbacks=[{name: fails, on_error: stop}]", "epochs=4")


@pytest.mark.parametrize(
    ("value", "error"),
    [({1, 2}, "TypeError: Object of type set"), (math.inf, "ValueError: Out of")],
)
def test_a_state_that_is_not_json_is_refused(
    run: Any, add: Any, capsys: pytest.CaptureFixture[str], value: object, error: str
) -> None:
    def logged(callback: Callback, *_: object) -> None:
        callback._state["calls"] = callback._state.get("calls", 0) + 1
        if callback._state["calls"] > 2:
            callback._state["steps"] = value

    add("odd", type("Own", (Callback,), {"logged": logged}))
    files = run("callbacks=[odd]", "epochs=8")
    assert files.state(8)["callbacks"]["odd"] == {"calls": 2}
    assert f"callback odd: {error}" in capsys.readouterr().err
