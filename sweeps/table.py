"""The table of a sweep: a row for each job, best first, and the spread over seeds."""

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.headline import headline_of
from runtime.errors import ConfigError, disk_errors
from runtime.files import write_together
from runtime.text import in_columns

_SHOWN_METRICS = 4


class Row(NamedTuple):
    """A job: its name, the swept settings as text, its state, and its metrics."""

    name: str
    values: dict[str, str]
    state: str
    metrics: dict[str, float]


def ranked(rows: Sequence[Row], objective: str, *, minimize: bool) -> list[Row]:
    """Order rows by a metric, the best first; those without it come last."""

    def key(row: Row) -> tuple[bool, float]:
        value = row.metrics.get(objective, math.nan)
        return math.isnan(value), value if minimize else -value

    return sorted(rows, key=key)


def over_seeds(rows: Sequence[Row], objective: str) -> list[dict[str, Any]]:
    """Return mean and standard deviation of a metric for all finished jobs that differ in `seed`
    alone.
    """
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for row in rows:
        others = tuple((key, value) for key, value in row.values.items() if key != "seed")
        if row.state == "finished" and objective in row.metrics and "seed" in row.values:
            groups.setdefault(others, []).append(row.metrics[objective])
    return [
        {**dict(others), "seeds": len(found), **mean_and_std(found)}
        for others, found in groups.items()
    ]


def mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean, and the sample standard deviation of at least two values, else None."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": spread}


def write_table(folder: Path, rows: Sequence[Row], objective: str, *, minimize: bool) -> str:
    """Write `results.json` and `results.csv`, and return the table as text.

    Args:
        folder: of the sweep.
        rows: in any order.
        objective: the metric by which they are ordered.
        minimize: whether less is better.
    Raises:
        ConfigError: the disk refused; neither file has changed.
    """
    rows = ranked(rows, objective, minimize=minimize)
    seeds = over_seeds(rows, objective)
    seeds.sort(key=lambda group: group["mean"] if minimize else -group["mean"])
    content = {"objective": objective, "jobs": [row._asdict() for row in rows], "seeds": seeds}
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["job", *keys, "state", *metrics])
    for row in rows:
        values = [row.values.get(key, "") for key in keys]
        writer.writerow([row.name, *values, row.state, *(row.metrics.get(m, "") for m in metrics)])
    results, text = folder / "results.json", json.dumps(content, indent=1) + "\n"
    with disk_errors(results, ConfigError):
        write_together({results: text, folder / "results.csv": out.getvalue()})
    return as_text(rows, seeds, keys, _most_wanted(metrics, objective))


def as_text(
    rows: Sequence[Row], seeds: Sequence[Mapping[str, Any]], keys: Sequence[str], metrics: list[str]
) -> str:
    """Return the tables for people."""
    lines = [[*keys, *metrics, "state"]]
    for row in rows:
        figures = [_figure(row.metrics.get(metric)) for metric in metrics]
        lines.append([*(row.values.get(key, "") for key in keys), *figures, row.state])
    text = in_columns(lines)
    if seeds:
        found = dict.fromkeys(key for group in seeds for key in group)
        header = [key for key in found if key not in ("seeds", "mean", "std")]
        lines = [[*header, f"mean {metrics[0]}" if metrics else "mean", "std", "seeds"]]
        for group in seeds:
            figures = [_figure(group["mean"]), _figure(group["std"]), str(group["seeds"])]
            lines.append([*(group.get(key, "") for key in header), *figures])
        text += f"\n\nOver seeds:\n\n{in_columns(lines)}"
    return text


def _most_wanted(metrics: Sequence[str], objective: str) -> list[str]:
    wanted = [objective, headline_of(metrics, "eval/"), headline_of(metrics), "wrong"]
    wanted += ["eval/exact_accuracy", "eval/accuracy", "exact_accuracy", "accuracy"]
    wanted += ["train/lm_loss", "train/exact_accuracy", "train/accuracy"]
    found = [m for m in dict.fromkeys(wanted) if m is not None and m in metrics]
    return (found or list(metrics))[:_SHOWN_METRICS]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
