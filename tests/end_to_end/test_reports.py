"""The report page of a run, and an evaluation's records of single puzzles."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evaluate
from apps.reports.writing import write_report

LEARNS = ("arch.mlp_t=true", "loss=act_softmax", "lr=3e-3", "epochs=48", "eval_interval=48")


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# A run


def test_warnings_have_their_steps_and_survive_a_resume(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.diagnostics.PATIENCE_STEPS", 0)
    monkeypatch.setattr("training.diagnostics.LARGE_LOGIT", 0.0)
    whole = run("diagnose_interval=1", name="whole")
    seconds = [0.0]
    for stop, step in ((5, 5), (9, 9), ("null", 16)):
        parts = run("diagnose_interval=1", f"max_steps={stop}", name="parts")
        seconds.append(parts.state(step)["seconds"])
    assert parts.records == whole.records
    told = {r["step"]: r["diagnose/warnings"] for r in whole.records if "diagnose/warnings" in r}
    # The third diagnosis in a row after the warm-up of 3 steps.
    assert list(told) == [6]
    assert "after step 6 the token logits range from" in told[6][-1]
    assert seconds == sorted(set(seconds))  # The times of all starts are summed.


# An evaluation


@pytest.fixture
def trained(run: Callable[..., Any]) -> Path:
    """Train a run that solves some of its puzzles and has a confidence for each cell."""
    return run(*LEARNS, "heads=confidence").folder


@pytest.mark.slow
def test_records_agree_with_the_figures_on_any_number_of_ranks(
    trained: Path, run_evaluation: Any, run_on_ranks: Any, tmp_path: Path
) -> None:
    common = (f"checkpoint={trained}", "split=train")  # Some puzzles are learnt by heart.
    settings = [*common, "save_records=true", "global_batch_size=8"]
    result = run_evaluation(tmp_path / "one.json", *settings)
    lines = table_of(tmp_path / "one_records.csv")
    assert [int(line["index"]) for line in lines] == list(range(32))
    right = np.array([[float(line[f"right_after_{k}"]) for k in (1, 2, 3)] for line in lines])
    assert right[:, 2].mean() == pytest.approx(result["metrics"]["exact_accuracy"])
    longer = run_evaluation(tmp_path / "longer.json", *common, "steps=[1,2,3]")
    single = [one["single"]["value"] for one in longer["chains"]]
    assert right.mean(0).tolist() == pytest.approx(single)
    assert 0 < right.mean() < 1

    answers = json.loads((tmp_path / "one_records.json").read_bytes())
    assert answers["kind"] == "sudoku"
    of_set = answers["sets"]["all"]
    confusion = np.array(of_set["confusion"])
    assert confusion.sum() == 32 * 16
    accuracy = result["metrics"]["accuracy"]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(accuracy, abs=1e-6)
    confidence = of_set["confidence"]
    assert sum(confidence["count"]) == 32 * 16
    assert sum(confidence["right"]) == np.trace(confusion)
    gaps = [
        abs(mean * count - right)
        for mean, count, right in zip(
            confidence["mean"], confidence["count"], confidence["right"], strict=True
        )
        if mean is not None
    ]
    error = result["metrics"]["confidence_calibration_error"]
    assert sum(gaps) / (32 * 16) == pytest.approx(error, abs=1e-5)
    wrong = {one["index"] for order in of_set["failures"].values() for one in order}
    failed = set(np.flatnonzero(right[:, 2] == 0).tolist())
    assert wrong <= failed
    assert len(of_set["failures"]["surest"]) == min(12, len(failed))

    # Two ranks, with other padding in the last batch.
    two = [*settings[:3], "global_batch_size=6", f"output={tmp_path / 'two.json'}"]
    run_on_ranks(2, "evaluate.py", *two, "device=cpu", "num_threads=1")
    again = json.loads((tmp_path / "two_records.json").read_bytes())
    assert again["sets"]["all"]["confusion"] == of_set["confusion"]
    assert again["sets"]["all"]["confidence"]["count"] == confidence["count"]
    found = {
        name: [one["index"] for one in of_set["failures"][name]] for name in of_set["failures"]
    }
    failures = again["sets"]["all"]["failures"]
    assert {name: [one["index"] for one in failures[name]] for name in failures} == found
    assert [line["right_after_2"] for line in table_of(tmp_path / "two_records.csv")] == [
        line["right_after_2"] for line in lines
    ]


def test_the_page_shows_the_records_of_an_evaluation(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed (pip install '.[pictures]')")
    common = [f"checkpoint={trained}", "device=cpu", "num_threads=1"]
    evaluate.main([*common, "save_records=true", "halting=steps"])
    (name,) = (path.name for path in trained.glob("eval_*_records.json"))
    assert name in capsys.readouterr().out
    page = write_report([trained])[0].read_text()
    for title in ("Accuracy over ACT steps", "Calibration", "The hardest failures"):
        assert title in page
    assert "What could not be read" not in page
