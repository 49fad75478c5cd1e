"""Run a sweep: `pretrain.py -m ...` and `evaluate.py -m ...`.

Every job is validated before the first one starts, and is a process of its own. The same command
started again goes on: finished jobs are read, not run; the others resume where they stood.
"""

import math
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from apps.sweeps.config import OptunaConfig
from apps.sweeps.folder import JobRecord, Machine, SweepFolder
from apps.sweeps.grid import Grid
from apps.sweeps.jobs import Job, digest
from apps.sweeps.machine import build_launcher, decide_machine, job_command, machine_overrides
from apps.sweeps.plan import Plan, Program, jobs_to_validate
from apps.sweeps.table import Row, write_table
from apps.sweeps.work import Source, run_jobs
from evaluation.headline import headline_of
from runtime.errors import ConfigError, LockedError, Preempted
from runtime.process import launched
from runtime.progress import bar
from runtime.schema import MachineSettings
from runtime.text import shown
from training.checkpoint.lock import run_lock

_TURN_SECONDS = 60.0
_OWN_KEYS = ("checkpoint_path", "output")


def run_sweep(program: Program, plan: Plan, say: Callable[[str], None]) -> int:
    """Run all jobs, write the table and print it.

    Returns:
        0, or the exit code of the jobs that failed, 1 where these differ.
    Raises:
        ConfigError: a job's settings are wrong; nothing has been started.
        LockedError: another process is at work on this sweep.
        Preempted: stopped by a signal, and every job at work has saved; or a job was.
    """
    if launched():
        raise ConfigError(
            "-m starts processes of its own: run it without torchrun; hydra.launcher.ranks=N gives "
            "each job N ranks"
        )
    jobs = jobs_to_validate(plan)
    settings = program.load(plan.flags, [job.overrides for job in jobs], plan.launcher.ranks)
    inputs = [program.require(config) for config in settings]
    sweep = _Sweep(program, plan, jobs, settings, inputs, say)
    if isinstance(plan.sweeper, OptunaConfig):
        _require_sound(plan.sweeper, sweep.objective, settings[0], say)
    say(f"sweep folder: {sweep.folder}")
    for override in plan.overrides:
        if override.key_or_group in _OWN_KEYS:
            say(f"{shown(override.input_line)} is not used: every job has its place in that folder")
    _create(sweep.folder)
    return sweep.search(plan.sweeper) if isinstance(plan.sweeper, OptunaConfig) else sweep.grid()


@dataclass(frozen=True)
class _Sweep:
    """A sweep whose settings have been validated.

    Attributes:
        settings: of each of `jobs`.
        inputs: what each job reads, such as a checkpoint.
    """

    program: Program
    plan: Plan
    jobs: Sequence[Job]
    settings: Sequence[MachineSettings]
    inputs: Sequence[str]
    say: Callable[[str], None]

    @cached_property
    def digests(self) -> list[str]:
        """Stands for the settings of each job."""
        return [digest(config.model_dump(mode="json")) for config in self.settings]

    @cached_property
    def identity(self) -> str:
        """Stands for all settings and all values, in any order."""
        values = [sorted(job.values.items()) for job in self.jobs]
        return digest(sorted(zip(self.digests, values, strict=True)))

    @cached_property
    def folder(self) -> Path:
        """The sweep's folder."""
        return self.plan.parent / (_sweep_name(self.settings) or self.identity)

    @property
    def objective(self) -> str:
        """The metric that orders the table."""
        return self.plan.sweeper.objective or self.program.objective

    @property
    def minimize(self) -> bool:
        return self.plan.sweeper.direction == "minimize"

    def grid(self) -> int:
        """Run the jobs that have not finished; returns the exit code."""
        with run_lock(self.folder, instead="another sweep_name"):
            kept = self._kept()
            asked = zip(self.jobs, self.digests, self.inputs, strict=True)
            known = {job.name: digest(settings, inputs) for job, settings, inputs in asked}
            source = Grid(self.jobs, known, kept, self._has_result, self._score, self.say)
            stopped = self._run(source, kept)
            self._report(source.jobs)
        # Under one sweep_name there may be jobs of other commands, too.
        ends = [source.jobs[job.name] for job in self.jobs]
        failed = any(record.state == "failed" for record in ends)
        stopped = stopped or (not failed and any(record.state == "stopped" for record in ends))
        return self._outcome(ends, stopped=stopped)

    def search(self, config: OptunaConfig) -> int:
        """Run trials until there are enough; returns the exit code.

        The study is the record of the trials, so that other processes may join: the folder is
        locked only while its other files are written.
        """
        from apps.sweeps.search import Search, open_study

        with _turn(self.folder):
            kept = self._kept()
        common = digest(self.identity, self.objective, self.minimize)
        study = open_study(config, self.folder, common)
        source = Search(
            config, self.plan.overrides, study, common, self.objective, self._read, self.say
        )
        stopped = self._run(source, kept)
        with _turn(self.folder):
            records = source.jobs
            self._report(records)
        return self._outcome(list(records.values()), stopped=stopped)

    def _kept(self) -> SweepFolder:
        decide = partial(decide_machine, self.settings[0], self.plan.launcher)
        return SweepFolder(self.folder, sys.argv, decide)

    def _run(self, source: Source, kept: SweepFolder) -> bool:
        launcher = build_launcher(self.plan.launcher, self._command(kept.machine), kept)
        with bar(None, "sweep", "jobs", total=source.num_left) as shown:
            return run_jobs(source, launcher, shown.update)

    def _command(self, machine: Machine) -> Callable[[Job], list[str]]:
        start = job_command(self.program.script, self.plan.launcher.ranks)
        before = [*start, *self.plan.flags, *machine_overrides(machine, self.settings[0])]
        return lambda job: [*before, *job.overrides, self.program.place(self.folder, job.name)]

    def _has_result(self, name: str) -> bool:
        return self.program.result(self.folder, name).exists()

    def _read(self, name: str) -> Mapping[str, Mapping[int, float]]:
        return self.program.read(self.folder, name, self.objective)

    def _score(self, name: str) -> str:
        metrics = self._read(name)
        objective = self._ordered_by(metrics)
        found = metrics.get(objective)
        return f", {objective} {found[max(found)]:.4g}" if found else ""

    def _ordered_by(self, measured: Container[str]) -> str:
        """Return the metric that orders the table: where none is asked for, the headline."""
        if self.plan.sweeper.objective or isinstance(self.plan.sweeper, OptunaConfig):
            return self.objective
        return headline_of(measured, "eval/") or headline_of(measured) or self.objective

    def _report(self, records: Mapping[str, JobRecord]) -> None:
        rows = []
        for name, record in records.items():
            metrics = {} if record.result is None else {self.objective: record.result}
            last = {key: found[max(found)] for key, found in self._read(name).items() if found}
            metrics |= {key: value for key, value in last.items() if math.isfinite(value)}
            rows.append(Row(name, record.values, record.state, metrics))
        objective = self._ordered_by({key for row in rows for key in row.metrics})
        self.say(write_table(self.folder, rows, objective, minimize=self.minimize))
        self.say(f"written: {self.folder / 'results.json'}, {self.folder / 'results.csv'}")

    def _outcome(self, records: Sequence[JobRecord], *, stopped: bool) -> int:
        if stopped:
            raise Preempted(f"{self.folder}: stopped; the same command goes on")
        codes = {record.exit_code or 1 for record in records if record.state == "failed"}
        return codes.pop() if len(codes) == 1 else int(bool(codes))


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, when the other processes of a search have left it."""
    end = time.monotonic() + _TURN_SECONDS
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(run_lock(folder))
                break
            except LockedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield


def _require_sound(
    search: OptunaConfig, objective: str, settings: MachineSettings, say: Callable[[str], None]
) -> None:
    """Raise ConfigError for a pruner that would never see an evaluation."""
    pruner = f"hydra.sweeper.pruner={search.pruner}"
    if search.pruner != "none" and getattr(settings, "eval_interval", 1) is None:
        raise ConfigError(f"{pruner}: needs evaluations during training: set eval_interval")
    if search.pruner != "none" and not objective.startswith("eval/"):
        raise ConfigError(f"{pruner}: {shown(objective)} is not a metric of evaluations (eval/...)")
    if (search.n_jobs or 1) > 1:
        say(
            f"hydra.sweeper.n_jobs={search.n_jobs}: the launcher says how many trials run at a "
            f"time: hydra/launcher=pool hydra.launcher.max_jobs={search.n_jobs}"
        )


def _sweep_name(settings: Sequence[MachineSettings]) -> str | None:
    names = {config.sweep_name for config in settings}
    if len(names) > 1:
        raise ConfigError("sweep_name: is the name of the whole sweep, and cannot be swept")
    return names.pop()


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"hydra.sweep.dir: {folder} cannot be created: {reason}") from None
