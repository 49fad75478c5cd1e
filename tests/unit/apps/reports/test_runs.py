import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.reports import runs
from apps.reports.runs import as_text, list_runs
from training.checkpoint.lock import run_lock

Make = Callable[..., Path]


def test_all_runs_are_listed_running_ones_first(make_sweep: Make, make_run_folder: Make) -> None:
    sweep = make_sweep()
    at_work = make_run_folder("at work", score=0.25)
    with run_lock(at_work):
        header, first, *others = as_text(list_runs(sweep.parent), in_colour=False).splitlines()
    names = re.split(r"\s{2,}", header)
    assert names == [
        "state",
        "run",
        "step",
        "best score",
        "last loss",
        "ex/s",
        "time left",
        "folder",
    ]
    assert re.split(r"\s{2,}", first)[:6] == ["running", "at work", "40", "25.0 %", "0.05", "120"]
    assert first.endswith(str(at_work))
    assert len(others) == 4
    assert all(line.startswith("done") for line in others)
    cut = as_text(list_runs(sweep), in_colour=False, width=70).splitlines()
    assert max(map(len, cut)) == 70


def test_runs_as_json(make_run_folder: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run_folder()
    make_run_folder("new").joinpath("metrics.jsonl").unlink()
    assert runs.main([str(folder.parent), "--json"]) == 0
    listed = {one["run"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["run"] == {
        "run": "run",
        "state": "done",
        "detail": "",
        "step": 40,
        "total_steps": 40,
        "score": 0.75,
        "measure": "eval/exact_accuracy",
        "loss": 0.05,
        "examples_per_second": 120.0,
        "seconds": 370.5,
        "seconds_left": None,
        "folder": str(folder),
    }
    assert listed["new"]["loss"] is None


@pytest.mark.parametrize("forms", [["--json", "--watch"], ["--table", "csv", "--json"]])
def test_only_one_form_is_printed(forms: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        runs.main(forms)
    assert f"not allowed with argument {forms[0]}" in capsys.readouterr().err


def test_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "there are no runs yet\n"
    assert runs.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert runs.main([str(tmp_path / "nowhere"), "--watch"]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err


def test_a_run_can_be_followed_before_it_exists(
    make_run_folder: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("apps.reports.runs.time.sleep", lambda _: make_run_folder())
    assert runs.main(["--watch", str(tmp_path / "run")]) == 0
    assert re.findall(r"^(new|done) +run ", capsys.readouterr().out, re.MULTILINE) == [
        *("new", "done")
    ]


def test_a_run_that_ended_at_its_limit_is_followed_no_longer(make_run_folder: Make) -> None:
    folder = make_run_folder()
    state = json.loads((folder / "step_40" / "state.json").read_text())
    state |= {"iteration": 1, "config": {"epochs": 4, "eval_interval": 2, "max_steps": 40}}
    (folder / "step_40" / "state.json").write_text(json.dumps(state))
    assert runs.main(["--watch", str(folder)]) == 0


def test_the_means_leave_out_interrupted_runs(
    make_run_folder: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    first, folder = (make_run_folder(f"{seed}", settings={"seed": seed}) for seed in (0, 1))
    state = folder / "step_40" / "state.json"
    for max_steps, seeds in ((None, "1"), (40, "2")):
        config = {"epochs": 4, "eval_interval": 2, "max_steps": max_steps}
        content = json.loads(state.read_text()) | {"iteration": 1, "config": config}
        state.write_text(json.dumps(content))
        assert runs.main([str(first.parent), "--table", "csv"]) == 0
        (line,) = capsys.readouterr().out.splitlines()[1:]
        assert line.split(",")[-1] == seeds


def test_the_means_keep_sweeps_of_different_models_apart(
    make_sweep: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep("one")
    for path in (folder := make_sweep("other")).glob("*/config.yaml"):
        path.write_text(path.read_text().replace('"trm"', '"hrm"'))
    assert runs.main([str(folder.parent), "--table", "csv"]) == 0
    header, *lines = (line.split(",") for line in capsys.readouterr().out.splitlines())
    assert header[:2] == ["lr", "arch.name"]
    models = [[rate, name] for rate in ("0.001", "0.003") for name in ("hrm", "trm")]
    assert sorted(line[:2] for line in lines) == models
    assert {line[-1] for line in lines} == {"2"}


def test_all_runs_are_listed_until_ctrl_c(
    make_run_folder: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, looks = make_run_folder(), iter("ab")
    (folder / "step_40" / "state.json").write_text("{}")

    def wait(_: float) -> None:
        if next(looks) == "b":
            raise KeyboardInterrupt

    monkeypatch.setattr("apps.reports.runs.time.sleep", wait)
    assert runs.main([str(folder.parent), "--watch"]) == 0
    told = capsys.readouterr()
    # Without a terminal an unchanged list is printed once.
    assert (told.out.count("stopped  run"), told.err) == (1, "")


def test_runs_with_damaged_metrics_and_odd_names_are_listed(make_run_folder: Make) -> None:
    folder = make_run_folder()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "train/lm_loss": [], "train/lr": 1}\n\x00\n[')
    (one,) = list_runs(folder.rename(folder.with_name("a\x1b[31m\nb")))
    text = as_text([one], in_colour=False)
    assert "a\\x1b[31m\\nb" in text
    assert "\x1b" not in text
    assert one.step == 50
