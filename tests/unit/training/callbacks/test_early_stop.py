"""early_stop: when it ends a run, and that its count survives a stop."""

from typing import Any

import pytest

from training.callbacks.base import Run
from training.callbacks.early_stop import EarlyStop

SCORE = "eval/exact_accuracy"


def evaluations_until_the_stop(values: list[float], **settings: Any) -> tuple[int, str]:
    """Give an early stop one value after the other; return their number and its reason."""
    reasons: list[str] = []
    nothing: Any = dict.fromkeys(Run._fields)
    run = Run(**nothing | {"stop": reasons.append})
    callback = EarlyStop(name="early_stop", **settings)
    callback.start(run)
    for number, value in enumerate(values, start=1):
        callback.evaluated(run, {SCORE: value, "eval/lm_loss": value})
        if reasons:
            return number, reasons[0]
    return 0, ""


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        ([0.1, 0.2, 0.2, 0.2], {"patience": 2}, 4),
        ([0.1, 0.0, 0.2, 0.1, 0.1], {"patience": 2}, 5),  # A better value starts the count anew.
        ([0.1, 0.2, 0.3, 0.4], {"patience": 1}, 0),
        ([0.5, 0.55, 0.6, 0.65], {"patience": 2, "min_delta": 0.1}, 3),
        ([0.5, 0.55, 0.65, 0.7], {"patience": 2, "min_delta": 0.1}, 0),  # It adds up.
        ([3.0, 2.0, 2.0, 1.0], {"patience": 2, "metric": "eval/lm_loss", "mode": "min"}, 0),
        ([3.0, 2.0, 2.0, 4.0], {"patience": 2, "metric": "eval/lm_loss", "mode": "min"}, 4),
        ([NAN, 0.1, NAN, 0.2, NAN, NAN], {"patience": 2}, 6),
        ([NAN, NAN], {"patience": 2, "mode": "min"}, 2),
    ],
)
def test_it_ends_the_run_after_patience_evaluations_without_an_improvement(
    values: list[float], settings: dict[str, Any], expected: int
) -> None:
    assert evaluations_until_the_stop(values, **settings)[0] == expected


def test_the_reason_has_the_best_value_and_the_count() -> None:
    said = f"{SCORE} was at best 0.25, and no better in the last 2 evaluations"
    assert evaluations_until_the_stop([0.25, 0.1, 0.2], patience=2)[1] == said
    never = evaluations_until_the_stop([NAN], patience=1)[1]
    assert never == f"{SCORE} was at best None, and no better in the last 1 evaluation"


STOPS = "callbacks=[{name: early_stop, patience: 2}]"


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the scores of the next evaluations."""

    def of_next(*values: float) -> None:
        results = iter([{SCORE: score, "eval/lm_loss": 1.0} for score in values])
        monkeypatch.setattr("evaluation.measure.flatten", lambda _: next(results))

    return of_next


def test_a_stopped_run_ends_at_the_same_evaluation(
    run: Any, scores: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scores(0.5, 0.4, 0.3)
    whole = run(STOPS, "keep_best=1", name="whole")
    why = f"ended at step 12 by early_stop: {SCORE} was at best 0.5, and no better in the last 2 e"
    assert f"\n{why}" in capsys.readouterr().out
    assert whole.steps == [4, 12]
    state = whole.state(12)
    assert state["callbacks"]["early_stop"]["waited"] == 2
    assert (state["score"], state["permanent"]) == (0.3, True)  # As at the end of any run.

    scores(0.5, 0.4, 0.3)
    part = run(STOPS, "keep_best=1", "max_steps=10", name="parts")
    assert part.state(10)["callbacks"]["early_stop"]["waited"] == 1
    part = run(STOPS, "keep_best=1", name="parts")
    assert part.digest() == whole.digest()
    assert part.state(12)["callbacks"] == state["callbacks"]

    capsys.readouterr()
    again = run(STOPS, "keep_best=1", name="parts")
    assert (again.digest(), again.steps[-1]) == (whole.digest(), 12)
    assert f"nothing to do: {why}" in capsys.readouterr().out

    scores(0.2)  # With more patience the run goes on to its end.
    longer = run("callbacks=[{name: early_stop, patience: 3}]", "keep_best=1", name="parts")
    assert longer.steps[-1] == 16
    assert longer.state(16)["callbacks"]["early_stop"]["waited"] == 3
    assert "training ended at step 16" in capsys.readouterr().out


def test_another_metric_starts_anew(run: Any, scores: Any) -> None:
    scores(0.5, 0.4)
    run(STOPS, "max_steps=9")
    scores(0.3, 0.2)
    files = run("callbacks=[{name: early_stop, patience: 2, metric: eval/lm_loss, mode: min}]")
    assert files.state(16)["callbacks"]["early_stop"]["waited"] == 1
    assert files.state(16)["callbacks"]["early_stop"]["best"] == 1.0


def test_an_unknown_metric_is_answered_at_the_first_evaluation(
    run: Any, scores: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scores(0.5, 0.4, 0.3, 0.2)
    wrong = "{name: early_stop, metric: eval/exact_acuracy, patience: 1}"
    files = run(f"callbacks=[{wrong}]")
    assert files.steps[-1] == 16
    warnings = [line for line in capsys.readouterr().err.splitlines() if "callback" in line]
    told = "metric=eval/exact_acuracy: no evaluation gives it; accepted: eval/exact_accuracy, "
    told += "eval/lm_loss; did you mean eval/exact_accuracy?"
    assert warnings == [f"warning: callback early_stop: ConfigError: {told}"]
    run(f"callbacks=[{wrong}]", "eval_split=null", name="unmeasured")
    assert "no evaluation gives it; accepted: none" in capsys.readouterr().err
