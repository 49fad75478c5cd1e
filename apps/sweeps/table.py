"""The table of a sweep: a row for each job, best first, and the spread over seeds, which is also
written as Markdown and CSV.
"""

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
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


def over_seeds(rows: Sequence[Row], objective: str, *, minimize: bool) -> list[dict[str, Any]]:
    """Return mean and standard deviation of a metric for all finished jobs that differ in `seed`
    alone, the best first.
    """
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for row in rows:
        others = tuple((key, value) for key, value in row.values.items() if key != "seed")
        if row.state == "finished" and objective in row.metrics:
            groups.setdefault(others, []).append(row.metrics[objective])
    found = [
        {**dict(others), "seeds": len(values), **mean_and_std(values)}
        for others, values in groups.items()
    ]
    return sorted(found, key=lambda group: group["mean"] if minimize else -group["mean"])


def mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean, and the sample standard deviation of at least two values, else None."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": spread}


def write_table(folder: Path, rows: Sequence[Row], objective: str, *, minimize: bool) -> str:
    """Write `results.json` and `results.csv` into a sweep's folder; returns the table for people,
    ordered by the objective.

    Raises:
        ConfigError: the disk refused; neither file has changed.
    """
    rows = ranked(rows, objective, minimize=minimize)
    seeded = [row for row in rows if "seed" in row.values]
    seeds = over_seeds(seeded, objective, minimize=minimize)
    content = {"objective": objective, "jobs": [row._asdict() for row in rows], "seeds": seeds}
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))
    wanted = _most_wanted(metrics, objective)
    lines, shown = [["job", *keys, "state", *metrics]], [[*keys, *wanted, "state"]]
    for row in rows:
        values = [row.values.get(key, "") for key in keys]
        figures = [str(row.metrics.get(metric, "")) for metric in metrics]
        lines.append([row.name, *values, row.state, *figures])
        figures = [_figure(row.metrics.get(metric)) for metric in wanted]
        shown.append([*values, *figures, row.state])
    results, text = folder / "results.json", json.dumps(content, indent=1) + "\n"
    with disk_errors(results, ConfigError):
        write_together({results: text, folder / "results.csv": as_csv(lines)})
    text = in_columns(shown)
    if seeds:
        text += f"\n\nOver seeds:\n\n{in_columns(lines_of(seeds, ''.join(wanted[:1])))}"
    return text


def lines_of(groups: Sequence[Mapping[str, Any]], metric: str) -> list[list[str]]:
    """Return the table of what `over_seeds` found, its header first: a column for each setting."""
    found = dict.fromkeys(key for group in groups for key in group)
    keys = [key for key in found if key not in ("seeds", "mean", "std")]
    lines = [[*keys, f"mean {metric}".strip(), "std", "seeds"]]
    for group in groups:
        figures = [_figure(group["mean"]), _figure(group["std"]), str(group["seeds"])]
        lines.append([*(group.get(key, "") for key in keys), *figures])
    return lines


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first line is its header, as Markdown."""
    header, *rows = (f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)
    return "\n".join([header, f"|{'---|' * len(lines[0])}", *rows]) + "\n"


def _escaped(cell: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", cell)


def as_csv(lines: Sequence[Sequence[str]]) -> str:
    """Return a table as comma-separated values."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


WRITERS: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
}
"""How the table over seeds can be written, by name."""


def _most_wanted(metrics: Sequence[str], objective: str) -> list[str]:
    wanted = [objective, headline_of(metrics, "eval/"), headline_of(metrics), "wrong"]
    wanted += ["eval/exact_accuracy", "eval/accuracy", "exact_accuracy", "accuracy"]
    wanted += ["train/lm_loss", "train/exact_accuracy", "train/accuracy"]
    found = [m for m in dict.fromkeys(wanted) if m is not None and m in metrics]
    return (found or list(metrics))[:_SHOWN_METRICS]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
