"""A sweep runs every job once, continues after any stop, and leaves no process behind."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from apps.sweeps.config import PoolConfig
from apps.sweeps.jobs import Job
from apps.sweeps.machine import LocalLauncher
from tests.conftest import wait_until

POOL = {"launcher": {"name": "pool", "max_jobs": 2}}


@pytest.mark.parametrize("settings", [{}, POOL])
def test_every_job_runs_once_and_the_table_is_ordered(settings: Any, sweep: Any) -> None:
    code, output = sweep.run(settings, "lr=0.001,0.003,0.01", "seed=0,1")
    assert code == 0, output
    assert sweep.steps() == {
        f"lr-{lr}__seed-{seed}": [1, 2, 3] for lr in (0.001, 0.003, 0.01) for seed in (0, 1)
    }
    ordered = [row["values"]["lr"] for row in sweep.rows()]
    assert ordered == ["0.003", "0.003", "0.001", "0.001", "0.01", "0.01"]
    seeds = json.loads((sweep.folder / "results.json").read_text())["seeds"]
    assert seeds[0] == {"lr": "0.003", "seeds": 2, "mean": 0.0, "std": 0.0}
    rows = list(csv.DictReader((sweep.folder / "results.csv").read_text().splitlines()))
    assert [(row["lr"], row["state"]) for row in rows][0] == ("0.003", "finished")
    assert len(rows) == 6
    assert "Over seeds:" in output
    assert sweep.starts("lr-0.003__seed-1")[0]["WANDB_RUN_GROUP"] == "sweep"

    code, output = sweep.run(settings, "lr=0.001,0.003,0.01", "seed=0,1")
    assert code == 0
    assert "6 of 6 jobs are already finished" in output
    assert len(sweep.starts("lr-0.003__seed-1")) == 1
    assert sweep.run(settings, "seed=0,1")[0] == 0  # Other settings, the same table.
    assert len(sweep.rows()) == 8


def test_a_wrong_value_in_the_last_job_starts_none(sweep: Any) -> None:
    assert sweep.run({}, "lr=0.1,0.2,wrong") == (1, "error: lr=wrong\n")
    assert not sweep.folder.exists()


def test_a_failed_job_stops_no_other_and_is_tried_again(sweep: Any) -> None:
    code, output = sweep.run({}, "code=0,5", "seed=0,1")
    assert code == 5
    log = sweep.folder / "logs" / "code-5__seed-1.log"
    said = "the last words of code-5__seed-1"
    assert f"[4/4] code-5__seed-1: failed with exit code 5: {said} (see {log})" in output
    assert len(sweep.steps()) == 4
    sweep.run({}, "code=0,5", "seed=0,1")
    assert [len(sweep.starts(f"code-{code}__seed-0")) for code in (0, 5)] == [1, 2]


def test_the_device_settings_are_decided_once(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.run({"threads": None}, "code=1")
    record = json.loads((sweep.folder / "sweep.json").read_text())
    decided = record["machine"]["num_threads"]
    assert record["machine"] == {"device": "cpu", "num_threads": decided, "compile": "auto"}
    monkeypatch.setenv("OMP_NUM_THREADS", str(decided + 1))
    sweep.run({"threads": None}, "code=1")
    first, second = sweep.starts("run")
    assert first == second | {"step": 0}
    assert (first["num_threads"], first["compile"]) == (str(decided), "auto")


def test_a_device_that_a_sweep_cannot_have_is_named_and_not_recorded(
    sweep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, output = sweep.run({"device": "cuda"}, "seed=0")
    assert (code, output.splitlines()[-1]) == (
        1,
        "error: device=cuda: this machine has no GPU; use device=cpu",
    )
    assert sweep.run({}, "seed=0")[0] == 0
    code, output = sweep.run({"device": "cuda"}, "seed=0")
    began = f"{sweep.folder}: began with device=cpu"
    assert f"error: {began}; choose another sweep_name for device=cuda" in output
    assert (code, len(sweep.starts("run"))) == (1, 1)


def test_a_finished_job_runs_again_without_its_result_or_with_other_settings(sweep: Any) -> None:
    sweep.run({}, "seed=0,1")
    (sweep.folder / "seed-0" / "log.jsonl").unlink()
    code, output = sweep.run({}, "seed=0,1")
    assert (code, "seed-0: was finished, but its result is gone" in output) == (0, True)
    assert [len(sweep.starts(f"seed-{seed}")) for seed in (0, 1)] == [2, 1]
    sweep.run({}, "seed=0,1", "steps=4")
    assert sweep.steps()["seed-1"] == [1, 2, 3, 4]


def test_a_job_stopped_from_outside_continues_later(sweep: Any) -> None:
    process = sweep.start({}, "seed=0,1", "steps=30", "seconds=0.05")
    wait_until(sweep.steps)
    os.kill(sweep.processes()[0], signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert sweep.states() == {"seed-0": "stopped", "seed-1": "finished"}


@pytest.mark.parametrize(("ranks", "visible"), [(1, ["a", "b", "a", "b"]), (2, ["a,b"] * 4)])
def test_gpus_are_shared_out(ranks: int, visible: list[str], tmp_path: Path) -> None:
    gate, told = tmp_path / "gate", "echo $CUDA_VISIBLE_DEVICES"
    command = ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done; {told}"]
    config = PoolConfig(max_jobs=4, ranks=ranks)
    launcher = LocalLauncher(config, lambda job: command, tmp_path, ["a", "b"], {})
    jobs = [Job(f"job-{number}", {}, ()) for number in range(4)]
    started = [launcher.start(job) for job in jobs]
    gate.touch()
    assert [process.wait() for process in started] == [0] * 4
    logs = [tmp_path / "logs" / f"{job.name}.log" for job in jobs]
    assert [log.read_text().strip() for log in logs] == visible


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 75), (signal.SIGKILL, -9)]
)
def test_a_signal_ends_all_jobs_and_the_next_start_continues(
    number: int, code: int, sweep: Any
) -> None:
    overrides = "seed=0,1,2", "steps=40", "seconds=0.05"
    assert sweep.interrupt(POOL, *overrides, number=number, jobs=2) == code
    assert all(len(steps) < 40 for steps in sweep.steps().values())
    code, output = sweep.run(POOL, *overrides)
    assert code == 0, output
    assert sweep.steps() == {f"seed-{seed}": list(range(1, 41)) for seed in range(3)}


@pytest.mark.parametrize("sweeper", ["grid", "optuna"])
def test_a_second_start_is_refused_and_a_job_that_cannot_save_yet_has_not_failed(
    sweeper: str, sweep: Any
) -> None:
    settings = {"sweeper": {"name": sweeper}}
    overrides = "seed=0,1", "steps=6000", "seconds=0.05", "deaf=1"
    process = sweep.start(settings, *overrides)
    wait_until(sweep.steps)
    code, output = sweep.run(settings, *overrides)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert code == 1
    assert "another run is using this folder" in output
    assert "stopped" in sweep.states().values()


def test_a_damaged_record_is_named(sweep: Any) -> None:
    sweep.folder.mkdir()
    (sweep.folder / "sweep.json").write_text("{}")
    code, output = sweep.run({}, "seed=0,1")
    assert code == 1
    assert f"{sweep.folder}/sweep.json: 2 validation errors" in output
