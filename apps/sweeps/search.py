"""Search with Optuna: it suggests the values of the next jobs from the results of those before.

The study is the record of the trials: a journal on disk, or a database. Several processes, also of
several machines, may work on it. A trial whose process has died is queued again with its
parameters; its job goes on from its last checkpoint.
"""

import logging
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import optuna
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from numpy.random import SeedSequence
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import DBAPIError

from apps.sweeps.config import OptunaConfig, Sampler, SamplerConfig
from apps.sweeps.folder import JobRecord, State
from apps.sweeps.jobs import Job, job, swept
from runtime.errors import EXIT_LOCKED, EXIT_NON_FINITE, EXIT_PREEMPTED, ConfigError
from runtime.text import shown
from training.checkpoint.lock import Owner
from training.config.explain import did_you_mean

# Attributes of a trial: the process that runs its job, with the time of its last sign of life; the
# exit code of a job that failed; of a trial that was queued again, which one it goes on with.
OWNER, EXIT_CODE, AGAIN, VALUES = "owner", "exit_code", "again", "values"
# Attribute of a study: what its trials have in common.
SETTINGS = "settings"

_SIGN_SECONDS = 60.0
_SILENCE, _BEGINNING = timedelta(minutes=10), timedelta(minutes=1)
_LOOK_SHARE = 0.05
_MOST_REPEATS, _REPEATS_OF_SAMPLER = 100, 10
_MOST_REFUSALS = 20
# Exit codes that say what happens again with the same values, or are counted for themselves.
_SAME_AGAIN = (EXIT_NON_FINITE, EXIT_PREEMPTED, EXIT_LOCKED)
_MOST_FAILURES = 3
_TURN_SECONDS = 0.05
_MOST_OPENINGS, _OPENING_SECONDS = 6, 0.2


def distribution(override: Override) -> BaseDistribution:
    """Return what a swept override allows: `choice`, `range` or `interval`, on a log scale with
    `tag(log, ...)`.

    Raises:
        ConfigError: Optuna has no such distribution.
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
    raise ConfigError(f"{shown(override.input_line)}: a search takes choice, range or interval")


def corners(overrides: Sequence[Override]) -> list[dict[str, str]]:
    """Return values that show whether all that a search may try is valid: of each setting every
    choice, or both ends, with the first values of the others.
    """
    ends = {o.key_or_group: _ends(distribution(o)) for o in swept(overrides)}
    first = {key: values[0] for key, values in ends.items()}
    return [first | {key: value} for key, values in ends.items() for value in values]


def open_study(config: OptunaConfig, folder: Path, settings: str) -> optuna.Study:
    """Open the study of a search, or create it: a journal in `folder`, or where `config` says.

    Args:
        settings: stands for what its trials have in common.
    Raises:
        ConfigError: the storage cannot be used, or has trials with other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It would say that another package makes suggestions of `gp` faster: they take a second.
    logging.getLogger("optuna._gp").setLevel(logging.ERROR)
    place = config.storage or str(folder / "study.journal")
    name = config.study_name or folder.name
    try:
        study = _create_study(config, place, name)
    except Exception as error:  # Of many kinds: the drivers of databases have their own.
        reason = shown(str(error).splitlines()[0], 300)
        raise ConfigError(f"hydra.sweeper.storage={shown(place)}: {reason}") from None
    is_other = study.direction.name.lower() != config.direction
    if is_other or study.user_attrs.get(SETTINGS, settings) != settings:
        raise ConfigError(
            f"{place}: the search {shown(name)} was begun with other settings: choose another "
            "sweep_name or hydra.sweeper.study_name"
        )
    return study


def _create_study(config: OptunaConfig, place: str, name: str) -> optuna.Study:
    storage: Any = place
    if "://" not in place:
        path = os.path.abspath(place)
        storage = optuna.storages.JournalStorage(JournalFileBackend(path, _JournalLock(path)))
    attempt = 0
    while True:
        try:
            return optuna.create_study(
                storage=storage,
                study_name=name,
                direction=config.direction,
                pruner=_pruner(config),
                load_if_exists=True,
            )
        except DBAPIError:  # Where several searches begin at once, each creates the tables.
            attempt += 1
            if attempt == _MOST_OPENINGS:
                raise
            time.sleep(_OPENING_SECONDS * attempt)


class _JournalLock(JournalFileOpenLock):
    """Optuna's lock, which also cuts off half a record, left by a process that died."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self._journal = journal

    def acquire(self) -> bool:
        super().acquire()
        with open(self._journal, "rb+") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True


@dataclass
class _AtWork:
    """A trial whose job is at work: how many evaluations were reported, and when to look again."""

    trial: Trial
    reported: int = 0
    is_pruned: bool = False
    next_look: float = 0.0
    next_sign: float = 0.0


class Search:
    """Gives out jobs as Optuna suggests them, and tells it their results.

    Args:
        config: how to search, and how long. Trials count whoever ran them.
        overrides: of the task, the searched ones included.
        study: the study.
        settings: is noted in the study with its first result.
        objective: the metric.
        read: returns the metrics of a job so far, each by step.
        say: prints a line.
    """

    def __init__(
        self,
        config: OptunaConfig,
        overrides: Sequence[Override],
        study: optuna.Study,
        settings: str,
        objective: str,
        read: Callable[[str], Mapping[str, Mapping[int, float]]],
        say: Callable[[str], None],
    ) -> None:
        self._config, self._overrides, self._study = config, overrides, study
        self._settings, self._objective, self._read, self._say = settings, objective, read, say
        self._space = {o.key_or_group: distribution(o) for o in swept(overrides)}
        self._at_work: dict[str, _AtWork] = {}
        self._refusals: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._is_exhausted = self._is_measured = False

    @property
    def jobs(self) -> dict[str, JobRecord]:
        """The jobs by name, those of other processes included."""
        records = {}
        for trial in self._study.get_trials(deepcopy=False):
            values = trial.params or trial.user_attrs.get(VALUES, {})
            if (state := _state(trial)) and values.keys() == self._space.keys():
                code, result = trial.user_attrs.get(EXIT_CODE), trial.value
                named = self._job(values)
                records[named.name] = JobRecord(
                    values=named.values, state=state, exit_code=code, result=result
                )
        return records

    @property
    def num_left(self) -> int:
        trials = self._study.get_trials(deepcopy=False)
        begun = [t for t in trials if _counts(t) and t.state != TrialState.WAITING]
        return max(0, self._config.n_trials - len(begun))

    def next(self) -> Job | None:
        """Return the job of the next trial, or None when as many as asked for have begun, or there
        are no other values to try.
        """
        self._take_over()
        for repeats in range(_MOST_REPEATS):
            trials = self._study.get_trials(deepcopy=False)
            begun = [t for t in trials if _counts(t) and t.state != TrialState.WAITING]
            if self._is_exhausted or len(begun) >= self._config.n_trials:
                return None
            if len({tuple(t.params.items()) for t in begun}) >= _size(self._space):
                break
            kind = "random" if repeats >= _REPEATS_OF_SAMPLER else self._config.sampler.name
            self._study.sampler = _sampler(self._config.sampler, kind, len(trials))
            trial = self._study.ask(self._space)
            if self._is_wanted(trial):
                return self._started(trial)
            self._study.tell(trial, state=TrialState.FAIL)
        self._is_exhausted = True
        self._say("there are no other values to try: the search ends")
        return None

    def _is_wanted(self, trial: Trial) -> bool:
        """Return whether no earlier trial has the same values, and there are not enough of them:
        other processes may have begun some at the same moment.
        """
        again = trial.user_attrs.get(AGAIN)
        while True:
            trials = self._study.get_trials(deepcopy=False)[: trial.number]
            earlier = [t for t in trials if _counts(t) and t.number != again]
            values = [t.params or t.user_attrs.get(VALUES, {}) for t in earlier]
            if not any(
                t.state == TrialState.RUNNING
                and t.params.keys() != self._space.keys()
                and not _is_gone(t)
                for t in earlier
            ):
                return len(earlier) < self._config.n_trials and trial.params not in values
            time.sleep(_TURN_SECONDS)  # Its values are being drawn.

    def _started(self, trial: Trial) -> Job:
        suggested = self._job(trial.params)
        self._at_work[suggested.name] = work = _AtWork(trial)
        self._give_sign(work)
        self._say(f"trial {trial.number}: {suggested.name}: started")
        return suggested

    def _job(self, values: Mapping[str, Any]) -> Job:
        return job(self._overrides, {key: _text(values[key]) for key in self._space})

    def _give_sign(self, work: _AtWork) -> None:
        work.trial.set_user_attr(OWNER, asdict(Owner.this_process()))
        work.next_sign = time.monotonic() + _SIGN_SECONDS

    def _take_over(self) -> None:
        """Queue the trials again whose processes have died."""
        own = {work.trial.number for work in self._at_work.values()}
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in own and _is_gone(trial):
                self._say(f"trial {trial.number}: its process has ended: queued again")
                self._queue_again(trial)

    def _queue_again(self, trial: Trial | FrozenTrial) -> None:
        """Let the next trial take the parameters of one that was not finished."""
        values = trial.user_attrs.get(VALUES)
        if values is None and OWNER in trial.user_attrs:
            values = trial.params
        if values is not None:  # First, so that they are not lost if this process is killed now.
            self._study.enqueue_trial(values, user_attrs={AGAIN: trial.number, VALUES: values})
        self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def ended(self, job: Job, code: int) -> None:
        """Tell Optuna the result of a job; one that was stopped is queued again, and so is one that
        failed, for a while.

        Raises:
            ConfigError: the job has no metric with the name of the objective.
        """
        work, metrics = self._at_work.pop(job.name), self._read(job.name)
        trial, found = work.trial, metrics.get(self._objective)
        if self._study.get_trials(deepcopy=False)[trial.number].state.is_finished():
            self._say(f"trial {trial.number}: {job.name}: another process has taken it over")
            return
        self._refusals[job.name] += code == EXIT_LOCKED
        self._failures[job.name] += code not in (0, *_SAME_AGAIN)
        if code == 0:
            self._require_objective(metrics, trial)
        last = found[max(found)] if found else math.nan
        if code == 0 and math.isfinite(last):
            self._note_settings()
            self._study.tell(trial, last, skip_if_finished=True)
            how = f"{last:.4g}"
        elif work.is_pruned:
            self._study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            how = "pruned"
        elif code == EXIT_PREEMPTED:
            self._queue_again(trial)
            how = "stopped"
        elif code == EXIT_LOCKED and self._refusals[job.name] < _MOST_REFUSALS:
            self._queue_again(trial)  # A killed search's job, which is saving.
            how = "another process is still in its folder: queued again"
        elif code not in (0, *_SAME_AGAIN) and self._failures[job.name] < _MOST_FAILURES:
            self._queue_again(trial)  # A full disk or a lost node may be another one next time.
            how = f"{'killed' if code > 128 else 'failed'} (exit code {code}): queued again"
        else:
            trial.set_user_attr(EXIT_CODE, code)
            self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            why = f"with exit code {code}" if code else f"for it ends without {self._objective}"
            how = f"failed {why}, see logs/{job.name}.log"
        self._say(f"trial {trial.number}: {job.name}: {how}")

    def is_hopeless(self, job: Job) -> bool:
        """Report the evaluations of a job at work, and give a sign of life.

        Returns:
            whether the pruner gives it up, or another process has taken it over.
        Raises:
            ConfigError: as `ended`.
        """
        work, now = self._at_work[job.name], time.monotonic()
        try:
            if now >= work.next_sign:
                self._give_sign(work)
            if now >= work.next_look and not (self._is_measured and self._config.pruner == "none"):
                self._report(work, self._read(job.name))
                # A long file of metrics takes long to read.
                work.next_look = now + (time.monotonic() - now) / _LOOK_SHARE
        except UpdateFinishedTrialError:
            return True
        return work.is_pruned

    def _report(self, work: _AtWork, metrics: Mapping[str, Mapping[int, float]]) -> None:
        group = self._objective.partition("/")[0]
        if any(name.startswith(f"{group}/") for name in metrics):
            self._require_objective(metrics, work.trial)
        if self._config.pruner == "none":
            return
        found = metrics.get(self._objective, {})
        for number, step in enumerate(sorted(found), start=1):
            if number > work.reported:
                # Pruners count in evaluations: the steps between them may be searched, too.
                self._note_settings()
                work.trial.report(found[step], number)
                work.reported, work.is_pruned = number, work.trial.should_prune()
                if work.is_pruned:
                    return

    def _require_objective(self, metrics: Mapping[str, object], trial: Trial) -> None:
        known = self._objective in metrics or SETTINGS in self._study.user_attrs
        self._is_measured = self._is_measured or known
        if known or not metrics:
            return
        self._queue_again(trial)
        raise ConfigError(
            f"hydra.sweeper.objective={shown(self._objective)}: there is no such metric; measured: "
            f"{', '.join(metrics)}{did_you_mean(self._objective, metrics)}"
        )

    def _note_settings(self) -> None:
        if SETTINGS not in self._study.user_attrs:
            self._study.set_user_attr(SETTINGS, self._settings)


def _counts(trial: FrozenTrial) -> bool:
    """Return whether a trial is one of those asked for; not so a repetition, or one that was
    stopped, which another trial goes on with.
    """
    return trial.state != TrialState.FAIL or EXIT_CODE in trial.user_attrs


def _state(trial: FrozenTrial) -> State | None:
    if trial.state == TrialState.FAIL:
        return "failed" if EXIT_CODE in trial.user_attrs else None
    states: dict[TrialState, State] = {
        TrialState.COMPLETE: "finished",
        TrialState.PRUNED: "pruned",
        TrialState.RUNNING: "running",
        TrialState.WAITING: "stopped",
    }
    return states[trial.state]


def _is_gone(trial: FrozenTrial) -> bool:
    """Return whether the process of a trial that is at work has died. Certain on this machine; of
    another one it is believed when it has been silent for long.
    """
    signed, here = trial.user_attrs.get(OWNER), Owner.this_process()
    if signed is None:  # It is just about to write that, or died before.
        return datetime.now() - (trial.datetime_start or datetime.min) > _BEGINNING
    owner = Owner(**signed)
    if (owner.host, owner.boot) == (here.host, here.boot):
        return owner.is_gone
    return datetime.now().astimezone() - datetime.fromisoformat(owner.since) > _SILENCE


def _sampler(config: SamplerConfig, kind: Sampler, drawn: int) -> optuna.samplers.BaseSampler:
    """Return a sampler for the next trial of a study that has `drawn` ones: what it draws depends
    on these alone, not on how often the search was started.
    """
    if kind == "qmc":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return optuna.samplers.QMCSampler(seed=config.seed)
    seed = None
    if config.seed is not None:
        seed = int(SeedSequence((config.seed, drawn)).generate_state(1)[0])
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    learning = optuna.samplers.GPSampler if kind == "gp" else optuna.samplers.TPESampler
    return learning(seed=seed, n_startup_trials=config.n_startup_trials)


def _pruner(config: OptunaConfig) -> optuna.pruners.BasePruner:
    kinds: dict[Literal["none", "median", "hyperband"], optuna.pruners.BasePruner] = {
        "none": optuna.pruners.NopPruner(),
        "median": optuna.pruners.MedianPruner(),
        "hyperband": optuna.pruners.HyperbandPruner(),
    }
    return kinds[config.pruner]


def _size(space: Mapping[str, BaseDistribution]) -> float:
    """Return how many values there are to try."""
    size = 1.0
    for found in space.values():
        if isinstance(found, CategoricalDistribution):
            size *= len(found.choices)
        elif isinstance(found, IntDistribution):
            size *= (found.high - found.low) // found.step + 1
        elif not found.single():
            return math.inf
    return size


def _ends(found: BaseDistribution) -> list[str]:
    if isinstance(found, CategoricalDistribution):
        return [str(choice) for choice in found.choices]
    assert isinstance(found, IntDistribution | FloatDistribution)
    return [_text(found.low), _text(found.high)]


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
