"""The table of a sweep: one row for each job, the best first, and the means over seeds."""

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
    """A job with the swept settings as text and its metrics."""

    name: str
    values: dict[str, str]
    state: str
    metrics: dict[str, float]


def ranked(rows: Sequence[Row], objective: str, *, minimize: bool) -> list[Row]:
    """Order rows by a metric, the best first and rows without it last."""

    def key(row: Row) -> tuple[bool, float]:
        value = row.metrics.get(objective, math.nan)
        return math.isnan(value), value if minimize else -value

    return sorted(rows, key=key)


def over_seeds(rows: Sequence[Row], objective: str, *, minimize: bool) -> list[dict[str, Any]]:
    """Return the mean and standard deviation of a metric over the finished jobs that differ only
    in `seed`: one entry for each combination of the other settings, the best first.
    """
    groups: dict[frozenset[tuple[str, str]], tuple[dict[str, str], list[float]]] = {}
    for row in rows:
        others = {key: value for key, value in row.values.items() if key != "seed"}
        if row.state == "finished" and objective in row.metrics:
            _, values = groups.setdefault(frozenset(others.items()), (others, []))
            values.append(row.metrics[objective])
    found = [
        {**others, "seeds": len(values), **mean_and_std(values)}
        for others, values in groups.values()
    ]
    return sorted(found, key=lambda group: group["mean"] if minimize else -group["mean"])


def mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation, None for a single value."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": spread}


def write_table(folder: Path, rows: Sequence[Row], objective: str, *, minimize: bool) -> str:
    """Write `results.json` and `results.csv` into a sweep's folder; return the table for the
    terminal, ordered by the objective.

    Raises:
        ConfigError: a file cannot be written; neither file has changed.
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
        exact = [str(row.metrics.get(metric, "")) for metric in metrics]
        lines.append([row.name, *values, row.state, *exact])
        shown.append([*values, *(_rounded(row.metrics.get(name)) for name in wanted), row.state])
    results, text = folder / "results.json", json.dumps(content, indent=1) + "\n"
    with disk_errors(results, ConfigError):
        write_together({results: text, folder / "results.csv": as_csv(lines)})
    text = in_columns(shown)
    if seeds:
        text += f"\n\nOver seeds:\n\n{in_columns(lines_of(seeds, ''.join(wanted[:1])))}"
    return text


def lines_of(groups: Sequence[Mapping[str, Any]], metric: str) -> list[list[str]]:
    """Return the result of `over_seeds` as lines of a table, the header first."""
    found = dict.fromkeys(key for group in groups for key in group)
    keys = [key for key in found if key not in ("seeds", "mean", "std")]
    lines = [[*keys, f"mean {metric}".strip(), "std", "seeds"]]
    for group in groups:
        numbers = [_rounded(group["mean"]), _rounded(group["std"]), str(group["seeds"])]
        lines.append([*(group.get(key, "") for key in keys), *numbers])
    return lines


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown; the first line is the header."""
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
"""The formats of the table over seeds, by name."""


def _most_wanted(metrics: Sequence[str], objective: str) -> list[str]:
    wanted = [objective, headline_of(metrics, "eval/"), headline_of(metrics), "wrong"]
    wanted += ["eval/exact_accuracy", "eval/accuracy", "exact_accuracy", "accuracy"]
    wanted += ["train/lm_loss", "train/exact_accuracy", "train/accuracy"]
    found = [m for m in dict.fromkeys(wanted) if m is not None and m in metrics]
    return (found or list(metrics))[:_SHOWN_METRICS]


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
