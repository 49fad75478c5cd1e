"""Runs in the terminal: a line for each, or one of them in full."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from apps.reports.html import percent
from apps.reports.reading import find_runs
from apps.reports.status import RANKS, Status, last_records, modified, read_status
from evaluation.headline import headline_of, measure_in_words
from evaluation.values import listed, number
from runtime.text import duration, in_columns, shown
from training.tracking import METRICS_FILE, WARNINGS

_COLOURS = {"running": 36, "done": 32, "stopped": 33, "failed": 31, "new": 90}
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_MAX_SHOWN = 600  # Records that a curve of the terminal is made of.
_MAX_EVENTS = 8


def as_json(one: Status) -> dict[str, Any]:
    """Return where a run stands; null is what nothing tells."""
    names = ("state", "detail", "step", "total_steps", "score", "measure", "loss", "seconds")
    status = {name: getattr(one, name) for name in (*names, "seconds_left")}
    return {"run": one.folder.resolve().name, **status, "folder": str(one.folder)}


def list_runs(folder: Path) -> list[Status]:
    """Return all runs in a folder and below: those at work first, then by their last change."""

    def order(one: Status) -> tuple[bool, float]:
        changed = max(modified(one.folder / METRICS_FILE), modified(one.folder))
        return one.state != "running", -changed

    return sorted(map(read_status, find_runs(folder)), key=order)


def as_text(runs: Sequence[Status], *, in_colour: bool, width: int | None = None) -> str:
    """Return a table with a line for each run, cut where it is longer than `width` characters."""
    header = ["state", "run", "step", "best score", "last loss", "time left", "folder"]
    rows = [[one.state, one.name, *_cells(one), shown(one.folder, 200)] for one in runs]
    first, *lines = (line[:width] for line in in_columns([header, *rows]).split("\n"))
    if in_colour:
        painted = {name: f"\x1b[{colour}m{name}\x1b[0m" for name, colour in _COLOURS.items()}
        lines = [re.sub(r"^\w+", lambda name: painted[name[0]], line) for line in lines]
    return "\n".join([first, *lines])


def _cells(status: Status) -> list[str]:
    score, steps = "-", "-" if status.step is None else f"{status.step:,}"
    if status.steps_ahead:
        steps += f" of {status.total_steps:,}"
    if status.score is not None:
        is_usual = status.measure in (None, RANKS)
        of_what = "" if is_usual else f" ({measure_in_words(str(status.measure))})"
        score = f"{percent(status.score)}{of_what}"
    loss = "-" if status.loss is None else f"{status.loss:.4g}"
    left = "-" if status.seconds_left is None else duration(status.seconds_left)
    return [steps, score, loss, left]


def screen(one: Status, width: int = 100) -> str:
    """Return what is known of a run, as lines of at most `width` characters."""
    records = list(islice(last_records(one.folder / METRICS_FILE), _MAX_SHOWN))[::-1]
    _, score, loss, left = _cells(one)
    detail = f" ({shown(one.detail, 100)})" if one.detail else ""
    lines = [f"{one.name}: {one.state}{detail}", shown(one.folder, 200), ""]
    lines += _progress(one)
    lines.append(f"time left {left}, last loss {loss}, best score {score}")
    for name, title in (("train/lm_loss", "loss"), ("train/exact_accuracy", "exact")):
        values = [value for r in records if (value := number(r.get(name))) is not None]
        if len(values) > 1:
            lines.append(f"{title:6}{_spark(values)}  {values[-1]:.4g}")
    lines += _events(records)[-_MAX_EVENTS:]
    return "\n".join(line if len(line) <= width else f"{line[: width - 3]}..." for line in lines)


def _progress(status: Status) -> list[str]:
    """Return a bar and the step, as lines."""
    pace = f", {1 / status.pace:.3g} a second" if status.pace else ""
    step = f"step {_cells(status)[0]}{pace}"
    if not status.total_steps or status.step is None:
        return [step]
    done = min(1.0, status.step / status.total_steps)
    full = int(done * _WIDTH)
    return [f"[{'#' * full}{'.' * (_WIDTH - full)}] {100 * done:.0f} %", step]


def _events(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return evaluations and warnings, in their order."""
    lines = []
    for record in records:
        if (name := headline_of(record, "eval/")) is not None:
            value = number(record[name])
            found = "not finite" if value is None else percent(value)
            lines.append(f"evaluation at step {record['step']:,}: {measure_in_words(name)} {found}")
        lines += [f"warning: {shown(words, 160)}" for words in listed(record.get(WARNINGS))]
    return lines


def _spark(values: Sequence[float]) -> str:
    """Return values as a line of blocks, the means of equal stretches."""
    means = [part.mean() for part in np.array_split(values, min(_WIDTH, len(values)))]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)
