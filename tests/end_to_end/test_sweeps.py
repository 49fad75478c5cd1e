"""Sweeps of the real entry points."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

POOL = ("hydra/launcher=pool", "hydra.launcher.max_jobs=2")


@pytest.fixture
def sweeps(tmp_path: Path) -> str:
    return f"hydra.sweep.dir={tmp_path / 'sweeps'}"


@pytest.mark.slow
def test_the_jobs_of_a_sweep_are_single_runs_and_can_be_evaluated(
    run_python: Any, tiny_settings: list[str], sweeps: str, run: Any, tmp_path: Path
) -> None:
    swept = (*tiny_settings, "epochs=4", sweeps, "heads=[tied],[standard]", "sweep_name=a", *POOL)
    finished = run_python("pretrain.py", "-m", *swept, timeout=120)
    assert finished.code == 0, finished.err
    runs = [tmp_path / "sweeps" / "a" / f"heads-{head}" for head in ("tied", "standard")]
    again = run_python("pretrain.py", "-m", *swept, timeout=120)
    assert again.out.splitlines()[2] == "2 of 2 jobs are already finished"
    single = run("epochs=4", "heads=[tied]", name="single")
    assert type(single)(runs[0]).digest() == single.digest()

    step = f"step_{single.steps[-1]}"
    depths = "arch_overrides.halt_max_steps=1,2"
    machine = ("device=cpu", "num_threads=1", "sweep_name=b", sweeps, *POOL)
    finished = run_python(
        "evaluate.py", "-m", f"checkpoint={runs[0]}", depths, *machine, timeout=120
    )
    assert finished.code == 0, finished.err
    folder = tmp_path / "sweeps" / "b"
    results = [json.loads(file.read_bytes()) for file in folder.glob("*/*.json")]
    assert {(result["checkpoint"], result["arch"]["halt_max_steps"]) for result in results} == {
        (str(runs[0] / step), steps) for steps in (1, 2)
    }
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    scores = [float(row["exact_accuracy"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert sorted(scores) == sorted(result["metrics"]["exact_accuracy"] for result in results)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("lr=1e-3,2e-3,3e-3,much",), "lr=much: input should be a valid number"),
        (("lr=1,2", "hydra.launcher.ranks=3"), "must be a multiple of the number of ranks, 3"),
        (("sweep_name=a,b",), "sweep_name names the whole sweep"),
        (("sweep_name=a/b", "lr=1,2"), "sweep_name: 'a/b' is used as a folder's name"),
    ],
)
def test_a_mistake_starts_nothing(
    overrides: tuple[str, ...],
    told: str,
    run_python: Any,
    tiny_settings: list[str],
    sweeps: str,
    tmp_path: Path,
) -> None:
    finished = run_python("pretrain.py", "-m", *tiny_settings, sweeps, *overrides)
    assert finished.code == 2
    (line,) = finished.err_lines
    assert told in line
    assert not (tmp_path / "sweeps").exists()


def test_a_sweep_under_torchrun_is_refused(start_ranks: Any, tiny_settings: list[str]) -> None:
    (process,) = start_ranks(("pretrain.py", "-m", *tiny_settings, "lr=1,2"))
    assert process.wait(timeout=60) == 2
    assert "run it without torchrun, and set hydra.launcher.ranks=N" in process.communicate()[1]
