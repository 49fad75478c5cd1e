"""`evaluate.py probes=[...]` and `Model.think(record=...)`, on models with random weights."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evaluate
import recursive_reasoning as rr
from apps.inside import measures, probing
from dataset.format.reading import load_split
from dataset.format.schema import PuzzleSet
from dataset.format.writing import write_split
from evaluation.probes import PROBES
from runtime import compiler
from runtime.device import cpu_has_bfloat16
from runtime.errors import ConfigError

PUZZLE = "1...2..........3"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def own_run(
    sudoku_data: Path, tmp_path_factory: pytest.TempPathFactory, save_run: Callable[..., Path]
) -> Path:
    return save_run(tmp_path_factory.mktemp("run"), sudoku_data)


@pytest.fixture
def probe(own_run: Path, run_evaluation: Run, tmp_path: Path) -> Run:
    """Probe all test puzzles. Return the result and the lines of the CSV."""

    def run(probes: str, *settings: str, output: str = "result.json") -> Any:
        asked = [f"checkpoint={own_run}", f"probes={probes}", *settings]
        result = run_evaluation(tmp_path / output, *asked)
        with (tmp_path / output.replace(".json", "_inside.csv")).open() as file:
            return result, [*csv.DictReader(file)]

    return run


def test_all_probes_are_reported(probe: Run, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["steps=5", "arch_overrides.forward_dtype=float32", "global_batch_size=4"]
    result, lines = probe(f"[{','.join(PROBES)}]", *more)
    found = result["inside"]["all"]
    assert set(found) == {*PROBES, "puzzles"}
    assert sum(found["puzzles"].values()) == len(lines) == 10
    assert len(found["residual"]["residual"]["wrong"]) == 4
    assert len(found["readout"]["z_L_cells"]["wrong"]) == 5
    assert sum(found["fate"]["fate"]["wrong"].values()) == found["puzzles"]["wrong"]
    assert np.shape(found["influence"]["influence"]["mean"]) == (16, 16)
    paths = np.array(found["path"]["path"]["paths"])
    assert paths.shape == (4, 5, 2)  # Of the first batch: others lie in another plane.
    exponents = [float(line["lyapunov.lyapunov"]) for line in lines]
    mean = found["lyapunov"]["lyapunov"]["wrong"]["value"]
    assert mean == pytest.approx(np.mean(exponents), abs=1e-4)
    assert {line["fate.fate"] for line in lines} <= {"fixed", "cycle", "drift", "moving"}
    told = capsys.readouterr().out
    assert "lyapunov.lyapunov" in told
    assert "means; of curves: the last step" in told


def test_neither_batches_nor_memory_change_what_is_measured(
    probe: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "[residual,stability,escapes]"
    _, whole = probe(asked, "global_batch_size=10", output="whole.json")
    # Room for one puzzle at a time.
    monkeypatch.setattr(probing, "host_memory_left", lambda: 2e5)
    _, single = probe(asked, "global_batch_size=10", output="single.json")
    assert whole[0].keys() == single[0].keys()
    for a, b in zip(whole, single, strict=True):
        for name in a.keys() - {"set", "index"}:
            assert float(a[name] or math.nan) == pytest.approx(
                float(b[name] or math.nan), abs=0.02, nan_ok=True
            )


def test_rows_without_labels_are_in_neither_group() -> None:
    right, values = np.array([1.0, np.nan, 0.0, 0.0]), np.array([4.0, 100.0, 1.0, 3.0])
    columns = {"": {"right": probing.Column(right)}, "own": {"x": probing.Column(values)}}
    found = probing.summary(columns)
    assert found["puzzles"] == {"right": 1, "wrong": 2}
    assert (found["own"]["x"]["right"]["value"], found["own"]["x"]["wrong"]["value"]) == (4, 2)
    assert probing.as_csv({"all": columns}).splitlines()[2] == "all,1,,100"
    more = {"all": {"": columns[""]}, "more": columns}  # The first set lacks a column.
    assert probing.as_csv(more).splitlines()[0:6:5] == ["set,index,right,own.x", "more,0,1,4"]


def test_all_maps_and_paths_count() -> None:
    maps = np.arange(70.0).reshape(70, 1, 1)
    columns = {"": {"right": probing.Column(np.ones(70))}}
    columns["own"] = {name: probing.Column(maps, name) for name in ("map", "path")}
    found = probing.summary(columns)["own"]
    assert found["map"] == {"mean": [[34.5]]}
    assert found["path"] == {"paths": maps.tolist(), "right": [True] * 70}


def test_empty_sets_are_left_out(probe: Run, sudoku_data: Path, tmp_path: Path) -> None:
    metadata, sets = load_split(sudoku_data / "test")
    full, none, start = sets["all"], np.zeros(0, np.int32), np.zeros(1, np.int32)
    both = {"none": PuzzleSet(full.inputs[:0], full.labels[:0], none, start, start), "all": full}
    write_split(tmp_path / "data" / "test", replace(metadata, sets=tuple(both)), both)
    result, lines = probe("[residual]", f"data_path={tmp_path / 'data'}")
    assert [*result["inside"]] == ["all"]
    assert {line["set"] for line in lines} == {"all"}


def test_nothing_is_compiled(
    probe: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = compiler.Compiling("block", "it is asked for")
    monkeypatch.setattr(compiler, "_automatic", lambda *_: compiled)
    monkeypatch.setattr(compiler, "missing_for_compiling", lambda device: None)
    result, _ = probe("[residual]")
    assert result["environment"]["compiled"] is False
    assert "is compiled" not in capsys.readouterr().err


def test_a_state_that_is_not_finite_is_written(probe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "apart", lambda before, after: before.norm(dim=-1) / 0)
    result, _ = probe("[residual]", "steps=3")
    assert result["inside"]["all"]["residual"]["residual"]["wrong"] == ["inf", "inf"]


def test_a_course_that_does_not_fit(probe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "host_memory_left", lambda: 1e4)
    with pytest.raises(ConfigError, match=r"steps of a puzzle need .* GB, .*; [0-9]+ steps would"):
        probe("[residual]", "steps=64")


def test_courses_on_a_gpu_take_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5e9, 8e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2e9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1e9)
    assert probing._memory_left(torch.device("cuda")) == 6e9


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("probes=[fates]", "there is no such probe.*did you mean fate"),
        ("probes=[{name:fate,tolerance:0}]", "probes.*tolerance"),
        ("probes=[fate,{name:fate,tolerance:0.1}]", "name each probe once"),
        ("probes=[fate] steps=[4,8]", "for one number of steps"),
        ("probes=[fate] chains=4", "chains has no effect with probes"),
        ("probes=[escapes] steps=4 noise=0.5", "noise has no effect with probes"),
        ("probes=[escapes] steps=4 select=majority", "select has no effect with probes"),
        ("probes=[fate] save_records=true", "save_records has no effect with probes"),
        ("probes=[fate] compile=true", "compile has no effect with probes"),
        ("probes=[lyapunov] arch_overrides.forward_dtype=bfloat16", "bfloat16 rounds away"),
    ],
)
def test_mistakes(own_run: Path, tmp_path: Path, settings: str, told: str) -> None:
    if "bfloat16" in settings and not cpu_has_bfloat16():
        pytest.skip("this CPU computes in float32 instead of bfloat16")
    given = [f"checkpoint={own_run}", f"output={tmp_path / 'x.json'}", "device=cpu"]
    with pytest.raises(ConfigError, match=told):
        evaluate.main([*given, *settings.split()])


def test_a_model_that_searches_has_no_probes(tmp_path: Path, sudoku_data: Path) -> None:
    given = ["checkpoint=zoo:sudoku-search", f"data_path={sudoku_data}", "probes=[fate]"]
    with pytest.raises(ConfigError, match="probes follow models that do not"):
        evaluate.main([*given, f"output={tmp_path / 'x.json'}"])


def test_think_records_what_is_asked_for(own_run: Path) -> None:
    model = rr.load(own_run, device="cpu")
    plain = [*model.think(PUZZLE, steps=4)]
    names = ["z_H", "z_L.updates", "attention"]
    found = [*model.think(PUZZLE, steps=4, record=names)]
    assert [step.recorded for step in plain] == [{}] * 4
    for step, without in zip(found, plain, strict=True):
        assert set(step.recorded) == set(names)
        assert np.array_equal(step.answer, without.answer)
        assert step.recorded["z_H"].shape == step.recorded["z_L.updates"][0].shape
    moved = np.abs(found[1].recorded["z_H"] - found[0].recorded["z_H"]).max()
    assert moved > 0
    assert not any(module._forward_hooks for module in torch.nn.Module.modules(model._loaded[1]))


def test_a_record_is_of_one_chain(own_run: Path) -> None:
    model = rr.load(own_run, device="cpu")
    with pytest.raises(ConfigError, match="record: only for one chain"):
        model.think(PUZZLE, chains=2, record=["z_H"])
    with pytest.raises(ConfigError, match="record=z_X: this model has z_H"):
        model.think(PUZZLE, record="z_X")


def test_the_report_shows_the_probes(
    probe: Run, make_run_folder: Callable[..., Path], tmp_path: Path
) -> None:
    from apps.reports.inside import inside_html
    from apps.reports.page import Page
    from apps.reports.reading import read_run

    result, _ = probe("[residual,fate,readout,influence,path]", "steps=5")
    folder = make_run_folder()
    (folder / "eval_step_16_inside.json").write_text(json.dumps(result))
    page = Page("report", "")
    html = inside_html(read_run(folder), page)
    assert "fate: fate" in html
    for title in ("Change of the state", "What each latent", "The way to", "Who listens"):
        assert title in html
    broken = json.loads(json.dumps(result))
    broken["inside"] = {"all": {"path": {"path": {"paths": [[1, "x"], None]}}, "influence": 3}}
    (folder / "eval_step_16_inside.json").write_text(json.dumps(broken))
    assert "The way to" in inside_html(read_run(folder), Page("report", ""))
    too_large = 10**400  # For a float.
    broken["inside"]["all"]["influence"] = {"influence": {"mean": [[too_large]]}}
    (folder / "eval_step_16_inside.json").write_text(json.dumps(broken))
    assert "Who listens" not in inside_html(read_run(folder), Page("report", ""))
