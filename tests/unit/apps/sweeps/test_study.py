"""A study runs each suggestion of Optuna once, and continues unfinished trials."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from apps.sweeps.config import OptunaConfig
from apps.sweeps.study import StudyJobs, corners, distribution, open_study
from runtime.errors import EXIT_LOCKED, EXIT_NON_FINITE, ConfigError

STUDY = {"name": "optuna", "sampler": {"name": "tpe", "seed": 1}, "n_trials": 6}
LR = "lr=tag(log,interval(1e-4,1e-2))"


def parsed(*overrides: str) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


class Trials:
    """A study without real jobs: each test decides how they end."""

    def __init__(
        self, folder: Path, *overrides: str, objective: str = "eval/score", **config: Any
    ) -> None:
        asked = OptunaConfig.model_validate({"n_trials": 3} | config)
        self.metrics: dict[str, Mapping[str, Mapping[int, float]]] = {}
        self.said: list[str] = []
        read = lambda name: self.metrics.get(name, {})  # noqa: E731
        swept = parsed(*(overrides or [LR]))
        self.jobs = StudyJobs(asked, swept, folder, objective, objective, read, self.said.append)

    def end(self, code: int, score: float = 1.0, metric: str = "eval/score") -> str | None:
        """End the next job like this; return its name, None if there is no next job."""
        job = self.jobs.next()
        if job is not None:
            if code == 0:
                self.metrics[job.name] = {metric: {1: score}}
            self.jobs.ended(job, code)
        return job and job.name

    def finish_all(self) -> list[str]:
        return list(iter(lambda: self.end(0), None))

    def states(self) -> list[str]:
        return [record.state for record in self.jobs.jobs.values()]


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
def test_swept_overrides_become_distributions(override: str, expected: Any) -> None:
    assert distribution(parsed(override)[0]) == expected


@pytest.mark.parametrize("override", ["lr=interval(2,1)", LR.replace("1e-4", "0"), "a=glob(*)"])
def test_overrides_that_optuna_cannot_take_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="^lr=|^a="):
        distribution(parsed(override)[0])


def test_every_choice_and_both_ends_are_validated_first() -> None:
    values = corners(parsed("lr=interval(0.1,0.2)", "arch=trm,hrm", "n=range(2,9,3)"))
    found = {key: {v[key] for v in values} for key in values[0]}
    assert found == {"lr": {"0.1", "0.2"}, "arch": {"trm", "hrm"}, "n": {"2", "8"}}


def test_the_same_values_are_not_tried_twice(tmp_path: Path) -> None:
    for done in (6, 0):
        trials = Trials(tmp_path, "lr=1,2,3", "n=range(0,2)", n_trials=20)
        names = trials.finish_all()
        assert len(names) == len(set(names)) == done
        assert trials.said[-1] == "all values have been tried: the study ends"


def test_trials_of_earlier_starts_and_failed_ones_count(tmp_path: Path) -> None:
    first = Trials(tmp_path, n_trials=3)
    failed = first.end(5)
    first.end(0)
    again = Trials(tmp_path, n_trials=3)
    assert again.jobs.num_left == 1
    assert len(again.finish_all()) == 1
    assert sorted(again.states()) == ["failed", "finished", "finished"]
    assert again.jobs.jobs[str(failed)].exit_code == 5
    assert "failed with exit code 5, see logs/" in first.said[1]


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_with_a_seed_a_restarted_study_draws_the_same_values(tmp_path: Path, sampler: str) -> None:
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


def test_a_trial_of_a_killed_process_is_queued_again_once(tmp_path: Path) -> None:
    left = [Trials(tmp_path, n_trials=2).jobs.next() for _ in range(2)]
    assert left[0] == left[1]
    after = Trials(tmp_path, n_trials=2)
    assert after.said[0].endswith("its process was killed: queued again")
    assert after.states() == ["stopped"]
    assert after.jobs.ends == []
    names = after.finish_all()
    assert left[0] is not None
    assert names[0] == left[0].name
    assert len(names) == 2
    assert after.states() == ["finished"] * 2


@pytest.mark.parametrize(
    ("code", "attempts"), [(EXIT_NON_FINITE, 1), *((c, 3) for c in (137, 1, 2, 4, EXIT_LOCKED, 7))]
)
def test_a_failed_trial_is_tried_again_unless_its_loss_was_not_finite(
    tmp_path: Path, code: int, attempts: int
) -> None:
    trials = Trials(tmp_path, n_trials=1)
    assert len({trials.end(code) for _ in range(attempts)}) == 1
    assert trials.jobs.next() is None
    assert trials.states() == ["failed"]


def test_a_failed_trial_is_tried_again_after_all_values_have_been_tried(tmp_path: Path) -> None:
    trials = Trials(tmp_path, "lr=1,2", n_trials=20)
    first, second = trials.jobs.next(), trials.jobs.next()
    assert first is not None
    assert second is not None
    assert trials.jobs.next() is None
    trials.jobs.ended(first, 1)
    assert [trials.end(1), trials.end(1)] == [first.name] * 2
    assert trials.jobs.next() is None
    trials.jobs.ended(second, EXIT_NON_FINITE)
    assert [record.state for record in trials.jobs.ends] == ["failed"] * 2


def test_an_objective_that_is_not_measured_is_refused_and_costs_no_trial(tmp_path: Path) -> None:
    trials = Trials(tmp_path, n_trials=1, objective="eval/scor")
    job = trials.jobs.next()
    assert job is not None
    trials.metrics[job.name] = {"eval/score": {1: 0.5}, "eval/loss": {1: 0.1}}
    with pytest.raises(ConfigError, match="accepted: eval/score, eval/loss; did you mean eval/sco"):
        trials.jobs.ended(job, 0)
    assert Trials(tmp_path, n_trials=1).end(0) == job.name


def test_a_later_trial_without_the_metric_has_failed(tmp_path: Path) -> None:
    trials = Trials(tmp_path, n_trials=2)
    trials.end(0)
    failed = trials.end(0, metric="eval/loss")
    assert trials.states() == ["finished", "failed"]
    assert trials.jobs.jobs[str(failed)].exit_code == 0


def test_the_lock_and_half_record_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    Trials(tmp_path, n_trials=2).end(0)
    with (tmp_path / "study.journal").open("a") as journal:
        journal.write('{"op_code":4,"wor')
    (tmp_path / "study.journal.lock").touch()
    began = time.monotonic()
    after = Trials(tmp_path, n_trials=2)
    assert len(after.finish_all()) == 1
    assert after.states() == ["finished"] * 2
    assert time.monotonic() - began < 15  # Optuna would wait for half a minute.


def test_a_study_without_its_metric_ends_with_a_reason(sweep: Any) -> None:
    code, output = sweep.run({"sweeper": STUDY | {"objective": "eval/scores"}}, LR)
    assert code == 1
    assert "did you mean eval/score?" in output


def test_a_study_of_other_settings_is_refused(tmp_path: Path) -> None:
    Trials(tmp_path)
    with pytest.raises(ConfigError, match="started with other settings"):
        open_study(OptunaConfig(direction="minimize"), tmp_path, "eval/score")
    Trials(tmp_path).end(0)
    with pytest.raises(ConfigError, match="started with other settings"):
        Trials(tmp_path, objective="eval/loss")
