"""Commands that train a lattice, search with it, and show its steps."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import evaluate
import recursive_reasoning as rr
from apps.reports import solving as solve
from runtime.errors import ConfigError

SEARCH = ["search.chains=3", "search.rounds=30", "search.control=4", "device=cpu", "num_threads=1"]


def essence(searcher: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in searcher.items() if name != "seconds"}


@pytest.mark.slow
def test_a_search_is_reported_beside_its_controls(
    lattice_run: Path, run_on_ranks: Any, tmp_path: Path
) -> None:
    evaluate.main([f"checkpoint={lattice_run}", *SEARCH])
    (file,) = lattice_run.glob("eval_*_search3x30.json")
    result = json.loads(file.read_bytes())
    by_name = {one["searcher"]: one for one in result["searchers"]}
    assert list(by_name) == ["model", "untrained"]
    assert [one["num_puzzles"] for one in by_name.values()] == [10, 4]
    for one in by_name.values():
        parts = [one[name]["value"] for name in ("solved", "wrong", "abstained")]
        assert sum(parts) == pytest.approx(1)
    assert by_name["model"]["solved"]["value"] > 0
    assert not list(lattice_run.glob("*_search.*.jsonl"))

    # Two ranks share the puzzles and find the same.
    output = tmp_path / "two.json"
    run_on_ranks(2, "evaluate.py", f"checkpoint={lattice_run}", *SEARCH, f"output={output}")
    two = json.loads(output.read_bytes())["searchers"]
    assert list(map(essence, two)) == list(map(essence, result["searchers"]))


def test_a_search_keeps_a_line_for_each_puzzle(lattice_run: Path, tmp_path: Path) -> None:
    settings = [f"checkpoint={lattice_run}", *SEARCH[:2], "search.control=0", *SEARCH[3:]]
    evaluate.main([*settings, "save_records=true", f"output={tmp_path / 'found.json'}"])
    figures = json.loads((tmp_path / "found.json").read_bytes())["searchers"][0]
    with (tmp_path / "found_records.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["index"] for line in lines] == [str(row) for row in range(10)]
    for name in ("solved", "wrong", "abstained", "at_once"):
        share = sum(float(line[name]) for line in lines) / 10
        assert share == pytest.approx(figures[name]["value"])
    calls = [float(line["calls"]) for line in lines]
    assert sum(calls) / 10 == pytest.approx(figures["calls"][0])
    assert calls == [3 * float(line["rounds"]) for line in lines]
    assert all(0 < int(line["clues"]) < 16 and line["rating"] == "" for line in lines)
    answers = json.loads((tmp_path / "found_records.json").read_bytes())
    wrong = [row for row, line in enumerate(lines) if line["wrong"] == "1"]
    found = answers["sets"].get("all", {"failures": {"surest": [], "most_wrong": []}})["failures"]
    assert sorted(one["index"] for one in found["most_wrong"]) == wrong
    assert found["surest"] == []
    # The control searches no more puzzles than the model.
    sample = tmp_path / "sample.json"
    evaluate.main([f"checkpoint={lattice_run}", *SEARCH, "max_examples=3", f"output={sample}"])
    searchers = json.loads(sample.read_bytes())["searchers"]
    assert [one["num_puzzles"] for one in searchers] == [3, 3]


def test_what_a_chain_did_is_told(lattice_run: Path, capsys: Any) -> None:
    command = [f"checkpoint={lattice_run}", "device=cpu", "num_threads=1", "search.rounds=30"]
    solve.main([*command, "count=2"])
    told = capsys.readouterr().out
    assert [line for line in told.splitlines() if line.startswith("puzzle ")] == [
        "puzzle 0",
        "puzzle 1",
    ]
    assert "cells open" in told
    assert told.rstrip().splitlines()[-1].startswith("solved: ")
    solve.main([*command, f"puzzle={'.' * 16}"])
    assert "this puzzle has several solutions" in capsys.readouterr().out
    solve.main([*command, "puzzle=1...2..........3"])
    told = capsys.readouterr().out
    model = rr.load(lattice_run, device="cpu")
    answer = model.solve("1...2..........3", search={"rounds": 30})
    assert str(answer).removesuffix(answer.note) in told
    steps = list(model.think("1...2..........3", search={"rounds": 30}))
    assert [step.step for step in steps] == [*range(1, told.count("\nround ") + 1)]
    for step, frame in zip(steps, answer.frames[1:], strict=True):
        assert (step.confidence, step.q) == (None, None)
        assert step.candidates is not None
        assert (step.candidates == frame.board.candidates).all()
    with pytest.raises(ConfigError, match="unknown setting search.chain=2; did you mean search.ch"):
        model.solve("." * 16, search={"chain": 2})


@pytest.mark.parametrize(
    ("setting", "told"),
    [("chains=2", "chains has no effect"), ("search.chains=0", "search.chains=0")],
)
def test_settings_of_other_models_are_refused(lattice_run: Path, setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        solve.main([f"checkpoint={lattice_run}", "count=1", setting])
