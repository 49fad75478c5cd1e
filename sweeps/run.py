"""Run a sweep: `pretrain.py -m ...` and `evaluate.py -m ...`.

Every job is validated before the first one starts, and is a process of its own. The same command
started again goes on: finished jobs are read, not run; the others resume where they stood.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from runtime.errors import ConfigError, Preempted
from runtime.process import launched
from runtime.schema import MachineSettings, Schema
from runtime.text import shown
from sweeps.config import (
    LAUNCHERS,
    SWEEPERS,
    LauncherConfig,
    OptunaConfig,
    PoolConfig,
    SlurmConfig,
    SweeperConfig,
)
from sweeps.folder import Machine, SweepFolder
from sweeps.grid import Grid
from sweeps.jobs import Job, digest, expand, job, swept, without_overruled
from sweeps.local import LocalLauncher
from sweeps.table import Row, write_table
from sweeps.work import Launcher, Source, run_jobs
from training.checkpoint.lock import run_lock
from training.config.composition import hydra_settings, parse_arguments, parse_overrides, source_of

_LAUNCH = Path(__file__).resolve().parents[1] / "scripts" / "launch.py"
_OWN_KEYS = ("checkpoint_path", "output")


class Program(NamedTuple):
    """An entry point that can be swept.

    Attributes:
        script: its file.
        load: composes and validates the settings of jobs, given the flags, the overrides of each,
            and the number of ranks; raises ConfigError.
        place: returns the override that puts the job of a name into the sweep's folder.
        result: returns a file that a finished job has left there.
        read: returns the metrics of that job so far, each by step.
        objective: the metric that orders the table.
    """

    script: Path
    load: Callable[[Sequence[str], Sequence[Sequence[str]], int], Sequence[MachineSettings]]
    place: Callable[[Path, str], str]
    result: Callable[[Path, str], Path]
    read: Callable[[Path, str], Mapping[str, Mapping[int, float]]]
    objective: str


class Plan(NamedTuple):
    """What the command line asks for.

    Attributes:
        overrides: of the task, swept ones included.
        launcher: who runs the jobs.
        sweeper: which jobs there are.
        parent: the folder in which sweeps have theirs.
        choices: returns the choices of a group of the configuration.
        flags: of the command line, for every job.
    """

    overrides: Sequence[Override]
    launcher: LauncherConfig
    sweeper: SweeperConfig
    parent: Path
    choices: Callable[[str], list[str]]
    flags: Sequence[str] = ()


def plan_of(schema: type[Schema], config_name: str, arguments: Sequence[str]) -> Plan:
    """Read a command line with `-m`.

    Raises:
        ConfigError: a flag, launcher or sweeper is wrong.
    """
    args = parse_arguments(arguments)
    source = source_of(config_name, args)
    overrides = parse_overrides(args.overrides)
    hydra = hydra_settings(schema, source, overrides)
    launcher = _chosen("launcher", LAUNCHERS, hydra["launcher"])
    sweeper = _chosen("sweeper", SWEEPERS, hydra["sweeper"])
    task = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    params = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    given = {override.key_or_group for override in task}
    task = [o for o in parse_overrides(params) if o.key_or_group not in given] + task
    task = without_overruled(task)
    flags = {
        "--config-path": args.config_path and source.folder,
        "--config-dir": source.extra,
        "--config-name": args.config_name,
    }
    given_flags = [str(part) for flag in flags.items() if flag[1] for part in flag]
    return Plan(task, launcher, sweeper, Path(hydra["sweep_dir"]), source.choices, given_flags)


def _chosen(what: str, schemas: Mapping[str, type[Any]], node: Mapping[str, Any]) -> Any:
    schema = schemas.get(node.get("name", ""))
    if schema is None:
        raise ConfigError(f"hydra/{what}: there is no such {what}; accepted: {', '.join(schemas)}")
    try:
        return schema.model_validate(node)
    except ValidationError as error:
        fault = error.errors()[0]
        path = ".".join(map(str, ("hydra", what, *fault["loc"])))
        raise ConfigError(f"{path}={shown(fault['input'])}: {fault['msg'].lower()}") from None


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
    jobs = _jobs_to_validate(plan)
    overrides = [job.overrides for job in jobs]
    settings = program.load(plan.flags, overrides, plan.launcher.ranks)
    digests = [digest(config.model_dump(mode="json")) for config in settings]
    values = [sorted(job.values.items()) for job in jobs]
    name = _sweep_name(settings) or digest(sorted(zip(digests, values, strict=True)))
    folder = plan.parent / name
    say(f"sweep folder: {folder}")
    for override in plan.overrides:
        if override.key_or_group in _OWN_KEYS:
            say(f"{shown(override.input_line)} is not used: every job has its place in that folder")
    _create(folder)
    objective, minimize = plan.sweeper.objective, plan.sweeper.direction == "minimize"
    objective = objective or program.objective
    with run_lock(folder, instead="another sweep_name"):
        recorded = SweepFolder.recorded(folder)
        machine = recorded.machine if recorded else decide_machine(settings[0], plan.launcher)
        kept = SweepFolder(folder, sys.argv, machine)

        def command(job: Job) -> list[str]:
            start = job_command(program.script, plan.launcher.ranks)
            decided = machine_overrides(machine, settings[0])
            return [*start, *plan.flags, *decided, *job.overrides, program.place(folder, job.name)]

        def by_step(name: str) -> Mapping[int, float]:
            return program.read(folder, name).get(objective, {})

        def score(name: str) -> str:
            found = by_step(name)
            return f", {objective} {found[max(found)]:.4g}" if found else ""

        if isinstance(plan.sweeper, OptunaConfig):
            from sweeps.search import Search

            source: Source = Search(plan.sweeper, plan.overrides, kept, by_step, say)
        else:
            known = {job.name: digest for job, digest in zip(jobs, digests, strict=True)}
            source = Grid(
                jobs, known, kept, lambda name: program.result(folder, name).exists(), score, say
            )
        stopped = run_jobs(source, build_launcher(plan.launcher, command, kept))
        rows = []
        for name, record in kept.jobs.items():
            steps = program.read(folder, name)
            metrics = {key: found[max(found)] for key, found in steps.items() if found}
            rows.append(Row(name, record.values, record.state, metrics))
        say(write_table(folder, rows, objective, minimize=minimize))
        say(f"written: {folder / 'results.json'}, {folder / 'results.csv'}")
    asked = kept.jobs if isinstance(plan.sweeper, OptunaConfig) else {job.name for job in jobs}
    ends = [record for name, record in kept.jobs.items() if name in asked]
    codes = {record.exit_code or 1 for record in ends if record.state == "failed"}
    if stopped or (not codes and any(record.state == "stopped" for record in ends)):
        raise Preempted(f"{folder}: stopped; the same command goes on")
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _jobs_to_validate(plan: Plan) -> list[Job]:
    """Return all jobs of a grid; of a search those at the ends of what it may try."""
    if not isinstance(plan.sweeper, OptunaConfig):
        return expand(plan.overrides, plan.choices)
    from sweeps.search import corners

    if not swept(plan.overrides):
        raise ConfigError(
            "hydra/sweeper=optuna: nothing to search: give an interval, lr=interval(1e-4,1e-2)"
        )
    return [job(plan.overrides, values) for values in corners(plan.overrides)]


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


def decide_machine(settings: MachineSettings, launcher: LauncherConfig) -> Machine:
    """Decide what the bits of all jobs depend on: by what was asked for, and this machine.

    Raises:
        ConfigError: a job has more ranks than there are GPUs.
    """
    if isinstance(launcher, SlurmConfig):
        threads, is_cuda = launcher.cpus or 1, launcher.gpus > 0
    elif settings.device == "cpu" and settings.num_threads is not None:
        threads, is_cuda = settings.num_threads, False  # No need to load torch.
    else:
        threads, gpus = _threads_and_gpus()
        is_cuda = bool(gpus) and settings.device != "cpu"
        threads = max(1, threads // (places(launcher, 0) * launcher.ranks))
    device = settings.device
    if device == "auto":
        device = "cuda" if is_cuda else "cpu"
    num_threads = None if device == "cuda" else threads
    return Machine(device=device, num_threads=num_threads, compile=device == "cuda")


def machine_overrides(machine: Machine, settings: MachineSettings) -> list[str]:
    """Return the overrides that fix what the user left open."""
    fixed = []
    if settings.device == "auto":
        fixed.append(f"device={machine.device}")
    if settings.num_threads is None and machine.num_threads is not None:
        fixed.append(f"num_threads={machine.num_threads}")
    if settings.compile == "auto":
        fixed.append(f"compile={str(machine.compile).lower()}")
    return fixed


def places(launcher: LauncherConfig, gpus: int) -> int:
    """Return how many jobs a launcher runs at a time on this machine."""
    if not isinstance(launcher, PoolConfig):
        return 1
    return launcher.max_jobs or max(1, (gpus or _cpus() // 2) // launcher.ranks)


def build_launcher(
    config: LauncherConfig, command: Callable[[Job], list[str]], folder: SweepFolder
) -> Launcher:
    """Build the launcher that the configuration names, for the GPUs that are there now.

    Raises:
        ConfigError: what it needs is not there.
    """
    environment = {"WANDB_RUN_GROUP": folder.path.name}
    if isinstance(config, SlurmConfig):
        try:
            from sweeps.slurm import SlurmLauncher
        except ImportError:
            raise ConfigError(
                "hydra/launcher=slurm needs submitit: pip install -e '.[slurm]'"
            ) from None
        return SlurmLauncher(config, command, folder.log, environment)
    gpus = _threads_and_gpus()[1] if folder.machine.device == "cuda" else []
    if folder.machine.device == "cuda" and len(gpus) < config.ranks:
        raise ConfigError(
            f"hydra.launcher.ranks={config.ranks}: of the GPUs that this sweep runs on, "
            f"{len(gpus)} are here"
        )
    max_jobs = places(config, len(gpus))
    return LocalLauncher(command, folder.log, max_jobs, gpus, config.ranks, environment)


def job_command(script: Path, ranks: int) -> list[str]:
    """Return the command that runs an entry point, by torchrun where a job has several ranks."""
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, str(_LAUNCH), "--standalone", f"--nproc-per-node={ranks}", str(script)]


def _cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@functools.cache
def _threads_and_gpus() -> tuple[int, list[str]]:
    """Return the number of threads that torch would take, and names of the GPUs for
    CUDA_VISIBLE_DEVICES. torch is asked in a process of its own.
    """
    code = "import torch; print(torch.get_num_threads(), torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    threads, count = map(int, asked.stdout.split())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else map(str, range(count))
    return threads, list(names)
