"""The entry points that can be swept: where a job of each one writes, and where its figures are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.config import EvalConfig
from sweeps.jobs import quoted
from sweeps.run import Program
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.tracking import METRICS_FILE

_ROOT = Path(__file__).resolve().parents[1]


def _evaluations(folder: Path, name: str, objective: str) -> Mapping[str, Mapping[int, float]]:
    """Return the figures of all evaluations of a run, and the objective, by step."""
    found: dict[str, dict[int, float]] = {}
    path = folder / name / METRICS_FILE
    for line in path.read_text().splitlines() if path.exists() else ():
        if '"eval/' in line or f'"{objective}"' in line:
            record = _parsed(line)
            for key, value in record.items():
                if key.startswith("eval/") or key == objective:
                    figures = found.setdefault(key, {})
                    if isinstance(value, int | float):  # null stands for NaN.
                        figures[record["step"]] = value
    return found


def _figures(folder: Path, name: str, objective: str) -> Mapping[str, Mapping[int, float]]:
    """Return the figures of an evaluation, under step 0."""
    path = folder / f"{name}.json"
    result = _parsed(path.read_text()) if path.exists() else {}
    figures = dict(result.get("metrics", {}))
    for evaluator, findings in result.get("evaluators", {}).items():
        figures |= {f"{evaluator}/{key}": value for key, value in findings["metrics"].items()}
    return {key: {0: value} for key, value in figures.items() if isinstance(value, int | float)}


def _parsed(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}  # A line that is being written.


TRAINING = Program(
    _ROOT / "pretrain.py",
    lambda arguments: load_config(TrainConfig, "cfg_pretrain", arguments),
    lambda folder, name: [f"checkpoint_path={quoted(folder / name)}"],
    _evaluations,
    "eval/exact_accuracy",
)

EVALUATION = Program(
    _ROOT / "evaluate.py",
    lambda arguments: load_config(EvalConfig, "cfg_evaluate", arguments),
    lambda folder, name: [f"output={quoted(folder / f'{name}.json')}"],
    _figures,
    "exact_accuracy",
)
