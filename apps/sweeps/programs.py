"""The entry points that can be swept: what a command line of theirs with `-m` asks for, where a job
writes, and which figures it has.
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

Figures = Mapping[str, Mapping[int, float]]
"""The metrics of a job so far, each by step."""

_IN_TRAINING = {"train/lm_loss", "train/accuracy", "train/exact_accuracy"}
_ROOT = Path(__file__).resolve().parents[2]


class Program(NamedTuple):
    """An entry point that can be swept.

    Attributes:
        config_name: the file of `config/` with its settings.
        key: the setting that says where a job writes.
        place: its value below the sweep's folder, with {} for the name of the job.
        written: the file with the figures, which a finished job has left.
        require: checks that what a job reads is there, without torch, for this number of ranks;
            returns what stands for it beside the settings. Raises errors for people.
        figures: reads the text of that file: the figures of evaluations, and the one that is named.
        objective: the metric that orders the table.
    """

    script: Path
    schema: type[MachineSettings]
    config_name: str
    key: str
    place: str
    written: str
    require: Callable[[Any, int], str]
    figures: Callable[[str, str], Figures]
    objective: str

    def placed(self, folder: Path, name: str) -> str:
        """Return the override that puts a job into the sweep's folder."""
        return f"{self.key}={quoted_value(folder / self.place.format(name))}"

    def result(self, folder: Path, name: str) -> Path:
        """Return the file with the figures of a job."""
        return folder / self.written.format(name)

    def read(self, folder: Path, name: str, objective: str) -> Figures:
        """Return the figures of a job so far."""
        path = self.result(folder, name)
        return self.figures(path.read_text() if path.exists() else "", objective)


class Plan(NamedTuple):
    """What the command line asks for.

    Attributes:
        overrides: of the task, swept ones included.
        parent: the folder in which sweeps have theirs.
        flags: of the command line, for every job.
    """

    overrides: Sequence[Override]
    launcher: LauncherConfig
    sweeper: SweeperConfig
    parent: Path
    flags: Sequence[str] = ()


def plan_of(program: Program, arguments: Sequence[str]) -> Plan:
    """Read a command line with `-m`.

    Raises:
        ConfigError: a flag, launcher or sweeper is wrong.
    """
    args = parse_arguments(arguments)
    source = source_of(program.config_name, args)
    overrides = parse_overrides(args.overrides)
    hydra = hydra_settings(program.schema, source, overrides)
    launcher = _chosen("launcher", LAUNCHERS, hydra["launcher"])
    sweeper = _chosen("sweeper", SWEEPERS, hydra["sweeper"])
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


def _chosen(what: str, schemas: Mapping[str, type[Any]], node: Mapping[str, Any]) -> Any:
    schema = schemas.get(name := node.get("name", ""))
    if schema is None:
        raise ConfigError(f"hydra/{what}: there is no such {what}; accepted: {', '.join(schemas)}")
    try:
        return validate(schema, node)
    except ConfigError as error:
        raise ConfigError(f"hydra/{what}={name}: {error}") from None


def _require_data(config: TrainConfig, ranks: int) -> str:
    config.check_world_size(ranks)
    require_folders(config)
    return ""


@functools.cache
def _weights(checkpoint: str) -> str:
    return str(find_trained_model(Path(checkpoint), lambda warning: None).weights)


def _of_run(text: str, objective: str) -> Figures:
    """Return the figures of all evaluations of a run, and the objective; of a run that evaluates
    nothing the last loss and accuracies of training.
    """
    found: dict[str, dict[int, float]] = {}
    trained: dict[str, dict[int, float]] = {}
    for line in text.splitlines():
        record = _parsed(line)
        for key, value in record.items():
            is_number = isinstance(value, int | float)  # Not finite ones are text.
            if key.startswith("eval/") or key == objective:
                found.setdefault(key, {})[record["step"]] = value if is_number else math.nan
            elif key in _IN_TRAINING and is_number:
                trained[key] = {record["step"]: value}
    return found or trained


def _of_evaluation(text: str, objective: str) -> Figures:
    """Return the figures of an evaluation, under step 0."""
    result = _parsed(text)
    figures = dict(result.get("metrics", {}))
    figures |= _chosen_answers(result.get("chains", []))
    if (score := score_of(result)) is not None and score.wrong is not None:  # Of a search.
        figures |= {score.name: score.estimate.value, "wrong": score.wrong.value}
    for evaluator, findings in result.get("evaluators", {}).items():
        figures |= {f"{evaluator}/{key}": value for key, value in findings["metrics"].items()}
    return {key: {0: value} for key, value in figures.items() if isinstance(value, int | float)}


def _chosen_answers(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of right answers of thinking longer, for each depth, breadth and choice over
    all sets. Where there is one of them, it is the `exact_accuracy`, too: what jobs that differ in
    depth or breadth are compared by.
    """
    right, puzzles = Counter[str](), Counter[str]()
    for line in lines:
        name = f"selected/depth{line['depth']}/breadth{line['breadth']}/{line['select']}"
        right[name] += line["selected"]["value"] * line["num_puzzles"]
        puzzles[name] += line["num_puzzles"]
    figures = {name: right[name] / puzzles[name] for name in puzzles}
    if len(figures) == 1:
        figures["exact_accuracy"] = next(iter(figures.values()))
    return figures


def _parsed(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}  # Being written.


TRAINING = Program(
    script=_ROOT / "pretrain.py",
    schema=TrainConfig,
    config_name="cfg_pretrain",
    key="checkpoint_path",
    place="{}",
    written=f"{{}}/{METRICS_FILE}",
    require=_require_data,
    figures=_of_run,
    objective="eval/exact_accuracy",
)

EVALUATION = Program(
    script=_ROOT / "evaluate.py",
    schema=EvalConfig,
    config_name="cfg_evaluate",
    key="output",
    place="{0}/{0}.json",  # In a folder of its own, for evaluators write files beside it.
    written="{0}/{0}.json",
    require=lambda config, ranks: _weights(config.checkpoint),
    figures=_of_evaluation,
    objective="exact_accuracy",
)
