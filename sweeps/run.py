"""Run a sweep: `pretrain.py -m ...` and `evaluate.py -m ...`.

Every job is validated before the first one starts, and is a process of its own. The same command
started again goes on: finished jobs are read, not run; the others resume where they stood.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from runtime.errors import ConfigError, LockedError, Preempted
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
from sweeps.jobs import Job, digest, expand, job, swept
from sweeps.local import LocalLauncher
from sweeps.table import Row, write_table
from sweeps.work import Launcher, Source, run_jobs
from training.checkpoint.lock import run_lock
from training.config.composition import hydra_settings
from training.config.overrides import is_of_hydra, parse_arguments, parse_overrides
from training.config.source import source_of

_TURN_SECONDS = 60.0
_LAUNCH = Path(__file__).resolve().parents[1] / "scripts" / "launch.py"


class Program(NamedTuple):
    """An entry point that can be swept.

    Attributes:
        script: its file.
        load: composes and validates the settings of a job; raises ConfigError.
        place: returns the overrides that put the job of a name into the sweep's folder.
        read: returns the metrics of that job so far, each by step: those of evaluations, and the
            one that is named.
        objective: the metric that orders the table.
    """

    script: Path
    load: Callable[[Sequence[str]], MachineSettings]
    place: Callable[[Path, str], list[str]]
    read: Callable[[Path, str, str], Mapping[str, Mapping[int, float]]]
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
    task = [override for override in overrides if not is_of_hydra(override)]
    params = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    given = {override.key_or_group for override in task}
    task = [o for o in parse_overrides(params) if o.key_or_group not in given] + task
    flags = {
        "--config-path": args.config_path and source.folders[0],
        "--config-dir": args.config_dir and source.folders[-1],
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
        reason = fault["msg"].lower()
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            reason = f"no setting of {node['name']}; accepted: {', '.join(schema.model_fields)}"
        raise ConfigError(f"{path}={shown(fault['input'])}: {reason}") from None


def run_sweep(program: Program, plan: Plan, say: Callable[[str], None]) -> int:
    """Run all jobs, write the table and print it.

    Returns:
        0, or the exit code of the jobs that failed, 1 where these differ.
    Raises:
        ConfigError: a job's settings are wrong; nothing has been started.
        LockedError: another process is at work on this sweep.
        Preempted: stopped by a signal; every job at work has saved.
    """
    if launched():
        raise ConfigError("-m starts processes of its own: run it without torchrun")
    jobs = _jobs_to_validate(plan)
    settings = [program.load([*plan.flags, *job.overrides]) for job in jobs]
    dumped = [config.model_dump(mode="json") for config in settings]
    objective, minimize = plan.sweeper.objective, plan.sweeper.direction == "minimize"
    objective = objective or program.objective
    search = plan.sweeper if isinstance(plan.sweeper, OptunaConfig) else None
    if search:
        _require_sound(search, objective, settings[0], say)
    name = settings[0].sweep_name or digest(dumped, [sorted(job.values.items()) for job in jobs])
    folder = plan.parent / name
    say(f"sweep folder: {folder}")
    folder.mkdir(parents=True, exist_ok=True)

    def read(name: str) -> Mapping[str, Mapping[int, float]]:
        return program.read(folder, name, objective)

    with ExitStack() as held:
        held.enter_context(_turn(folder) if search else run_lock(folder))
        recorded = SweepFolder.recorded(folder)
        machine = recorded.machine if recorded else decide_machine(settings[0], plan.launcher)
        kept = SweepFolder(folder, sys.argv, machine)

        def command(job: Job) -> list[str]:
            start = job_command(program.script, plan.launcher.ranks)
            decided = machine_overrides(machine, settings[0])
            return [*start, *plan.flags, *job.overrides, *decided, *program.place(folder, job.name)]

        gpus = machine.gpus
        if search:
            held.close()  # The study is the record from here on, and other processes may join.
            gpus = _gpus() if recorded and gpus else gpus  # Perhaps it is another machine.
            common = digest(dumped, [sorted(j.values.items()) for j in jobs], objective, minimize)
            source: Source = _search(search, plan, folder, common, objective, read, say)
        else:
            source = Grid(jobs, kept, say)
        stopped = run_jobs(source, build_launcher(plan.launcher, command, folder, gpus))
        if search:
            held.enter_context(_turn(folder))
        rows, records = [], source.jobs
        for name, record in records.items():
            metrics = {} if record.result is None else {objective: record.result}
            metrics |= {key: found[max(found)] for key, found in read(name).items() if found}
            rows.append(Row(name, record.values, record.state, metrics))
        say(write_table(folder, rows, objective, minimize=minimize))
        say(f"written: {folder / 'results.json'}, {folder / 'results.csv'}")
    if stopped:
        raise Preempted(f"{folder}: stopped; the same command goes on")
    codes = {record.exit_code or 1 for record in records.values() if record.state == "failed"}
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


def _search(
    search: OptunaConfig,
    plan: Plan,
    folder: Path,
    common: str,
    objective: str,
    read: Callable[[str], Mapping[str, Mapping[int, float]]],
    say: Callable[[str], None],
) -> Source:
    from sweeps.search import Search, open_study

    study = open_study(search, folder, common)
    return Search(search, plan.overrides, study, common, objective, read, say)


def _jobs_to_validate(plan: Plan) -> list[Job]:
    """Return all jobs of a grid; of a search those at the ends of what it may try."""
    if not isinstance(plan.sweeper, OptunaConfig):
        return expand(plan.overrides, plan.choices)
    try:
        from sweeps.search import corners
    except ImportError:
        raise ConfigError("hydra/sweeper=optuna needs optuna: pip install -e '.[search]'") from None

    if not swept(plan.overrides):
        raise ConfigError(
            "hydra/sweeper=optuna: nothing to search: give an interval, lr=interval(1e-4,1e-2)"
        )
    return [job(plan.overrides, values) for values in corners(plan.overrides)]


def decide_machine(settings: MachineSettings, launcher: LauncherConfig) -> Machine:
    """Decide what the bits of all jobs depend on, by the GPUs and CPUs of this machine."""
    gpus = [] if settings.device == "cpu" else _gpus()
    if isinstance(launcher, SlurmConfig):
        threads = launcher.cpus or 1
    else:
        threads = max(1, _cpus() // (places(launcher, len(gpus)) * launcher.ranks))
    return Machine(num_threads=threads, compile=bool(gpus), gpus=gpus)


def places(launcher: LauncherConfig, gpus: int) -> int:
    """Return how many jobs a launcher runs at a time on this machine."""
    if not isinstance(launcher, PoolConfig):
        return 1
    return launcher.max_jobs or max(1, (gpus or _cpus() // 2) // launcher.ranks)


def machine_overrides(machine: Machine, settings: MachineSettings) -> list[str]:
    """Return the overrides that fix what the user left open."""
    fixed = []
    if settings.num_threads is None and not machine.gpus:
        fixed.append(f"num_threads={machine.num_threads}")
    if settings.compile == "auto":
        fixed.append(f"compile={str(machine.compile).lower()}")
    return fixed


def build_launcher(
    config: LauncherConfig, command: Callable[[Job], list[str]], folder: Path, gpus: list[str]
) -> Launcher:
    """Build the launcher that the configuration names.

    Raises:
        ConfigError: what it needs is not installed.
    """
    logs, environment = folder / "logs", {"WANDB_RUN_GROUP": folder.name}
    if not isinstance(config, SlurmConfig):
        max_jobs = places(config, len(gpus))
        return LocalLauncher(command, logs, max_jobs, gpus, config.ranks, environment)
    try:
        from sweeps.slurm import SlurmLauncher
    except ImportError:
        raise ConfigError(
            "hydra/launcher=slurm needs submitit: pip install -e '.[slurm]'"
        ) from None
    return SlurmLauncher(config, command, logs, environment)


def job_command(script: Path, ranks: int) -> list[str]:
    """Return the command that runs an entry point, by torchrun where a job has several ranks."""
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, str(_LAUNCH), "--standalone", f"--nproc-per-node={ranks}", str(script)]


def _cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _gpus() -> list[str]:
    """Return names of the GPUs for CUDA_VISIBLE_DEVICES. torch is asked in a process of its own."""
    code = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    count = int(asked.stdout or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]
