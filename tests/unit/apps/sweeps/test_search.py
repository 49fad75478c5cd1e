"""A search tries what Optuna suggests, each thing once, whoever is at work on it and dies."""

import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from apps.sweeps.config import OptunaConfig
from apps.sweeps.jobs import Job
from apps.sweeps.programs import TRAINING
from apps.sweeps.search import EXIT_CODE, Search, corners, distribution, open_study
from runtime.errors import EXIT_LOCKED, EXIT_NON_FINITE, EXIT_PREEMPTED, ConfigError
from tests.unit.apps.sweeps.conftest import processes_of, wait_until
from training.checkpoint.lock import Owner

POOL = {"launcher": {"name": "pool", "max_jobs": 2}}
SEARCH = {"name": "optuna", "sampler": {"name": "tpe", "seed": 1}, "n_trials": 6}
LR = "lr=tag(log,interval(1e-4,1e-2))"


def parsed(*overrides: str) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


class Trials:
    """A search whose jobs are not run: the tests say how they ended."""

    def __init__(
        self, folder: Path, *overrides: str, objective: str = "eval/score", **config: Any
    ) -> None:
        asked = OptunaConfig.model_validate({"n_trials": 3} | config)
        self.metrics: dict[str, Mapping[str, Mapping[int, float]]] = {}
        self.said: list[str] = []
        self.study = open_study(asked, folder, objective)
        read = lambda name: self.metrics.get(name, {})  # noqa: E731
        swept = parsed(*(overrides or [LR]))
        self.search = Search(asked, swept, self.study, objective, objective, read, self.said.append)

    def finish(self, score: float = 1.0) -> str | None:
        """Run a job to its end; return its name, None when there is no other one."""
        job = self.search.next()
        if job is not None:
            self.metrics[job.name] = {"eval/score": {1: score}}
            self.search.ended(job, 0)
        return job and job.name

    def finish_all(self) -> list[str]:
        return list(iter(self.finish, None))

    def states(self) -> list[str]:
        return [record.state for record in self.search.jobs.values()]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("lr=interval(0.1,1)", FloatDistribution(0.1, 1)),
        ("lr=tag(log,interval(1e-4,1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("n=interval(1,8)", FloatDistribution(1, 8)),
        ("n=int(interval(1,8.0))", IntDistribution(1, 8)),
        ("n=tag(log,int(interval(1,100)))", IntDistribution(1, 100, log=True)),
        ("n=range(2,9,3)", IntDistribution(2, 8, step=3)),
        ("n=range(3,0,-1)", IntDistribution(1, 3)),
        ("x=range(0.0,1.0,0.5)", CategoricalDistribution(["0.0", "0.5"])),
        ("arch=trm,hrm", CategoricalDistribution(["trm", "hrm"])),
        ("arch=choice(trm,hrm)", CategoricalDistribution(["trm", "hrm"])),
    ],
)
def test_what_is_swept_becomes_a_distribution(override: str, expected: Any) -> None:
    assert distribution(parsed(override)[0]) == expected


@pytest.mark.parametrize("override", ["lr=interval(2,1)", LR.replace("1e-4", "0"), "a=glob(*)"])
def test_what_optuna_cannot_take_is_said(override: str) -> None:
    with pytest.raises(ConfigError, match="^lr=|^a="):
        distribution(parsed(override)[0])


def test_every_choice_and_both_ends_are_validated_first() -> None:
    values = corners(parsed("lr=interval(0.1,0.2)", "arch=trm,hrm", "n=range(2,9,3)"))
    assert {v["lr"] for v in values} == {"0.1", "0.2"}
    assert {v["arch"] for v in values} == {"trm", "hrm"}
    assert {v["n"] for v in values} == {"2", "8"}


def test_the_same_values_are_not_tried_twice(tmp_path: Path) -> None:
    trials = Trials(tmp_path, "lr=1,2,3", "n=range(0,2)", n_trials=20)
    names = trials.finish_all()
    assert len(names) == len(set(names)) == 6
    assert trials.said[-1] == "there are no other values to try: the search ends"
    assert Trials(tmp_path, "lr=1,2,3", "n=range(0,2)", n_trials=20).finish_all() == []


def test_trials_of_earlier_starts_and_failed_ones_count(tmp_path: Path) -> None:
    first = Trials(tmp_path, n_trials=3)
    job = first.search.next()
    assert job is not None
    first.search.ended(job, 5)
    assert first.finish() is not None
    again = Trials(tmp_path, n_trials=3)
    assert len(again.finish_all()) == 1
    assert sorted(again.states()) == ["failed", "finished", "finished"]
    assert again.search.jobs[job.name].exit_code == 5
    assert "failed with exit code 5, see logs/" in first.said[1]


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "qmc"])
def test_with_a_seed_a_search_that_was_begun_again_draws_the_same(
    tmp_path: Path, sampler: str
) -> None:
    chosen: dict[str, Any] = {"sampler": {"name": sampler, "seed": 3, "n_startup_trials": 2}}
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = Trials(tmp_path / "whole", n_trials=5, **chosen).finish_all()
    parts = [
        name
        for n_trials in (2, 5)
        for name in Trials(tmp_path / "parts", n_trials=n_trials, **chosen).finish_all()
    ]
    assert parts == whole
    assert len(set(whole)) == 5


def test_two_processes_share_the_trials_out(tmp_path: Path) -> None:
    seed = {"name": "random", "seed": 0}
    one, two = (Trials(tmp_path, "n=range(0,9)", n_trials=5, sampler=seed) for _ in range(2))
    jobs = [(t, t.search.next()) for t in (one, two, one, two, one, two)]
    names = [job.name for _, job in jobs if job]
    assert len(names) == len(set(names)) == 5
    assert jobs[-1][1] is None
    for trials, job in jobs:
        if job:
            trials.metrics[job.name] = {"eval/score": {1: 0.5}}
            trials.search.ended(job, 0)
    assert one.states() == two.states() == ["finished"] * 5
    assert {record.result for record in one.search.jobs.values()} == {0.5}


def was_last_seen(other: Trials, job: Job, age: timedelta, patch: pytest.MonkeyPatch) -> None:
    """Let a search sign as if it ran on another machine, some time ago."""
    since = (datetime.now().astimezone() - age).isoformat()
    there = replace(Owner.this_process(), host="other", since=since)
    with patch.context() as patched:
        patched.setattr(Owner, "this_process", lambda: there)
        assert not other.search.is_hopeless(job)


def test_a_trial_of_another_machine_is_taken_over_when_it_has_been_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.sweeps.search._SIGN_SECONDS", 0.0)
    other, here = (Trials(tmp_path, n_trials=1) for _ in range(2))
    job = other.search.next()
    assert job is not None
    was_last_seen(other, job, timedelta(minutes=9), monkeypatch)
    assert here.search.next() is None
    assert here.states() == ["running"]
    was_last_seen(other, job, timedelta(minutes=11), monkeypatch)
    assert here.finish() == job.name
    assert other.search.is_hopeless(job)  # It was only asleep.
    other.search.ended(job, EXIT_PREEMPTED)
    assert other.said[-1].endswith("another process has taken it over")
    assert here.states() == ["finished"]


@pytest.mark.parametrize(
    ("code", "attempts"),
    [(EXIT_LOCKED, 20), (EXIT_NON_FINITE, 1), *((code, 3) for code in (137, 1, 2, 4, 7))],
)
def test_a_trial_whose_failure_may_have_passed_is_tried_again(
    tmp_path: Path, code: int, attempts: int
) -> None:
    trials = Trials(tmp_path, n_trials=1)
    names = set()
    for _ in range(attempts):
        job = trials.search.next()
        assert job is not None
        names.add(job.name)
        trials.search.ended(job, code)
    assert len(names) == 1
    assert trials.search.next() is None
    assert trials.states() == ["failed"]


def test_a_metric_that_is_not_measured_is_said_and_costs_no_trial(tmp_path: Path) -> None:
    trials = Trials(tmp_path, n_trials=1, objective="eval/scor")
    job = trials.search.next()
    assert job is not None
    trials.metrics[job.name] = {"eval/score": {1: 0.5}, "eval/loss": {1: 0.1}}
    with pytest.raises(ConfigError, match="measured: eval/score, eval/loss; did you mean eval/sco"):
        trials.search.is_hopeless(job)
    right = Trials(tmp_path, n_trials=1)
    assert right.finish() == job.name


def test_a_later_trial_without_the_metric_has_failed(tmp_path: Path) -> None:
    trials = Trials(tmp_path, n_trials=2)
    trials.finish()
    job = trials.search.next()
    assert job is not None
    trials.metrics[job.name] = {"eval/loss": {1: 0.1}}
    trials.search.ended(job, 0)
    assert trials.states() == ["finished", "failed"]
    assert trials.study.trials[-1].user_attrs[EXIT_CODE] == 0


def test_a_study_of_other_settings_is_refused(tmp_path: Path) -> None:
    Trials(tmp_path).finish()
    with pytest.raises(ConfigError, match="was begun with other settings"):
        Trials(tmp_path, objective="eval/loss")


def test_half_a_record_in_the_journal_is_cut_off(tmp_path: Path) -> None:
    first = Trials(tmp_path, n_trials=2)
    first.finish()
    with (tmp_path / "study.journal").open("a") as journal:
        journal.write('{"op_code":4,"wor')
    assert len(Trials(tmp_path, n_trials=2).finish_all()) == 1
    assert first.states() == ["finished"] * 2


@pytest.mark.slow
def test_a_lock_that_a_dead_process_left_ends_after_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("multirun")
    folder.mkdir()
    Trials(folder, n_trials=2).finish()
    (folder / "study.journal.lock").touch()
    assert len(Trials(folder, n_trials=2).finish_all()) == 1
    assert not (folder / "study.journal.lock").exists()


@pytest.mark.parametrize("storage", ["sqlite:///FOLDER/study.db", "FOLDER/other.journal"])
def test_the_study_may_lie_elsewhere(tmp_path: Path, storage: str) -> None:
    place = storage.replace("FOLDER", str(tmp_path))
    chosen = {"storage": place, "study_name": "mine"}
    Trials(tmp_path / "here", **chosen).finish()
    assert len(Trials(tmp_path / "there", **chosen).finish_all()) == 2


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_hopeless_jobs_are_given_up_by_their_evaluations(tmp_path: Path, pruner: str) -> None:
    trials = Trials(tmp_path, n_trials=12, pruner=pruner, sampler={"seed": 0})
    pruned = 0
    for number in range(12):
        job = trials.search.next()
        assert job is not None
        found: dict[int, float] = {}
        trials.metrics[job.name] = {"eval/score": found}
        code = 0
        for step in range(100, 1000, 100):
            found[step] = -float(number)
            if trials.search.is_hopeless(job):
                code, pruned = EXIT_PREEMPTED, pruned + 1
                break
        trials.search.ended(job, code)
    assert pruned >= 3
    assert trials.states().count("pruned") == pruned
    assert trials.states()[0] == "finished"


def test_training_metrics_can_be_an_objective(tmp_path: Path) -> None:
    records = [{"step": 1, "train/lm_loss": 2.0, "train/lr": 0.1}, {"step": 1, "eval/x": None}]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    found = TRAINING.read(tmp_path, "run", "train/lm_loss")
    assert found["train/lm_loss"] == {1: 2.0}
    assert math.isnan(found["eval/x"][1])


def results(sweep: Any) -> list[dict[str, Any]]:
    return json.loads((sweep.folder / "results.json").read_text())["jobs"]


@pytest.mark.slow
def test_two_real_processes_work_on_one_search(sweep: Any) -> None:
    settings = {"sweeper": SEARCH}
    both = [sweep.start(settings, LR, "steps=20", "seconds=0.05") for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert list(sweep.steps().values()) == [list(range(1, 21))] * 6
    assert all(len(sweep.starts(name)) == 1 for name in sweep.steps())
    scores = [row["metrics"]["eval/score"] for row in results(sweep)]
    assert len(scores) == 6
    assert scores == sorted(scores, reverse=True)
    code, output = sweep.run({"sweeper": SEARCH | {"n_trials": 7}}, LR, "steps=20", "seconds=0.05")
    assert (code, len(results(sweep))) == (0, 7), output


@pytest.mark.slow
def test_a_killed_trial_is_queued_again_and_resumes(sweep: Any) -> None:
    settings = {"sweeper": SEARCH | {"n_trials": 3}} | POOL
    overrides = LR, "steps=40", "seconds=0.05"
    process = sweep.start(settings, *overrides)
    wait_until(lambda: len(sweep.steps()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = list(sweep.steps())
    wait_until(lambda: not any(processes_of(sweep.folder / name) for name in killed))
    code, output = sweep.run(settings, *overrides)
    assert code == 0, output
    assert output.count("its process has ended: queued again") == 2
    assert list(sweep.steps().values()) == [list(range(1, 41))] * 3
    assert all(name in sweep.steps() for name in killed)


@pytest.mark.slow
def test_a_stopped_search_goes_on_with_the_same_trial(sweep: Any) -> None:
    settings, overrides = {"sweeper": SEARCH | {"n_trials": 1}}, (LR, "steps=40", "seconds=0.05")
    process = sweep.start(settings, *overrides)
    wait_until(lambda: bool(sweep.steps()))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert [row["state"] for row in results(sweep)] == ["stopped"]
    assert sweep.run(settings, *overrides)[0] == 0
    assert list(sweep.steps().values()) == [list(range(1, 41))]


@pytest.mark.slow
def test_pruned_processes_are_stopped(sweep: Any) -> None:
    search = SEARCH | {"n_trials": 8, "pruner": "median"}
    values = "lr=0.003,0.004,0.5,0.6", "steps=12", "seconds=0.05", "seed=range(2)"
    code, output = sweep.run({"sweeper": search}, *values)
    assert code == 0, output
    assert {"pruned", "finished"} == {row["state"] for row in results(sweep)}


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        ({"pruner": "median", "objective": "score"}, "not a metric of evaluations"),
        ({"objective": "eval/scores"}, "did you mean eval/score?"),
    ],
)
def test_a_search_that_cannot_work_ends_with_a_reason(
    sweep: Any, search: dict[str, str], reason: str
) -> None:
    code, output = sweep.run({"sweeper": SEARCH | search}, LR)
    assert code == 1
    assert reason in output


def test_another_direction_is_refused_before_the_first_result(tmp_path: Path) -> None:
    open_study(OptunaConfig(), tmp_path, "same")
    with pytest.raises(ConfigError, match="begun with other settings"):
        open_study(OptunaConfig(direction="minimize"), tmp_path, "same")
