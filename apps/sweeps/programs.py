"""The entry points that can be swept: how to read their command line with `-m`, where a job writes,
and how to read its metrics.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override

from apps.sweeps.config import LAUNCHERS, SWEEPERS, LauncherConfig, SweeperConfig
from apps.sweeps.jobs import without_overruled
from evaluation.config import EvalConfig
from evaluation.headline import score_of
from runtime.errors import ConfigError
from runtime.schema import MachineSettings
from training.checkpoint.trained_model import find_trained_model
from training.config.composition import hydra_settings
from training.config.explain import validate
from training.config.overrides import is_of_hydra, parse_arguments, parse_overrides, quoted_value
from training.config.schema import TrainConfig
from training.config.source import source_of
from training.data import require_folders
from training.tracking import METRICS_FILE

MetricsByStep = Mapping[str, Mapping[int, float]]
"""The metrics of a job: metric name -> step -> value."""

_IN_TRAINING = {"train/lm_loss", "train/accuracy", "train/exact_accuracy"}
_ROOT = Path(__file__).resolve().parents[2]


class Program(NamedTuple):
    """An entry point that can be swept.

    Attributes:
        config_name: the file of `config/` with its settings.
        key: the setting with the path that a job writes to.
        place: that path, relative to the sweep's folder; {} is the job's name.
        written: the file with the metrics, relative to the sweep's folder. A finished job has it.
        require: (config, ranks) -> identity of the input. Checks, without torch, that a job's input
            exists, and returns text that identifies it beyond the settings ("" for nothing).
        metrics: (text of that file, objective) -> the metrics of evaluations and the objective.
        objective: the metric that orders the table.
    """

    script: Path
    schema: type[MachineSettings]
    config_name: str
    key: str
    place: str
    written: str
    require: Callable[[Any, int], str]
    metrics: Callable[[str, str], MetricsByStep]
    objective: str

    def placed(self, folder: Path, name: str) -> str:
        """Return the override that makes a job write into the sweep's folder."""
        return f"{self.key}={quoted_value(folder / self.place.format(name))}"

    def result(self, folder: Path, name: str) -> Path:
        """Return the file with the metrics of a job."""
        return folder / self.written.format(name)

    def read(self, folder: Path, name: str, objective: str) -> MetricsByStep:
        """Return the metrics that a job has written so far."""
        path = self.result(folder, name)
        return self.metrics(path.read_text() if path.exists() else "", objective)


class Plan(NamedTuple):
    """The parsed command line of a sweep.

    Attributes:
        overrides: of the entry point's settings, including the swept ones.
        parent: the folder that holds the folders of all sweeps.
        flags: flags for every job, such as --config-dir.
    """

    overrides: Sequence[Override]
    launcher: LauncherConfig
    sweeper: SweeperConfig
    parent: Path
    flags: Sequence[str] = ()


def plan_of(program: Program, arguments: Sequence[str]) -> Plan:
    """Parse a command line with `-m`.

    Raises:
        ConfigError: a flag, launcher or sweeper is wrong.
    """
    args = parse_arguments(arguments)
    source = source_of(program.config_name, args)
    overrides = parse_overrides(args.overrides)
    hydra = hydra_settings(program.schema, source, overrides)
    launcher = _validated("launcher", LAUNCHERS, hydra["launcher"])
    sweeper = _validated("sweeper", SWEEPERS, hydra["sweeper"])
    task = [override for override in overrides if not is_of_hydra(override)]
    params = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    given = {override.key_or_group for override in task}
    task = [o for o in parse_overrides(params) if o.key_or_group not in given] + task
    flags = {
        "--config-dir": args.config_dir and source.folders[-1],
        "--config-name": args.config_name,
    }
    given_flags = [str(part) for flag in flags.items() if flag[1] for part in flag]
    parent = Path(hydra["sweep_dir"])
    return Plan(without_overruled(task), launcher, sweeper, parent, given_flags)


def _validated(what: str, schemas: Mapping[str, type[Any]], node: Mapping[str, Any]) -> Any:
    schema = schemas.get(name := node.get("name", ""))
    if schema is None:
        raise ConfigError(
            f"hydra/{what}: unknown {what} name={name}; accepted: {', '.join(schemas)}"
        )
    try:
        return validate(schema, node)
    except ConfigError as error:
        raise ConfigError(f"hydra/{what}={name}: {error}") from None


def _require_data(config: TrainConfig, ranks: int) -> str:
    config.check_world_size(ranks)
    if config.dry_run:
        raise ConfigError("dry_run=true tries a single run: leave out -m")
    require_folders(config)
    return ""


@functools.cache
def _weights(checkpoint: str) -> str:
    return str(find_trained_model(Path(checkpoint), lambda warning: None).weights)


def _metrics_of_run(text: str, objective: str) -> MetricsByStep:
    """Return the metrics of all evaluations of a run, and the objective. A run without evaluations
    has its last training loss and accuracies instead.
    """
    found: dict[str, dict[int, float]] = {}
    trained: dict[str, dict[int, float]] = {}
    for line in text.splitlines():
        record = _parsed(line)
        for key, value in record.items():
            is_number = isinstance(value, int | float)  # NaN and infinity are written as text.
            if key.startswith("eval/") or key == objective:
                found.setdefault(key, {})[record["step"]] = value if is_number else math.nan
            elif key in _IN_TRAINING and is_number:
                trained[key] = {record["step"]: value}
    return found or trained


def _metrics_of_evaluation(text: str, objective: str) -> MetricsByStep:
    """Return the metrics of an evaluation, all under step 0."""
    result = _parsed(text)
    metrics = dict(result.get("metrics", {}))
    metrics |= _metrics_of_chains(result.get("chains", []))
    if (score := score_of(result)) is not None and score.wrong is not None:  # From a search.
        metrics |= {score.name: score.estimate.value, "wrong": score.wrong.value}
    for evaluator, findings in result.get("evaluators", {}).items():
        metrics |= {f"{evaluator}/{key}": value for key, value in findings["metrics"].items()}
    return {key: {0: value} for key, value in metrics.items() if isinstance(value, int | float)}


def _metrics_of_chains(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of right answers over all sets, for each `steps`, `chains` and `select`. If
    there is only one, it is also the `exact_accuracy`, by which the table compares jobs.
    """
    right, puzzles = Counter[str](), Counter[str]()
    for line in lines:
        name = f"selected/depth{line['depth']}/breadth{line['breadth']}/{line['select']}"
        right[name] += line["selected"]["value"] * line["num_puzzles"]
        puzzles[name] += line["num_puzzles"]
    shares = {name: right[name] / puzzles[name] for name in puzzles}
    if len(shares) == 1:
        shares["exact_accuracy"] = next(iter(shares.values()))
    return shares


def _parsed(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}  # The job is still writing it.


TRAINING = Program(
    script=_ROOT / "pretrain.py",
    schema=TrainConfig,
    config_name="cfg_pretrain",
    key="checkpoint_path",
    place="{}",
    written=f"{{}}/{METRICS_FILE}",
    require=_require_data,
    metrics=_metrics_of_run,
    objective="eval/exact_accuracy",
)

EVALUATION = Program(
    script=_ROOT / "evaluate.py",
    schema=EvalConfig,
    config_name="cfg_evaluate",
    key="output",
    place="{0}/{0}.json",  # In its own folder, because evaluators write more files beside it.
    written="{0}/{0}.json",
    require=lambda config, ranks: _weights(config.checkpoint),
    metrics=_metrics_of_evaluation,
    objective="exact_accuracy",
)
