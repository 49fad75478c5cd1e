"""Run a sweep: `pretrain.py -m ...` and `evaluate.py -m ...`.

All jobs are validated before the first one starts; each is a process of its own. The same command
continues a stopped sweep: finished jobs do not run again, the others resume from their checkpoints.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from apps.sweeps.config import OptunaConfig, SlurmConfig
from apps.sweeps.folder import GridJobs, JobRecord, Machine, SweepRecord, read_record, write_record
from apps.sweeps.jobs import Job, digest, expand, job, swept
from apps.sweeps.machine import (
    JobProcess,
    LocalLauncher,
    decide_machine,
    job_command,
    machine_overrides,
    threads_and_gpus,
)
from apps.sweeps.programs import EVALUATION, TRAINING, Plan, Program, plan_of
from apps.sweeps.table import Row, write_table
from evaluation.headline import headline_of
from runtime.errors import EXIT_LOCKED, ConfigError, Preempted, disk_errors
from runtime.process import launched
from runtime.progress import bar
from runtime.schema import MachineSettings
from runtime.text import shown
from training.checkpoint.lock import run_lock
from training.config.composition import load_configs
from training.stop_signals import StopSignals

if TYPE_CHECKING:
    from apps.sweeps.slurm import SlurmLauncher, SlurmProcess
    from apps.sweeps.study import StudyJobs

_LOCKED_SECONDS = 60.0


def sweep_trainings(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Run a command line of `pretrain.py -m`; see `run_sweep`."""
    return run_sweep(TRAINING, plan_of(TRAINING, arguments), say)


def sweep_evaluations(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Run a command line of `evaluate.py -m`; see `run_sweep`."""
    return run_sweep(EVALUATION, plan_of(EVALUATION, arguments), say)


def run_sweep(program: Program, plan: Plan, say: Callable[[str], None]) -> int:
    """Run all jobs, write the table and print it.

    Returns:
        0, or the exit code of the failed jobs; 1 if their codes differ.
    Raises:
        ConfigError: the settings of a job are wrong; no job has started.
        LockedError: another process runs this sweep.
        Preempted: a signal stopped the sweep or one of its jobs; all jobs have saved.
    """
    if launched():
        raise ConfigError(
            "-m starts its own processes: run it without torchrun, and set hydra.launcher.ranks=N "
            "to give each job N ranks"
        )
    jobs = _jobs_to_validate(plan)
    lines = [job.overrides for job in jobs]
    settings = load_configs(program.schema, program.config_name, plan.flags, lines)
    is_study = isinstance(plan.sweeper, OptunaConfig)
    if is_study and any(getattr(config, "max_time", None) for config in settings):
        raise ConfigError("max_time: Optuna would start a stopped trial again; set epochs= instead")
    inputs = [program.require(config, plan.launcher.ranks) for config in settings]
    sweep = _Sweep(program, plan, jobs, settings, inputs, say)
    say(f"sweep folder: {sweep.folder}")
    for override in plan.overrides:
        if override.key_or_group == program.key:
            say(f"{shown(override.input_line)} is ignored: every job has a place in that folder")
    with disk_errors(sweep.folder, ConfigError):
        sweep.folder.mkdir(parents=True, exist_ok=True)
    with run_lock(sweep.folder, instead="another sweep_name"):
        return sweep.run()


def _jobs_to_validate(plan: Plan) -> list[Job]:
    """Return all jobs of a grid, or for Optuna the jobs at the ends of the allowed values."""
    if not isinstance(plan.sweeper, OptunaConfig):
        return expand(plan.overrides)
    try:
        from apps.sweeps.study import corners
    except ImportError:
        raise ConfigError("hydra/sweeper=optuna needs optuna: pip install -e '.[search]'") from None

    if not swept(plan.overrides):
        raise ConfigError(
            "hydra/sweeper=optuna needs a swept setting, for example lr=interval(1e-4,1e-2)"
        )
    return [job(plan.overrides, values) for values in corners(plan.overrides)]


@dataclass(frozen=True)
class _Sweep:
    """A sweep with validated settings.

    Attributes:
        settings: the settings of each job.
        inputs: text that identifies the input of each job, for example its checkpoint.
    """

    program: Program
    plan: Plan
    jobs: Sequence[Job]
    settings: Sequence[MachineSettings]
    inputs: Sequence[str]
    say: Callable[[str], None]

    @cached_property
    def digests(self) -> list[str]:
        return [digest(config.model_dump(mode="json", by_alias=True)) for config in self.settings]

    @cached_property
    def identity(self) -> str:
        """A digest of all settings and values, whatever their order."""
        values = [sorted(job.values.items()) for job in self.jobs]
        return digest(sorted(zip(self.digests, values, strict=True)))

    @cached_property
    def folder(self) -> Path:
        names = {config.sweep_name for config in self.settings}
        if len(names) > 1:
            raise ConfigError("sweep_name names the whole sweep: give it one value")
        return self.plan.parent / (names.pop() or self.identity)

    @property
    def objective(self) -> str:
        """The metric that orders the table."""
        return self.plan.sweeper.objective or self.program.objective

    @property
    def minimize(self) -> bool:
        return self.plan.sweeper.direction == "minimize"

    def run(self) -> int:
        """Run the unfinished jobs and report all of them; return the exit code."""
        record = read_record(self.folder)
        if record is None:
            decided = decide_machine(self.settings[0], self.plan.launcher)
            record = SweepRecord(command=sys.argv, machine=decided)
        launcher = self._launcher(record.machine)  # First: a wrong device must not be recorded.
        write_record(self.folder, record)
        source = self._source(record)
        with bar(None, "sweep", "jobs", total=source.num_left) as shown:
            stopped = run_jobs(source, launcher, shown.update)
        self._report(source.jobs)
        ends = source.ends
        codes = {record.exit_code or 1 for record in ends if record.state == "failed"}
        if stopped or (not codes and any(record.state == "stopped" for record in ends)):
            raise Preempted(f"{self.folder}: stopped; the same command continues")
        return codes.pop() if len(codes) == 1 else int(bool(codes))

    def _source(self, record: SweepRecord) -> "GridJobs | StudyJobs":
        if isinstance(self.plan.sweeper, OptunaConfig):
            from apps.sweeps.study import StudyJobs

            common = digest(self.identity, self.objective, self.minimize)
            study = self.plan.sweeper, self.plan.overrides, self.folder, common
            return StudyJobs(*study, self.objective, self._read, self.say)
        inputs = zip(self.jobs, self.digests, self.inputs, strict=True)
        jobs = [(job, digest(settings, input_id)) for job, settings, input_id in inputs]
        result = partial(self.program.result, self.folder)
        return GridJobs(jobs, self.folder, record, result, self._score, self.say)

    def _launcher(self, machine: Machine) -> "LocalLauncher | SlurmLauncher":
        """Return the launcher; ConfigError if submitit or GPUs are missing, or if the user asks for
        another device than the one that the sweep began with.
        """
        asked = self.settings[0].device
        if asked not in ("auto", machine.device):
            began = f"{self.folder}: began with device={machine.device}"
            raise ConfigError(f"{began}; choose another sweep_name for device={asked}")
        config, command = self.plan.launcher, self._command(machine)
        environment = {"WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP", self.folder.name)}
        if isinstance(config, SlurmConfig):
            try:
                from apps.sweeps.slurm import SlurmLauncher
            except ImportError:
                needed = "hydra/launcher=slurm needs submitit: pip install -e '.[slurm]'"
                raise ConfigError(needed) from None
            return SlurmLauncher(config, command, self.folder, environment)
        on_gpus = machine.device == "cuda"
        gpus = threads_and_gpus()[1] if on_gpus else []
        if on_gpus and not gpus:
            way = f"choose another sweep_name than {self.folder.name}"
            way = "use device=cpu" if asked == "cuda" else way
            raise ConfigError(f"device=cuda: this machine has no GPU; {way}")
        if on_gpus and len(gpus) < config.ranks:
            here = f"this machine has {len(gpus)} GPUs, and each rank needs one"
            raise ConfigError(f"hydra.launcher.ranks={config.ranks}: {here}")
        return LocalLauncher(config, command, self.folder, gpus, environment)

    def _command(self, machine: Machine) -> Callable[[Job], list[str]]:
        start = job_command(self.program.script, self.plan.launcher.ranks)
        before = [*start, *self.plan.flags, *machine_overrides(machine, self.settings[0])]
        return lambda job: [*before, *job.overrides, self.program.placed(self.folder, job.name)]

    def _read(self, name: str) -> Mapping[str, Mapping[int, float]]:
        return self.program.read(self.folder, name, self.objective)

    def _score(self, name: str) -> str:
        metrics = self._read(name)
        objective = self._ordered_by(metrics)
        found = metrics.get(objective)
        return f", {objective} {found[max(found)]:.4g}" if found else ""

    def _ordered_by(self, measured: Container[str]) -> str:
        """Return the metric that orders the table: the objective asked for, else the headline."""
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


def run_jobs(
    source: "GridJobs | StudyJobs",
    launcher: "LocalLauncher | SlurmLauncher",
    advance: Callable[[int], object],
) -> bool:
    """Run all jobs of `source`; return when all of them have ended.

    On SIGTERM or Ctrl-C all jobs are asked to save and end. A job whose folder is locked is started
    again for up to a minute, because a job of a killed sweep may still be saving.

    Args:
        advance: called with the number of jobs that have ended since the last call.
    Returns:
        whether a signal stopped the sweep.
    """
    at_work: dict[str, tuple[Job, JobProcess | SlurmProcess]] = {}
    retry_until: dict[str, float] = {}
    try:
        with StopSignals() as stop:
            while True:
                while not stop.requested and len(at_work) < launcher.max_jobs:
                    if (job := source.next()) is None:
                        break
                    at_work[job.name] = job, launcher.start(job)
                    retry_until[job.name] = time.monotonic() + _LOCKED_SECONDS
                if not at_work:
                    return stop.requested
                time.sleep(launcher.poll_seconds)
                for name, (job, process) in list(at_work.items()):
                    code, may_wait = process.poll(), time.monotonic() < retry_until[name]
                    if code is None:
                        if stop.requested:
                            process.stop()
                    elif code == EXIT_LOCKED and may_wait and not stop.requested:
                        at_work[name] = job, launcher.start(job)
                    else:
                        del at_work[name]
                        source.ended(job, code)
                        advance(1)
    finally:
        for _, process in at_work.values():  # After a second Ctrl-C, or an error of ours.
            process.stop()
