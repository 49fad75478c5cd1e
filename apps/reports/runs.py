"""List all runs, or follow those at work: python scripts/runs.py [FOLDER] [--watch [RUN]].

Shows the state of each run, its step, its best score, its last loss, the time that is left, and its
folder. What nothing tells is shown as `-`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apps.reports.comparison import seed_table
from apps.reports.listing import as_json, as_text, list_runs, screen
from apps.reports.reading import read_run
from apps.reports.status import Status, read_status
from apps.sweeps.table import WRITERS
from runtime.errors import ConfigError, exit_code
from runtime.process import print_error
from runtime.text import colours, run_named, terminal_width

_ALL = Path("checkpoints")
_CLEAR = "\x1b[H\x1b[J"


def main(arguments: Sequence[str] | None = None) -> int:
    """List or follow what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="runs.py", description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    where = "the folder with all runs (default: checkpoints)"
    add("folder", nargs="?", type=run_named, default=_ALL, help=where)
    follow = "follow a run until its end (default: list all again and again, until ctrl-C)"
    add("--watch", nargs="?", const=_ALL, type=run_named, metavar="RUN", help=follow)
    pause = "seconds between two looks at it (default: 2)"
    add("--interval", type=float, default=2.0, metavar="SECONDS", help=pause)
    add("--json", action="store_true", help="write JSON, for programs")
    table = "write the mean score over seeds, and its spread, with a column for each setting"
    add("--table", nargs="?", const="markdown", choices=list(WRITERS), help=table)
    options = parser.parse_args(arguments)
    try:
        if options.table is not None:
            write_table(options.folder, options.table)
        elif options.watch is not None:
            run = None if options.watch == _ALL else options.watch
            watch(options.folder, run, max(0.1, options.interval))
        else:
            show(_runs(options.folder), for_programs=options.json)
    except ConfigError as error:
        print_error(str(error))
        return exit_code(error) or 1
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    except BrokenPipeError:
        # Who reads has seen enough. Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _runs(folder: Path) -> list[Status]:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; runs.py FOLDER looks elsewhere")
    return list_runs(folder)


def show(runs: Sequence[Status], *, for_programs: bool) -> None:
    """Print the list of runs."""
    text = json.dumps(list(map(as_json, runs)), indent=1) if for_programs else _listed(runs)
    sys.stdout.write(f"{text}\n")


def _listed(runs: Sequence[Status]) -> str:
    if not runs:
        return "there are no runs yet"
    return as_text(runs, in_colour=colours(sys.stdout), width=terminal_width(sys.stdout))


def write_table(folder: Path, form: str) -> None:
    """Print the table over seeds of the runs in a folder, such as a sweep's."""
    lines = seed_table([read_run(one.folder) for one in _runs(folder)])
    if len(lines) == 1:
        raise ConfigError(f"{folder}: no run in it has ended and has a score")
    sys.stdout.write(WRITERS[form](lines))


def watch(folder: Path, run: Path | None, interval: float) -> None:
    """Show a run, which need not be there yet, until it is done, or the list of all without end;
    where no terminal shows it, only what has changed.
    """
    told, clear = "", _CLEAR if sys.stdout.isatty() else ""
    while True:
        one = read_status(run) if run else None
        text = screen(one, terminal_width(sys.stdout) or 200) if one else _listed(_runs(folder))
        if clear or text != told:
            sys.stdout.write(f"{clear}{text}\n")
            sys.stdout.flush()
        if one and one.state == "done":
            return
        told = text
        time.sleep(interval)
