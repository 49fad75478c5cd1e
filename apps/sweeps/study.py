"""The jobs of an Optuna study, which chooses their values from the results of earlier jobs.

The study is a journal in the sweep's folder and records all trials. Only one process may use it.
A trial that a killed process left is queued again with the same values; its job resumes from its
last checkpoint.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from numpy.random import SeedSequence
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from apps.sweeps.config import OptunaConfig, Sampler, SamplerConfig
from apps.sweeps.folder import JobRecord, State
from apps.sweeps.jobs import Job, job, swept
from runtime.errors import EXIT_NON_FINITE, EXIT_PREEMPTED, ConfigError
from runtime.text import shown
from training.config.explain import did_you_mean

# Attributes of a trial: the exit code if its job failed, its values if it was queued again.
# Attribute of a study: a digest of the settings that all its trials share.
EXIT_CODE, VALUES, SETTINGS = "exit_code", "values", "settings"

_MOST_REPEATS, _REPEATS_OF_SAMPLER = 100, 10
_MOST_FAILURES = 3

_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "stopped",  # By an older version.
    TrialState.RUNNING: "running",
    TrialState.WAITING: "stopped",
    TrialState.FAIL: "failed",
}


def distribution(override: Override) -> BaseDistribution:
    """Return the distribution of a swept override: `choice`, `range` or `interval`; `tag(log, ...)`
    makes it logarithmic.

    Raises:
        ConfigError: Optuna has no distribution for it.
    """
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            low, high, log = value.start or 0, value.end or 0, "log" in value.tags
            if isinstance(low, int) and isinstance(high, int):
                return IntDistribution(low, high, log=log)
            return FloatDistribution(low, high, log=log)
        if isinstance(value, RangeSweep) and not value.shuffle:
            numbers = sorted(value.range())
            if len(numbers) > 1 and all(isinstance(n, int) for n in numbers):
                return IntDistribution(numbers[0], numbers[-1], step=numbers[1] - numbers[0])
        if isinstance(value, ChoiceSweep | RangeSweep):
            return CategoricalDistribution(list(override.sweep_string_iterator()))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{shown(override.input_line)}: {error}") from None
    raise ConfigError(f"{shown(override.input_line)}: Optuna takes choice, range or interval")


def corners(overrides: Sequence[Override]) -> list[dict[str, str]]:
    """Return the values to validate before a study: for each setting all choices, or both ends of
    its range, each with the first values of the other settings.
    """
    ends = {o.key_or_group: _ends(distribution(o)) for o in swept(overrides)}
    first = {key: values[0] for key, values in ends.items()}
    return [first | {key: value} for key, values in ends.items() for value in values]


def open_study(config: OptunaConfig, folder: Path, settings: str) -> optuna.Study:
    """Open or create the study in `folder`.

    Args:
        settings: a digest of the settings that all trials share.
    Raises:
        ConfigError: the study cannot be read, or has trials with other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It would recommend a package that makes `gp` faster, but a suggestion only takes a second.
    logging.getLogger("optuna._gp").setLevel(logging.ERROR)
    path = folder / "study.journal"
    try:
        study = optuna.create_study(
            storage=_journal(path.absolute()),
            study_name=folder.name,
            direction=config.direction,
            load_if_exists=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {shown(str(error).splitlines()[0], 300)}") from None
    is_other = study.direction.name.lower() != config.direction
    if is_other or study.user_attrs.get(SETTINGS, settings) != settings:
        raise ConfigError(f"{path}: was started with other settings: choose another sweep_name")
    return study


def _journal(path: Path) -> optuna.storages.JournalStorage:
    """Open a journal; remove the lock and the half record that a killed process may have left."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


class StudyJobs:
    """Gives out the trials that Optuna suggests as jobs, and tells it their results.

    Args:
        config: the sampler and the number of trials; trials of earlier starts count.
        overrides: of the entry point's settings, including the swept ones.
        folder, settings: see `open_study`; the study stores `settings` with its first result.
        objective: the metric to optimize.
        read: returns the metrics of a job so far: name -> step -> value.
    """

    def __init__(
        self,
        config: OptunaConfig,
        overrides: Sequence[Override],
        folder: Path,
        settings: str,
        objective: str,
        read: Callable[[str], Mapping[str, Mapping[int, float]]],
        say: Callable[[str], None],
    ) -> None:
        self._config, self._overrides, self._settings = config, overrides, settings
        self._objective, self._read, self._say = objective, read, say
        self._space = {o.key_or_group: distribution(o) for o in swept(overrides)}
        self._at_work: dict[str, Trial] = {}
        self._failures: Counter[str] = Counter()
        self._is_exhausted = False
        self._study = open_study(config, folder, settings)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            say(f"trial {trial.number}: its process was killed: queued again")
            self._queue_again(trial)

    @property
    def jobs(self) -> dict[str, JobRecord]:
        """The records of the trials, by the names of their jobs."""
        records = {}
        for trial in self._study.get_trials(deepcopy=False):
            values = trial.params or trial.user_attrs.get(VALUES, {})
            if _counts(trial) and values.keys() == self._space.keys():
                state, code = _STATES[trial.state], trial.user_attrs.get(EXIT_CODE)
                named = self._job(values)
                records[named.name] = JobRecord(
                    values=named.values, state=state, exit_code=code, result=trial.value
                )
        return records

    @property
    def ends(self) -> list[JobRecord]:
        """The trials that have ended. Stopped ones are left out, because they will run again."""
        return [record for record in self.jobs.values() if record.state != "stopped"]

    @property
    def num_left(self) -> int:
        return max(0, self._config.n_trials - len(self._tried()))

    def _tried(self) -> list[dict[str, Any]]:
        trials = self._study.get_trials(deepcopy=False)
        return [t.params for t in trials if _counts(t) and t.state != TrialState.WAITING]

    def next(self) -> Job | None:
        """Return the job of the next trial. None if all `n_trials` have started, or no untried
        values are left.
        """
        for repeats in range(_MOST_REPEATS):
            tried = self._tried()
            if self._is_exhausted or len(tried) >= self._config.n_trials:
                return None
            kind = "random" if repeats >= _REPEATS_OF_SAMPLER else self._config.sampler.name
            drawn = len(self._study.get_trials(deepcopy=False))
            self._study.sampler = _sampler(self._config.sampler, kind, drawn)
            trial = self._study.ask(self._space)
            if trial.params not in tried:
                suggested = self._job(trial.params)
                self._at_work[suggested.name] = trial
                self._say(f"trial {trial.number}: {suggested.name}: started")
                return suggested
            self._study.tell(trial, state=TrialState.FAIL)
        self._is_exhausted = True
        self._say("all values have been tried: the study ends")
        return None

    def _job(self, values: Mapping[str, Any]) -> Job:
        return job(self._overrides, {key: _text(values[key]) for key in self._space})

    def _queue_again(self, trial: Trial | FrozenTrial) -> None:
        """Make the next trial use the values of an unfinished one."""
        is_whole = trial.params.keys() == self._space.keys()
        values = trial.params if is_whole else trial.user_attrs.get(VALUES)
        if values is not None:  # Before `tell`: a kill in between must not lose the values.
            self._study.enqueue_trial(values, user_attrs={VALUES: values})
            self._is_exhausted = False
        self._study.tell(trial.number, state=TrialState.FAIL)

    def ended(self, job: Job, code: int) -> None:
        """Tell Optuna the result of a job. A stopped job is queued again. So is a failed one until
        its third failure, because the cause, a full disk perhaps, may have passed.

        Raises:
            ConfigError: the job did not measure the objective.
        """
        trial, metrics = self._at_work.pop(job.name), self._read(job.name)
        found = metrics.get(self._objective)
        may_pass = code not in (0, EXIT_NON_FINITE, EXIT_PREEMPTED)
        self._failures[job.name] += may_pass
        if code == 0 and metrics and not found and SETTINGS not in self._study.user_attrs:
            self._queue_again(trial)
            raise ConfigError(
                f"hydra.sweeper.objective={shown(self._objective)} was not measured; accepted: "
                f"{', '.join(metrics)}{did_you_mean(self._objective, metrics)}"
            )
        last = found[max(found)] if found else math.nan
        if code == 0 and math.isfinite(last):
            if SETTINGS not in self._study.user_attrs:
                self._study.set_user_attr(SETTINGS, self._settings)
            self._study.tell(trial, last)
            how = f"{last:.4g}"
        elif code == EXIT_PREEMPTED:
            self._queue_again(trial)
            how = "stopped"
        elif may_pass and self._failures[job.name] < _MOST_FAILURES:
            self._queue_again(trial)
            how = f"{'killed' if code > 128 else 'failed'} (exit code {code}): queued again"
        else:
            trial.set_user_attr(EXIT_CODE, code)
            self._study.tell(trial, state=TrialState.FAIL)
            why = f"with exit code {code}" if code else f"because it has no {self._objective}"
            how = f"failed {why}, see logs/{job.name}.log"
        self._say(f"trial {trial.number}: {job.name}: {how}")


def _counts(trial: FrozenTrial) -> bool:
    """Return whether a trial counts as one of `n_trials`. Repeated values do not count, nor does a
    stopped trial, whose values another trial takes over.
    """
    return trial.state != TrialState.FAIL or EXIT_CODE in trial.user_attrs


def _sampler(config: SamplerConfig, kind: Sampler, drawn: int) -> optuna.samplers.BaseSampler:
    """Return the sampler for the next trial. Its draws depend only on the seed and on `drawn`, the
    number of trials so far.
    """
    seed = None
    if config.seed is not None:
        seed = int(SeedSequence((config.seed, drawn)).generate_state(1)[0])
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    learning = optuna.samplers.GPSampler if kind == "gp" else optuna.samplers.TPESampler
    return learning(seed=seed, n_startup_trials=config.n_startup_trials)


def _ends(found: BaseDistribution) -> list[str]:
    if isinstance(found, CategoricalDistribution):
        return [str(choice) for choice in found.choices]
    assert isinstance(found, IntDistribution | FloatDistribution)
    return [_text(found.low), _text(found.high)]


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
