"""Folders of runs are read whatever they hold."""

import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apps.reports import reading
from apps.reports.reading import find_runs, read_run
from apps.reports.runs import as_text
from apps.reports.tables import headline
from apps.reports.thinning import MAX_BINS, Curve
from evaluation.headline import MEASURES
from evaluation.metrics import wilson

Make = Callable[..., Path]


def test_metrics_beyond_the_limits_and_other_values_than_numbers_are_left_out(
    make_run_folder: Make,
) -> None:
    folder = make_run_folder(steps=1)
    record = {"step": 2, "train/lr": "nan", "train/lm_loss": 10**400, "train/steps": [1]}
    record |= {"train/<b>": 1.0, "other": 1.0, "train/" + "x" * 500: 1.0, "train/count": None}
    more = [{"step": n, f"train/{n}": 1.0, "diagnose/warnings": ["x"] * 3} for n in range(3, 400)]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in [record, *more])
    names = ["set", "index", "q_halt", *(f"right_after_{step}" for step in range(1, 1500))]
    row = ["all", "0", "0.5", *["1"] * 1499]
    (folder / "eval_step_1_records.csv").write_text(f"{','.join(names)}\n{','.join(row)}\n")
    run = read_run(folder)
    assert run.curves["train/lr"].not_finite == run.curves["train/lm_loss"].not_finite == 2
    assert run.curves["train/steps"].last == (1, 3.0)
    assert not any("<" in name or len(name) > 200 or "other" in name for name in run.curves)
    assert (len(run.curves), len(run.warnings)) == (200, 100)
    records = run.results[0].records
    assert records is not None
    assert records["q_halt"].tolist() == [0.5]
    assert "right_after_1024" in records
    assert all(column.dtype == np.float64 for column in records.values())


HALF = b'{"step": 3, "train/lr": 1.0, "train/lm_l'
LINES = [
    (b'{"step": 2, "train/lr": 1.0}\n', 0),
    (HALF, 1),
    (b"\x00\xff\xfe binary \x80\n", 1),
    (b"[1, 2]\n", 1),
    (b'{"train/lr": 1.0}\n', 1),
    (b'{"step": "2"}\n', 1),
    (b'{"step": -1}\n', 1),
    (b'{"step": 1e400}\n', 1),
    (b'{"step": true}\n', 1),
    (b'{"step": %d}\n' % 10**30, 1),
    (b'{"step": 2, "x": ' + b"9" * 5000 + b"}\n", 1),
    (b"[" * 100_000 + b"\n", 1),
    (b"\n", 1),
]


@pytest.mark.parametrize(("line", "left_out"), LINES, ids=range(len(LINES)))
def test_unreadable_lines_are_counted(make_run_folder: Make, line: bytes, left_out: int) -> None:
    folder = make_run_folder(steps=1)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line)
    run = read_run(folder)
    assert run.curves["train/lr"].last == (2 - left_out, 1.0 if not left_out else 1e-3)
    assert any("left out" in note for note in run.notes) == bool(left_out)


def test_a_line_without_end_needs_little_memory(tmp_path: Path, make_run_folder: Make) -> None:
    folder = make_run_folder(steps=2)
    path = folder / "metrics.jsonl"
    last = path.read_bytes()
    with path.open("ab") as file:
        for _ in range(200):
            file.write(b"x" * 2**20)
        file.write(b"\n" + last)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = read_run(folder)
    # 200 MiB of one line; in KiB, or in bytes on macOS.
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used / (2**20 if os.uname().sysname == "Darwin" else 2**10) < 50
    assert any("1 line that cannot be read" in note for note in run.notes)
    assert len(run.curves["train/lr"].points()[0]) == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "holds no settings"),
        (b"[1, 2]", "holds no settings"),
        (b"a: [", "not YAML"),
        (b"!!python/object/apply:os.system ['touch hacked']", "not YAML"),
        (b"a: &a {b: *a}", "it has an alias"),
        (b"\xff\xfe\x00", "no"),
        (b"a: 1\n" * 60_000, "larger than"),
        (b"{" * 5000, "nested too deep"),
    ],
)
def test_unreadable_settings_are_noted(
    make_run_folder: Make, content: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run_folder()
    monkeypatch.chdir(folder)
    (folder / "config.yaml").write_bytes(content)
    run = read_run(folder)
    assert [note for note in run.notes if note.startswith("config.yaml") and told in note]
    assert not (folder / "hacked").exists()
    assert run.curves


def test_evaluations_are_read_up_to_the_limit_of_all_json(
    make_run_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run_folder()
    monkeypatch.setattr(reading, "_MAX_ALL_JSON", (folder / "arc_tasks.json").stat().st_size)
    run = read_run(folder)
    assert (len(run.votes), run.results) == (1, [])
    assert any("larger than" in note or "too large" in note for note in run.notes)


def test_an_unreadable_folder_hides_no_other(
    make_run_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run_folder("runs/good")
    is_dir = Path.is_dir

    def refused(path: Path) -> bool:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied")
        return is_dir(path)

    (folder.parent / "secret").mkdir()
    monkeypatch.setattr(Path, "is_dir", refused)
    assert find_runs(folder.parent) == [folder]


def test_records_of_any_content(make_run_folder: Make) -> None:
    folder = make_run_folder()
    table = folder / "eval_step_40_records.csv"
    table.write_bytes(
        b'set,index,q_halt,odd\nall,0,0.5\nall,1,nan,"x\nall,2,1e999,\nall,3,0.25,7\n'
    )
    run = read_run(folder)
    records = run.results[0].records
    assert records is not None
    assert records["q_halt"].shape == records["odd"].shape
    assert 0.25 in records["q_halt"]
    assert "set" not in records
    table.write_bytes(b"\x00\xff" * 1000)
    assert read_run(folder).results[0].name == "eval_step_40.json"
    table.write_bytes(b"")
    records = read_run(folder).results[0].records
    assert records is not None
    assert records == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"[" * 200_000, b'{"a": NaN}'])
@pytest.mark.parametrize(
    "file", ["eval_step_40.json", "eval_step_40_records.json", "arc_tasks.json"]
)
def test_results_of_any_content(make_run_folder: Make, file: str, content: bytes) -> None:
    folder = make_run_folder()
    (folder / file).write_bytes(content)
    run = read_run(folder)
    assert run.curves
    is_json = content in (b"[]", b"7", b'{"a": NaN}')
    assert any(note.startswith(file) for note in run.notes) == (not is_json)


@pytest.mark.parametrize("file", ["eval_step_40.json", "eval_step_40_records.json", "x.json"])
def test_json_with_too_many_values_is_not_parsed(
    make_run_folder: Make, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loads = make_run_folder(), json.loads
    (folder / file).write_bytes(b"[" + b",".join([b"[]"] * 2_000_000) + b"]")

    def small(content: bytes | str) -> object:
        assert len(content) < 2**20
        return loads(content)

    monkeypatch.setattr(json, "loads", small)
    run = read_run(folder)
    assert run.curves
    assert any(note.startswith(f"{file}: holds more than") for note in run.notes)


def test_links_are_not_followed(make_run_folder: Make, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: opensesame")
    folder = make_run_folder()
    for name in ("config.yaml", "metrics.jsonl", "eval_step_40.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret)
    (folder / "elsewhere").symlink_to(tmp_path)
    run = read_run(folder)
    assert (run.settings, run.curves) == ({}, {})
    assert "eval_step_40.json" not in [result.name for result in run.results]
    assert sum("is a link" in note for note in run.notes) == 2
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    assert any("not a regular file" in note for note in read_run(folder).notes)


def test_runs_are_found_below_folders(make_sweep: Make, make_run_folder: Make) -> None:
    sweep = make_sweep()
    single = make_run_folder("deep/er/run")
    (sweep.parent / "loop").symlink_to(sweep.parent)
    assert len(find_runs(sweep)) == 4
    assert find_runs(single) == [single]
    assert find_runs(sweep.parent) == [single, *find_runs(sweep)]
    assert find_runs(sweep.parent / "nowhere") == []


def test_only_the_newest_evaluation_during_training_is_opened(make_run_folder: Make) -> None:
    folder = make_run_folder()
    for step in range(1, 5):
        (folder / f"eval_step_{step}").mkdir()
        (folder / f"eval_step_{step}" / "arc_tasks.json").write_text(json.dumps({f"t{step}": []}))
        os.utime(folder / f"eval_step_{step}", (step, step))
    assert [name for name, _ in read_run(folder).votes] == [
        "arc_tasks.json",
        "eval_step_4/arc_tasks.json",
    ]


def test_votes_during_training_give_the_headline_an_interval(make_run_folder: Make) -> None:
    folder = make_run_folder()
    for path in folder.glob("eval_step_40*.json"):
        path.unlink()
    found = headline(read_run(folder))
    assert found is not None
    assert found.words == "20 puzzles, during training, step 40"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 41, "eval/exact_accuracy": 0.1, "eval/arc/pass@2": 0.2}))
    votes = folder / "eval_step_41" / "arc_tasks.json"
    votes.parent.mkdir()
    votes.write_text(json.dumps({f"t{n}": [{"known": True}] for n in range(10)}))
    run = read_run(folder)
    found = headline(run)
    assert found is not None
    assert (found.name, found.words) == ("ARC pass@2", "10 tasks, during training, step 41")
    assert (run.status.score, run.status.measure) == (0.2, "eval/arc/pass@2")
    assert "20.0 % (ARC pass@2)" in as_text([run.status], in_colour=False)


def test_valid_answers_during_training_are_not_called_exact_ones(make_run_folder: Make) -> None:
    folder = make_run_folder()
    figures = {"count": 20.0, "exact_accuracy": 0.1, "rules/valid": 0.6}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 41} | {f"eval/{n}": value for n, value in figures.items()}))
    for path in folder.glob("eval_step_40*.json"):
        path.unlink()
    found = headline(read_run(folder))
    assert found is not None
    assert (found.name, found.estimate.value) == (MEASURES["rules/valid"], 0.6)
    assert found.estimate.low == pytest.approx(wilson(12, 20).low)


def test_a_later_evaluation_during_training_is_the_headline(make_run_folder: Make) -> None:
    folder = make_run_folder()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 60, "eval/count": 20.0, "eval/exact_accuracy": 0.9}))
    found = headline(read_run(folder))
    assert found is not None
    assert found.words == "20 puzzles, during training, step 60"


# Curves


def curve_of(values: list[float]) -> Curve:
    curve = Curve()
    for step, value in enumerate(values, 1):
        curve.add(step, value)
    return curve


def test_few_values_are_kept_as_they_are() -> None:
    assert curve_of([3.0, 1.0, 2.0]).points() == ([1, 2, 3], [3.0, 1.0, 2.0])
    assert curve_of([1.0, 2.0, 3.0, 4.0, 5.0, 7.0]).points(2) == ([2, 5], [2.0, 16 / 3])


def test_many_values_become_means() -> None:
    values = np.random.default_rng(0).normal(size=50_000)
    steps, means = curve_of(values.tolist()).points()
    assert MAX_BINS / 2 <= len(steps) <= MAX_BINS
    assert steps == sorted(steps)
    sums = np.add.reduceat(values, np.arange(255, 50_000, 256))[:-1]
    assert np.array(means[1:-1], float) == pytest.approx(sums / 256)


def test_steps_may_be_far_apart_and_in_any_order() -> None:
    curve = Curve()
    for step in (2**50, 5, 2**52, 5, 0):
        curve.add(step, float(step))
    assert curve.points()[0] == [0, 5, 2**50, 2**52]
    assert curve.last == (2**52, float(2**52))


def test_a_value_that_is_not_finite_is_a_gap_and_is_remembered() -> None:
    curve = curve_of([1.0, math.nan, 3.0, math.inf])
    assert curve.points() == ([1, 2, 3, 4], [1.0, None, 3.0, None])
    assert (curve.last, curve.not_finite) == ((3, 3.0), 2)
