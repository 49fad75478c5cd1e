"""Search with Optuna: it suggests the values of the next jobs from the results of those before.

The study lies on disk, as a journal that several machines may share. A trial whose process has
died is queued again with its parameters; its job goes on from its last checkpoint.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import optuna
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, Trial, TrialState

from runtime.errors import EXIT_PREEMPTED, ConfigError
from runtime.text import shown
from sweeps.config import OptunaConfig
from sweeps.folder import SweepFolder
from sweeps.jobs import Job, job, swept
from training.checkpoint.lock import Owner

OWNER = "owner"
"""Attribute of a trial: the process that runs its job."""


def distribution(override: Override) -> BaseDistribution:
    """Return what a swept override allows: `choice`, `range` or `interval`, on a log scale with
    `tag(log, ...)`.

    Raises:
        ConfigError: Optuna has no such distribution.
    """
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            log = "log" in value.tags
            if isinstance(value.start, int) and isinstance(value.end, int):
                return IntDistribution(value.start, value.end, log=log)
            return FloatDistribution(float(value.start), float(value.end), log=log)
        if isinstance(value, RangeSweep) and not value.shuffle:
            numbers = list(value.range())
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


def open_study(config: OptunaConfig, folder: Path) -> optuna.Study:
    """Open the study of a search, or create it: a journal in `folder`, or where `config` says.

    Raises:
        ConfigError: the storage cannot be used.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = config.storage or str(folder / "study.journal")
    storage: Any = place
    if "://" not in place:
        journal = optuna.storages.journal.JournalFileBackend(place)
        storage = optuna.storages.JournalStorage(journal)
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=config.study_name or folder.name,
            direction=config.direction,
            pruner=_pruner(config),
            load_if_exists=True,
        )
        study.sampler = _sampler(config, drawn=len(study.get_trials(deepcopy=False)))
        return study
    except Exception as error:
        raise ConfigError(f"hydra.sweeper.storage={shown(place)}: {error}") from None


class Search:
    """Gives out jobs as Optuna suggests them, and tells it their results.

    Args:
        config: how to search, and how long. Trials count whoever ran them.
        overrides: of the task, the searched ones included.
        folder: takes note of the jobs.
        read: returns the values of the objective of a job so far, by step.
        say: prints a line.
    """

    def __init__(
        self,
        config: OptunaConfig,
        overrides: Sequence[Override],
        folder: SweepFolder,
        read: Callable[[str], Mapping[int, float]],
        say: Callable[[str], None],
    ) -> None:
        self._num_trials, self._overrides, self._folder = config.n_trials, overrides, folder
        self._read, self._say = read, say
        self._space = {o.key_or_group: distribution(o) for o in swept(overrides)}
        self._study = open_study(config, folder.path)
        self._trials: dict[str, Trial] = {}
        self._reported: dict[str, set[int]] = defaultdict(set)
        self._pruned: set[str] = set()
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            owner = trial.user_attrs.get(OWNER)
            if owner is None or Owner(**json.loads(owner)).is_gone:
                self._queue_again(trial)

    def _queue_again(self, trial: Trial | FrozenTrial) -> None:
        """Let the next trial take the parameters of one that was not finished."""
        self._study.tell(trial.number, state=TrialState.FAIL)
        self._study.enqueue_trial(trial.params)

    def next(self) -> Job | None:
        """Return the job of the next trial, or None when as many as asked for have begun."""
        counted = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
        begun = self._study.get_trials(deepcopy=False, states=counted)
        if len(begun) + self._failed() >= self._num_trials:
            return None
        trial = self._study.ask(self._space)
        trial.set_user_attr(OWNER, json.dumps(asdict(Owner.this_process())))
        values = {key: _text(value) for key, value in trial.params.items()}
        suggested = job(self._overrides, values)
        if suggested.name in self._trials:  # Once more what is at work: two would share a folder.
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        self._trials[suggested.name] = trial
        self._say(f"trial {trial.number}: {suggested.name}: started")
        return suggested

    def _failed(self) -> int:
        """Return how many jobs ended with an error: those are not tried again."""
        return sum(record.state == "failed" for record in self._folder.jobs.values())

    def ended(self, job: Job, code: int) -> None:
        """Tell Optuna the result of a job; one that was stopped is queued again."""
        trial, found = self._trials.pop(job.name), self._read(job.name)
        state, how = "failed", f"failed with exit code {code}"
        if job.name in self._pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
            state = how = "pruned"
        elif code == EXIT_PREEMPTED:
            self._queue_again(trial)
            state = how = "stopped"
        elif code == 0 and found:
            self._study.tell(trial, found[max(found)])
            state, how = "finished", f"{found[max(found)]:.4f}"
        else:
            self._study.tell(trial, state=TrialState.FAIL)
        self._folder.note(job, state, code)
        self._say(f"trial {trial.number}: {job.name}: {how}")

    def is_hopeless(self, job: Job) -> bool:
        """Report the evaluations of a job at work; return whether the pruner gives it up."""
        trial, found = self._trials[job.name], self._read(job.name)
        for step in sorted(found.keys() - self._reported[job.name]):
            trial.report(found[step], step)
            self._reported[job.name].add(step)
            if trial.should_prune():
                self._pruned.add(job.name)
        return job.name in self._pruned


def _sampler(config: OptunaConfig, drawn: int) -> optuna.samplers.BaseSampler:
    # A study that goes on would otherwise draw the same values once more.
    seed = None if config.sampler.seed is None else config.sampler.seed + drawn
    kinds: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
        "qmc": optuna.samplers.QMCSampler,
    }
    return kinds[config.sampler.name](seed=seed)


def _pruner(config: OptunaConfig) -> optuna.pruners.BasePruner:
    kinds: dict[Literal["none", "median", "hyperband"], optuna.pruners.BasePruner] = {
        "none": optuna.pruners.NopPruner(),
        "median": optuna.pruners.MedianPruner(),
        "hyperband": optuna.pruners.HyperbandPruner(),
    }
    return kinds[config.pruner]


def _ends(found: BaseDistribution) -> list[str]:
    if isinstance(found, CategoricalDistribution):
        return [str(choice) for choice in found.choices]
    assert isinstance(found, IntDistribution | FloatDistribution)
    return [_text(found.low), _text(found.high)]


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
