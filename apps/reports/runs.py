"""List all runs, or follow them: python scripts/runs.py [FOLDER] [--watch [RUN]].

Shows each run's state, step, best score, last loss, examples per second, time left and folder; `-`
if not known.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.reports.comparison import seed_table
from apps.reports.html import percent
from apps.reports.reading import find_runs, read_run
from apps.reports.status import Status, modified, read_status
from apps.sweeps.table import WRITERS
from evaluation.headline import measure_in_words
from runtime.errors import ConfigError, exit_code
from runtime.process import print_error
from runtime.text import colours, duration, in_columns, run_named, short, shown, terminal_width
from training.checkpoint.store import USUAL_MEASURE
from training.tracking import METRICS_FILE

_ALL = Path("checkpoints")
_CLEAR = "\x1b[H\x1b[J"
_COLOURS = {"running": 36, "done": 32, "stopped": 33, "failed": 31, "new": 90}


def main(arguments: Sequence[str] | None = None) -> int:
    """List or follow runs as the command line asks; return the exit code."""
    parser = argparse.ArgumentParser(prog="runs.py", description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    where = "the folder with the runs (default: checkpoints)"
    add("folder", nargs="?", type=run_named, default=_ALL, help=where)
    follow = "follow RUN until it ends; without RUN, list all runs repeatedly until ctrl-C"
    add_form = parser.add_mutually_exclusive_group().add_argument
    add_form("--watch", nargs="?", const=_ALL, type=run_named, metavar="RUN", help=follow)
    pause = "seconds between two looks (default: 2)"
    add("--interval", type=float, default=2.0, metavar="SECONDS", help=pause)
    add_form("--json", action="store_true", help="print JSON")
    table = "print the mean score and its spread over seeds, with a column for each setting"
    add_form("--table", nargs="?", const="markdown", choices=list(WRITERS), help=table)
    options = parser.parse_args(arguments)
    try:
        if options.table is not None:
            write_table(options.folder, options.table)
        elif options.watch is not None:
            run = None if options.watch == _ALL else options.watch
            watch(options.folder, run, max(0.1, options.interval))
        else:
            runs = _runs(options.folder)
            text = json.dumps(list(map(as_json, runs)), indent=1) if options.json else _listed(runs)
            sys.stdout.write(f"{text}\n")
    except ConfigError as error:
        print_error(str(error))
        return exit_code(error) or 1
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, Python reports the error again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _runs(folder: Path) -> list[Status]:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; name the right one: runs.py FOLDER")
    return list_runs(folder)


def _listed(runs: Sequence[Status]) -> str:
    if not runs:
        return "there are no runs yet"
    return as_text(runs, in_colour=colours(sys.stdout), width=terminal_width(sys.stdout))


def write_table(folder: Path, form: str) -> None:
    """Print the table over seeds of the runs in a folder, for example a sweep's."""
    lines = seed_table([read_run(one.folder) for one in _runs(folder)])
    if len(lines) == 1:
        raise ConfigError(f"{folder}: holds no ended run with a score")
    sys.stdout.write(WRITERS[form](lines))


def watch(folder: Path, run: Path | None, interval: float) -> None:
    """List all runs repeatedly, or one run until it ends; that run need not exist yet. Without a
    terminal, print only changes.
    """
    was_running = False
    printed, clear = "", _CLEAR if sys.stdout.isatty() else ""
    while True:
        runs = [read_status(run)] if run else _runs(folder)
        if clear or _listed(runs) != printed:
            printed = _listed(runs)
            sys.stdout.write(f"{clear}{printed}\n")
            sys.stdout.flush()
        if run:
            is_running = runs[0].state == "running"
            if runs[0].has_ended or (was_running and not is_running):
                return
            was_running = is_running
        time.sleep(interval)


def as_json(one: Status) -> dict[str, Any]:
    """Return the status of a run for JSON; null: not known."""
    names = ("state", "detail", "step", "total_steps", "score", "measure", "loss")
    names += ("examples_per_second", "seconds", "seconds_left")
    status = {name: getattr(one, name) for name in names}
    return {"run": one.folder.resolve().name, **status, "folder": str(one.folder)}


def list_runs(folder: Path) -> list[Status]:
    """Return all runs in a folder and below: running ones first, then the last changed first."""

    def order(one: Status) -> tuple[bool, float]:
        changed = max(modified(one.folder / METRICS_FILE), modified(one.folder))
        return one.state != "running", -changed

    return sorted(map(read_status, find_runs(folder)), key=order)


def as_text(runs: Sequence[Status], *, in_colour: bool, width: int | None = None) -> str:
    """Return a table with a line for each run, cut to `width` characters."""
    header = ["state", "run", "step", "best score", "last loss", "ex/s", "time left", "folder"]
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
        is_usual = status.measure in (None, USUAL_MEASURE)
        of_what = "" if is_usual else f" ({measure_in_words(str(status.measure))})"
        score = f"{percent(status.score)}{of_what}"
    loss = "-" if status.loss is None else f"{status.loss:.4g}"
    left = "-" if status.seconds_left is None else duration(status.seconds_left)
    rate = "-" if status.examples_per_second is None else short(status.examples_per_second)
    return [steps, score, loss, rate, left]
