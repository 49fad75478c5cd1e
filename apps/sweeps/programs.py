"""The entry points that can be swept: where a job of each one writes, and where its figures are."""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.sweeps.plan import Program, plan_of
from apps.sweeps.run import run_sweep
from evaluation.config import EvalConfig
from evaluation.headline import score_of
from training.checkpoint.trained_model import find_trained_model
from training.config.composition import load_configs
from training.config.overrides import quoted_value
from training.config.schema import TrainConfig
from training.data import require_folders
from training.tracking import METRICS_FILE

_IN_TRAINING = {"train/lm_loss", "train/accuracy", "train/exact_accuracy"}
_ROOT = Path(__file__).resolve().parents[2]


def _load_runs(
    flags: Sequence[str], jobs: Sequence[Sequence[str]], ranks: int
) -> list[TrainConfig]:
    configs = load_configs(TrainConfig, "cfg_pretrain", flags, jobs)
    for config in configs:
        config.check_world_size(ranks)
    return configs


def _require_data(config: TrainConfig) -> str:
    require_folders(config)
    return ""


@functools.cache
def _weights(checkpoint: str) -> str:
    return str(find_trained_model(Path(checkpoint), lambda warning: None).weights)


def _evaluations(folder: Path, name: str, objective: str) -> Mapping[str, Mapping[int, float]]:
    """Return the figures of all evaluations of a run, and the objective, by step."""
    found: dict[str, dict[int, float]] = {}
    path = folder / name / METRICS_FILE
    for line in path.read_text().splitlines() if path.exists() else ():
        if '"eval/' in line or f'"{objective}"' in line:
            record = _parsed(line)
            for key, value in record.items():
                if key.startswith("eval/") or key == objective:
                    is_number = isinstance(value, int | float)  # Not finite ones are text.
                    found.setdefault(key, {})[record["step"]] = value if is_number else math.nan
    return found or _last_of_training(path)


def _last_of_training(path: Path) -> dict[str, dict[int, float]]:
    """Return the last loss and accuracies of training, of a run that evaluates nothing."""
    found: dict[str, dict[int, float]] = {}
    for line in reversed(path.read_text().splitlines() if path.exists() else ()):
        record = _parsed(line)
        for key in _IN_TRAINING - found.keys():
            if isinstance(value := record.get(key), int | float):
                found[key] = {record["step"]: value}
        if len(found) == len(_IN_TRAINING):
            break
    return found


def _result(folder: Path, name: str) -> Path:
    # In a folder of its own, for evaluators write files beside it.
    return folder / name / f"{name}.json"


def _figures(folder: Path, name: str, objective: str) -> Mapping[str, Mapping[int, float]]:
    """Return the figures of an evaluation, under step 0."""
    path = _result(folder, name)
    result = _parsed(path.read_text()) if path.exists() else {}
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
        return {}  # A line that is being written.


TRAINING = Program(
    _ROOT / "pretrain.py",
    _load_runs,
    _require_data,
    lambda folder, name: f"checkpoint_path={quoted_value(folder / name)}",
    lambda folder, name: folder / name / METRICS_FILE,
    _evaluations,
    "eval/exact_accuracy",
)

EVALUATION = Program(
    _ROOT / "evaluate.py",
    lambda flags, jobs, ranks: load_configs(EvalConfig, "cfg_evaluate", flags, jobs),
    lambda config: _weights(config.checkpoint),
    lambda folder, name: f"output={quoted_value(_result(folder, name))}",
    _result,
    _figures,
    "exact_accuracy",
)


def sweep_trainings(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Run a command line of `pretrain.py` with `-m`, as `run_sweep`."""
    return run_sweep(TRAINING, plan_of(TrainConfig, "cfg_pretrain", arguments), say)


def sweep_evaluations(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Run a command line of `evaluate.py` with `-m`, as `run_sweep`."""
    return run_sweep(EVALUATION, plan_of(EvalConfig, "cfg_evaluate", arguments), say)
