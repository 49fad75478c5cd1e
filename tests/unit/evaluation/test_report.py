import json
from pathlib import Path

import pytest

from evaluation.evaluators import Findings
from evaluation.metrics import Estimate, SetResult
from evaluation.report import (
    as_json,
    findings_as_json,
    findings_table,
    flatten,
    flatten_findings,
    pooled,
    table,
)


def make_result(num_examples: int, count: int, **values: float) -> SetResult:
    metrics = {name: Estimate(value, value / 2, value * 1.5) for name, value in values.items()}
    return SetResult(num_examples, count, metrics)


EASY = make_result(4, 3, exact_accuracy=1.0, lm_loss=0.5)
HARD = make_result(6, 6, exact_accuracy=0.25, lm_loss=1.0)
EMPTY = SetResult(0, 0, {})


def test_sets_are_pooled_by_their_rows() -> None:
    figures = pooled({"easy": EASY, "hard": HARD, "none": EMPTY})
    assert figures == pytest.approx(
        {
            "count": 9.0,
            "exact_accuracy": (3 * 1.0 + 6 * 0.25) / 9,
            "lm_loss": (4 * 0.5 + 6 * 1.0) / 10,
        }
    )


def test_flatten_names_a_single_set_without_its_name() -> None:
    assert flatten({"all": EASY}) == {
        "eval/count": 3.0,
        "eval/exact_accuracy": 1.0,
        "eval/lm_loss": 0.5,
    }


def test_flatten_names_several_sets_and_their_total() -> None:
    flat = flatten({"easy": EASY, "hard": HARD})
    assert flat["eval/easy/exact_accuracy"] == 1.0
    assert flat["eval/hard/exact_accuracy"] == 0.25
    assert flat["eval/hard/count"] == 6.0
    assert flat["eval/exact_accuracy"] == pytest.approx(0.5)


def test_flatten_of_nothing_has_a_count_alone() -> None:
    assert flatten({"all": EMPTY}) == {"eval/count": 0.0}


def test_json_keeps_intervals_and_survives_what_is_not_finite() -> None:
    diverged = SetResult(1, 0, {"lm_loss": Estimate(float("nan"), None, float("inf"))})
    content = json.loads(json.dumps(as_json({"all": diverged, "easy": EASY}), allow_nan=False))
    assert content["sets"]["all"]["metrics"]["lm_loss"] == {
        "value": "nan",
        "low": None,
        "high": "inf",
    }
    assert content["sets"]["easy"]["metrics"]["exact_accuracy"]["low"] == 0.5
    assert content["sets"]["easy"]["count"] == 3
    assert content["metrics"]["lm_loss"] == "nan"


def test_table_has_a_line_for_each_set() -> None:
    header, easy, empty = table({"easy": EASY, "none": EMPTY}).splitlines()
    assert header.split()[:3] == ["set", "count", "exact_accuracy"]
    assert easy.split()[:5] == ["easy", "3", "1.0000", "[0.5000,", "1.5000]"]
    assert empty.split() == ["none", "0", "-", "-", "-", "-", "-", "-"]


ARC = Findings({"pass@1": 0.5, "pass@1000": 1.0}, {"num_tasks": 2}, {"submission.json": dict})
SUDOKU = Findings({"valid": 0.25})


def test_findings_are_named_after_their_evaluator() -> None:
    assert flatten_findings({"arc": ARC, "sudoku": SUDOKU}) == {
        "eval/arc/pass@1": 0.5,
        "eval/arc/pass@1000": 1.0,
        "eval/sudoku/valid": 0.25,
    }
    assert flatten_findings({}) == {}


def test_findings_come_with_details_and_files() -> None:
    content = findings_as_json({"arc": ARC}, {"arc": [Path("run/submission.json")]})
    assert content == {
        "arc": {
            "metrics": {"pass@1": 0.5, "pass@1000": 1.0},
            "details": {"num_tasks": 2},
            "files": ["run/submission.json"],
        }
    }


def test_findings_have_a_line_for_each_metric() -> None:
    assert findings_table({"arc": ARC, "sudoku": SUDOKU}).splitlines() == [
        "arc/pass@1     0.5000",
        "arc/pass@1000  1.0000",
        "sudoku/valid   0.2500",
    ]
