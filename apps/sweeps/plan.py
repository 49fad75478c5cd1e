"""What a command line with `-m` asks for: the entry point, the jobs, who chooses and runs them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from apps.sweeps.config import LAUNCHERS, SWEEPERS, LauncherConfig, OptunaConfig, SweeperConfig
from apps.sweeps.jobs import Job, expand, job, swept, without_overruled
from runtime.errors import ConfigError
from runtime.schema import MachineSettings, Schema
from runtime.text import shown
from training.config.composition import hydra_settings
from training.config.overrides import is_of_hydra, parse_arguments, parse_overrides
from training.config.source import source_of


class Program(NamedTuple):
    """An entry point that can be swept.

    Attributes:
        script: its file.
        load: composes and validates the settings of jobs, given the flags, the overrides of each,
            and the number of ranks; raises ConfigError.
        require: checks that what a job reads is there, without torch, and returns what stands for
            it beside the settings; raises errors for people.
        place: returns the override that puts the job of a name into the sweep's folder.
        result: returns a file that a finished job has left there.
        read: returns the metrics of that job so far, each by step: those of evaluations, and the
            one that is named.
        objective: the metric that orders the table.
    """

    script: Path
    load: Callable[[Sequence[str], Sequence[Sequence[str]], int], Sequence[MachineSettings]]
    require: Callable[[Any], str]
    place: Callable[[Path, str], str]
    result: Callable[[Path, str], Path]
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
    task = without_overruled(task)
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


def jobs_to_validate(plan: Plan) -> list[Job]:
    """Return all jobs of a grid; of a search those at the ends of what it may try."""
    if not isinstance(plan.sweeper, OptunaConfig):
        return expand(plan.overrides, plan.choices)
    try:
        from apps.sweeps.search import corners
    except ImportError:
        raise ConfigError("hydra/sweeper=optuna needs optuna: pip install -e '.[search]'") from None

    if not swept(plan.overrides):
        raise ConfigError(
            "hydra/sweeper=optuna: nothing to search: give an interval, lr=interval(1e-4,1e-2)"
        )
    return [job(plan.overrides, values) for values in corners(plan.overrides)]
