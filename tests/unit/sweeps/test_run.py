"""A sweep runs every job once, goes on after whatever ended it, and leaves no process behind."""

import csv
import json
import os
import signal
from typing import Any

import pytest

from tests.unit.sweeps.conftest import processes_of, wait_until

SLURM = {"launcher": {"name": "slurm", "cluster": "local"}}
POOL = {"launcher": {"name": "pool", "max_jobs": 2}}


@pytest.mark.parametrize(
    "settings", [{}, POOL, {"launcher": {"name": "slurm", "cluster": "local"}}]
)
def test_every_job_runs_once_and_the_table_is_ordered(settings: Any, sweep: Any) -> None:
    code, output = sweep.run(settings, "lr=0.001,0.003,0.01", "seed=0,1")
    assert code == 0, output
    assert sweep.steps() == {
        f"lr-{lr}__seed-{seed}": [1, 2, 3] for lr in (0.001, 0.003, 0.01) for seed in (0, 1)
    }
    results = json.loads((sweep.folder / "results.json").read_text())
    assert [row["values"]["lr"] for row in results["jobs"]] == ["0.003"] * 2 + ["0.001"] * 2 + [
        "0.01"
    ] * 2
    assert results["seeds"][0] == {"lr": "0.003", "seeds": 2, "mean": 0.0, "std": 0.0}
    rows = list(csv.DictReader((sweep.folder / "results.csv").read_text().splitlines()))
    assert [(row["lr"], row["state"]) for row in rows][0] == ("0.003", "finished")
    assert len(rows) == 6
    assert "Over seeds:" in output

    code, output = sweep.run(settings, "lr=0.001,0.003,0.01", "seed=0,1")
    assert code == 0
    assert "6 of 6 jobs have finished before" in output
    assert len(sweep.starts("lr-0.003__seed-1")) == 1


def test_a_wrong_value_in_the_last_job_starts_none(sweep: Any) -> None:
    code, output = sweep.run({}, "lr=0.1,0.2,wrong")
    assert (code, output) == (1, "error: lr=wrong\n")
    assert not sweep.folder.exists()


def test_a_failed_job_stops_no_other_and_is_tried_again(sweep: Any) -> None:
    code, output = sweep.run({}, "code=0,5", "seed=0,1")
    assert code == 5
    assert "code-5__seed-0: failed with exit code 5, see" in output
    assert len(sweep.steps()) == 4
    sweep.run({}, "code=0,5", "seed=0,1")
    assert [len(sweep.starts(f"code-{code}__seed-0")) for code in (0, 5)] == [1, 2]


def test_what_bits_depend_on_is_decided_once(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.run({}, "seed=0,1", "code=0")
    record = json.loads((sweep.folder / "sweep.json").read_text())
    record["machine"]["num_threads"] = 17
    for job in record["jobs"].values():
        job["state"] = "stopped"
    (sweep.folder / "sweep.json").write_text(json.dumps(record))
    sweep.run({}, "seed=0,1", "code=0")
    first, second = sweep.starts("seed-0")
    assert "'num_threads': '17', 'compile': 'false'" in second
    assert "17" not in first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_all_jobs_at_work_and_the_next_start_goes_on(
    number: int, sweep: Any
) -> None:
    overrides = "seed=0,1,2", "steps=40", "seconds=0.05"
    process = sweep.start(POOL, *overrides)
    wait_until(lambda: len(sweep.steps()) == 2)
    process.send_signal(number)
    assert process.wait(timeout=60) == 75
    assert processes_of(sweep.folder / "seed-0") == []
    before = sweep.steps()
    assert all(len(steps) < 40 for steps in before.values())
    code, output = sweep.run(POOL, *overrides)
    assert code == 0, output
    assert sweep.steps() == {f"seed-{seed}": list(range(1, 41)) for seed in range(3)}


def test_a_killed_sweep_leaves_no_process_and_goes_on(sweep: Any) -> None:
    overrides = "seed=0,1", "steps=60", "seconds=0.05"
    process = sweep.start(POOL, *overrides)
    wait_until(lambda: len(sweep.steps()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(processes_of(sweep.folder / f"seed-{s}") for s in (0, 1)))
    assert all(len(steps) < 60 for steps in sweep.steps().values())
    assert sweep.run(POOL, *overrides)[0] == 0
    assert sweep.steps() == {f"seed-{seed}": list(range(1, 61)) for seed in range(2)}


def test_a_second_start_is_refused_while_the_first_is_at_work(sweep: Any) -> None:
    process = sweep.start({}, "seed=0,1", "steps=30", "seconds=0.05")
    wait_until(lambda: bool(sweep.steps()))
    code, output = sweep.run({}, "seed=0,1", "steps=30", "seconds=0.05")
    assert code == 1
    assert "another run is using this folder" in output
    assert process.wait(timeout=60) == 0
