"""The figures of an evaluation for people (a table) and for programs (JSON). Imports no torch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.evaluators import Findings
from evaluation.metrics import SetResult
from models.config import EvaluatorName
from models.heads.calibration import with_calibration_error
from models.metrics import is_loss

_COLUMNS = ("exact_accuracy", "accuracy", "q_halt_accuracy", "steps", "lm_loss", "q_halt_loss")
_WITH_INTERVAL = ("exact_accuracy", "accuracy", "q_halt_accuracy")


def pooled(results: Mapping[str, SetResult]) -> dict[str, float]:
    """Return `count` and the metrics over the rows of all sets; without a row, no metric."""
    figures = {"count": float(sum(result.count for result in results.values()))}
    for name in dict.fromkeys(name for result in results.values() for name in result.metrics):
        parts = [
            (result.num_examples if is_loss(name) else result.count, result.metrics[name].value)
            for result in results.values()
            if name in result.metrics
        ]
        total = sum(rows for rows, _ in parts)
        figures[name] = sum(rows * value for rows, value in parts) / total
    return with_calibration_error(figures)


def flatten(results: Mapping[str, SetResult]) -> dict[str, float]:
    """Return the figures over all sets as `eval/NAME`, and those of several sets as
    `eval/SET/NAME` too.
    """
    flat = {}
    if len(results) > 1:
        for set_name, result in results.items():
            flat[f"eval/{set_name}/count"] = float(result.count)
            for name, estimate in result.reported.items():
                flat[f"eval/{set_name}/{name}"] = estimate.value
    return flat | {f"eval/{name}": value for name, value in pooled(results).items()}


def flatten_findings(findings: Mapping[EvaluatorName, Findings]) -> dict[str, float]:
    """Return the metrics of evaluators as `eval/EVALUATOR/NAME`."""
    return {
        f"eval/{evaluator}/{name}": value
        for evaluator, found in findings.items()
        for name, value in found.metrics.items()
    }


def findings_as_json(
    findings: Mapping[EvaluatorName, Findings], written: Mapping[EvaluatorName, list[Path]]
) -> dict[str, Any]:
    """Return what evaluators found, JSON-ready, with the files that were written for each."""
    return {
        name: {
            "metrics": found.metrics,
            "details": found.details,
            "files": [str(path) for path in written[name]],
        }
        for name, found in findings.items()
    }


def findings_table(findings: Mapping[EvaluatorName, Findings]) -> str:
    """Return a line for each metric of each evaluator."""
    flat = {name.removeprefix("eval/"): value for name, value in flatten_findings(findings).items()}
    width = max((len(name) for name in flat), default=0)
    return "\n".join(f"{name.ljust(width)}  {value:.4f}" for name, value in flat.items())


def as_json(results: Mapping[str, SetResult]) -> dict[str, Any]:
    """Return the figures as JSON-ready values: `metrics` over all sets, and `sets` one by one with
    their intervals.

    A figure that is not finite becomes text ("nan"), since JSON has no number for it.
    """
    return {
        "metrics": {name: _json_number(value) for name, value in pooled(results).items()},
        "sets": {
            set_name: {
                "num_examples": result.num_examples,
                "count": result.count,
                "metrics": {
                    name: {
                        "value": _json_number(estimate.value),
                        "low": _json_number(estimate.low),
                        "high": _json_number(estimate.high),
                    }
                    for name, estimate in result.reported.items()
                },
            }
            for set_name, result in results.items()
        },
    }


def table(results: Mapping[str, SetResult]) -> str:
    """Return a line for each set; shares come with their 95 % intervals."""
    rows = [["set", "count", *_COLUMNS]]
    for set_name, result in results.items():
        rows.append([set_name, str(result.count), *(_cell(result, name) for name in _COLUMNS)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cell(result: SetResult, name: str) -> str:
    estimate = result.metrics.get(name)
    if estimate is None:
        return "-"
    if name in _WITH_INTERVAL and estimate.low is not None and estimate.high is not None:
        return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"
    return f"{estimate.value:.4f}"


def _json_number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
