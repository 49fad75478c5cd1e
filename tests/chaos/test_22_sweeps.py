"""Row 22: a sweep is killed at random (alone, with its jobs, or only its jobs) and started again.

Every job ends in the bits of a single run, and none is run twice. A failed trial is tried again.
"""

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Child, Fault, pretrain, until

SEEDS = ("0", "1", "2")


def start(lab: Lab, name: str, *more: str, faults: Sequence[Fault] = ()) -> Child:
    own = (f"hydra.sweep.dir={lab.folder}", f"sweep_name={name}", "logger=jsonl")
    return lab.server.start(pretrain, "-m", *lab.overrides, *own, *more, faults=faults)


def at_work(child: Child) -> list[int]:
    """Return the process numbers of a sweep's jobs."""
    with contextlib.suppress(FileNotFoundError):
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
        return [int(pid) for pid in children.split()]
    return []


def has_ended_at_work(child: Child, seconds: float) -> bool:
    """Wait until a job runs, and then `seconds`; return whether the sweep has ended before."""
    while not at_work(child):
        if child.ended_within(0.1):
            return True
    return child.ended_within(seconds)


def jobs_that(did: str, child: Child) -> set[str]:
    """Return the jobs that a sweep has reported as started, or as finished."""
    return set(re.findall(rf"\] (\S+): {did}", child.out))


def require_none_run_twice(sweeps: Sequence[Child]) -> None:
    finished = set[str]()
    for child in sweeps:
        assert not finished & jobs_that("started", child), "run twice"
        finished |= jobs_that("finished", child)


def test_kills_of_sweeps_change_no_bit(lab: Lab) -> None:
    for seed in SEEDS:
        lab.train(f"whole {seed}", f"seed={seed}")
    swept = (f"seed={','.join(SEEDS)}", "hydra/launcher=pool", "hydra.launcher.max_jobs=2")
    wanted = lab.cases(quick=10, long=100)
    kills = sweeps = 0
    while kills < wanted:
        name, started = f"killed-{sweeps}", list[Child]()
        while True:
            child = start(lab, name, *swept)
            started.append(child)
            if kills == wanted or has_ended_at_work(child, lab.rng.uniform(0.0, 4.0)):
                break
            jobs, victims = at_work(child), lab.rng.choice(["sweep", "jobs", "all"])
            if victims != "jobs" or not jobs:
                child.kill()
            for pid in jobs if victims != "sweep" else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.wait()
            kills += 1
        assert child.wait() == 0, child.out + child.err
        require_none_run_twice(started)
        sweeps += 1
        for seed in SEEDS:
            lab.require_same_end(f"{name}/seed-{seed}", f"whole {seed}")
    said = f"{kills} kills in {sweeps} sweeps of {len(SEEDS)} jobs, none run twice, the same bits"
    lab.tally(said, kills=kills, wrong_ends=0)


@pytest.mark.parametrize("mutant", mutants.params("forget_finished_jobs"))
def test_a_sweep_that_forgets_is_noticed(lab: Lab, mutant: Fault) -> None:
    started = [start(lab, "again", "max_steps=3", faults=[mutant])]
    started[0].wait()
    started.append(start(lab, "again", "max_steps=3"))
    started[1].wait()
    with pytest.raises(AssertionError, match="run twice"):
        require_none_run_twice(started)


def run_a_study_past_a_failure(lab: Lab, *faults: Fault) -> None:
    """Start a study whose trial's folder cannot be created until the trial has failed once."""
    obstacle = lab.folder / "searched" / "seed-0"
    obstacle.parent.mkdir()
    obstacle.touch()
    asked = "hydra/sweeper=optuna hydra.sweeper.n_trials=1 hydra.sweeper.objective=train/lm_loss"
    child = start(lab, "searched", *asked.split(), "seed=range(0,1)", "max_steps=3", faults=faults)
    until(lambda: "(exit code 2): queued again" in child.out or not child.alive, "a failure")
    obstacle.unlink()
    assert child.wait() == 0, child.out


def test_a_failed_trial_is_tried_again(lab: Lab) -> None:
    run_a_study_past_a_failure(lab)
    lab.tally("a trial's folder could not be created at first: tried again")


@pytest.mark.parametrize("mutant", mutants.params("give_up_at_once"))
def test_a_trial_that_is_given_up_at_once_is_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="failed with exit code 2"):
        run_a_study_past_a_failure(lab, mutant)
