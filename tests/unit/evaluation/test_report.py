import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from evaluation.evaluators.base import Findings
from evaluation.metrics import Estimate, SetResult
from evaluation.report import Evaluation, as_csv, as_json, as_text, flatten, pooled, report
from runtime.errors import ConfigError


def make_result(num_examples: int, count: int, **values: float) -> SetResult:
    metrics = {name: Estimate(value, value / 2, value * 1.5) for name, value in values.items()}
    return SetResult(num_examples, count, metrics)


EASY = make_result(4, 3, exact_accuracy=1.0, lm_loss=0.5)
HARD = make_result(6, 6, exact_accuracy=0.25, lm_loss=1.0)
EMPTY = SetResult(0, 0, {})
ARC = Findings({"pass@1": 0.5, "pass@1000": 1.0}, {"num_tasks": 2}, {"submission.json": dict})
PATHS = {"submission.json": Path("run/submission.json")}
SUDOKU = Findings({"valid": 0.25})


def test_sets_are_pooled_by_their_rows() -> None:
    expected = {"count": 9.0, "exact_accuracy": 4.5 / 9, "lm_loss": 8 / 10}
    assert pooled({"easy": EASY, "hard": HARD, "none": EMPTY}) == pytest.approx(expected)


def test_a_single_set_goes_without_its_name_and_findings_with_their_evaluators() -> None:
    assert flatten(Evaluation({"all": EASY}, {"arc": ARC, "sudoku": SUDOKU})) == {
        "eval/count": 3.0,
        "eval/exact_accuracy": 1.0,
        "eval/lm_loss": 0.5,
        "eval/arc/pass@1": 0.5,
        "eval/arc/pass@1000": 1.0,
        "eval/sudoku/valid": 0.25,
    }
    assert flatten(Evaluation({"all": EMPTY})) == {"eval/count": 0.0}


def test_several_sets_are_named_beside_their_total() -> None:
    flat = flatten(Evaluation({"easy": EASY, "hard": HARD}))
    assert flat["eval/easy/exact_accuracy"] == 1.0
    assert flat["eval/hard/exact_accuracy"] == 0.25
    assert flat["eval/hard/count"] == 6.0
    assert flat["eval/exact_accuracy"] == pytest.approx(0.5)


def test_json_keeps_intervals_findings_and_what_is_not_finite() -> None:
    diverged = SetResult(1, 0, {"lm_loss": Estimate(float("nan"), None, float("inf"))})
    evaluation = Evaluation({"all": diverged, "easy": EASY}, {"arc": ARC})
    content = json.loads(json.dumps(as_json(evaluation, PATHS), allow_nan=False))
    sets = content["sets"]
    assert sets["all"]["metrics"]["lm_loss"] == {"value": "nan", "low": None, "high": "inf"}
    assert sets["easy"]["metrics"]["exact_accuracy"]["low"] == 0.5
    assert sets["easy"]["count"] == 3
    assert content["metrics"]["lm_loss"] == "nan"
    assert content["evaluators"] == {
        "arc": {
            "metrics": {"pass@1": 0.5, "pass@1000": 1.0},
            "details": {"num_tasks": 2},
            "files": ["run/submission.json"],
        }
    }


def test_json_keeps_what_an_evaluator_found_even_if_it_is_not_finite() -> None:
    found = Findings({"mean": math.nan}, {"by_size": {"9": (1, math.inf)}})
    content = json.loads(json.dumps(as_json(Evaluation({}, {"own": found}), {}), allow_nan=False))
    of_own = {"metrics": {"mean": "nan"}, "details": {"by_size": {"9": [1, "inf"]}}, "files": []}
    assert content["evaluators"] == {"own": of_own}


def test_a_record_leaves_empty_what_is_not_known() -> None:
    # The second row has no labels, the model has no Q, and the second set has no ratings.
    values = {"count": [1, 0], "exact_accuracy": [0, 0], "accuracy": [2 / 3, 0], "steps": [16, 0]}
    values |= {"q_halt": [math.nan] * 2, "clues": [30, 0]}
    rows = {name: np.array(column, np.float32) for name, column in values.items()}
    known = {"easy": {"rating": np.array([7, 8, 9])}, "hard": {"rating": None}}
    header = "set,index,rating,clues,exact_accuracy,accuracy,steps,q_halt"
    assert as_csv({"easy": rows}, known).splitlines() == [
        header,
        "easy,0,7,30,0,0.666667,16,",
        "easy,1,8,,,,,",
    ]
    one = {name: column[:1] for name, column in rows.items()} | {"q_halt": np.array([0.25])}
    assert as_csv({"hard": one | {"right_after_1": np.array([0])}}, known).splitlines() == [
        f"{header},right_after_1",
        "hard,0,,30,0,0.666667,16,0.25,0",
    ]


def test_files_get_names_of_their_own() -> None:
    evaluation = Evaluation({}, {"arc": ARC, "sudoku": SUDOKU})
    assert evaluation.files == {"submission.json": dict}


def test_files_of_a_sample_do_not_replace_those_of_the_full_result(tmp_path: Path) -> None:
    facts = {"checkpoint": "run", "weights": None, "data": ["data/test"]}
    for name, differs in (("full", []), ("quick", ["first20", "at_halt"])):
        output = tmp_path / f"{name}.json"
        config = SimpleNamespace(output=str(output), halting="steps", save_records=False)
        job = SimpleNamespace(config=config, output=output, differs=differs)
        found = Findings({}, {}, {"submission.json": lambda name=name: [name]})
        report(Evaluation({"all": EASY}, {"arc": found}), cast(Any, job), facts, 1.0)
    for name, ending in (("full", ""), ("quick", "_first20_at_halt")):
        assert json.loads((tmp_path / f"submission{ending}.json").read_text()) == [name]


def test_the_table_is_printed_even_if_the_files_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "result.json"
    config = SimpleNamespace(output=str(output), save_records=False)
    job = SimpleNamespace(config=config, output=output, differs=[])
    facts = {"checkpoint": "run", "weights": None, "data": ["data/test"]}
    evaluation = Evaluation({"all": EASY})
    with pytest.raises(ConfigError, match="^output=.*: cannot be written: Not a directory$"):
        report(evaluation, cast(Any, job), facts, 1.0)
    shown = f"checkpoint: run\ndata: data/test\n\n{as_text(evaluation)}\n\n4 puzzles in 1.0 s"
    assert capsys.readouterr().out.startswith(shown)


def test_text_has_a_line_for_each_set_and_each_finding() -> None:
    evaluation = Evaluation({"easy": EASY, "none": EMPTY}, {"arc": ARC, "sudoku": SUDOKU})
    header, easy, empty, brackets, *found = as_text(evaluation).splitlines()
    assert header.split()[:3] == ["set", "count", "exact_accuracy"]
    assert easy.split()[:5] == ["easy", "3", "1.0000", "[0.5000,", "1.5000]"]
    assert empty.split() == ["none", "0", "-", "-", "-", "-", "-", "-"]
    assert brackets == "in brackets: 95 % confidence intervals"
    assert found == ["", "arc/pass@1     0.5000", "arc/pass@1000  1.0000", "sudoku/valid   0.2500"]
    assert as_text(Evaluation({"easy": EASY})).endswith(brackets)
