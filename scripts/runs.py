"""List all runs, or follow one: python scripts/runs.py [FOLDER] [--watch [RUN]].

Shows the state of each run, its step, its best score, its last loss, the time that is left, and its
folder. What nothing tells is shown as `-`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from reports.comparison import seed_table
from reports.listing import Listed, as_text, frames, list_runs
from reports.reading import read_run
from runtime.errors import ConfigError, exit_code
from runtime.process import print_error
from runtime.text import colours
from sweeps.table import WRITERS

_CLEAR = "\x1b[H\x1b[J"


def main(arguments: Sequence[str] | None = None) -> int:
    """List or follow what the command line asks for; return the exit code."""
    summary = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(prog="runs.py", description=summary)
    where = "the folder with all runs (default: checkpoints)"
    parser.add_argument("folder", nargs="?", type=Path, default=Path("checkpoints"), help=where)
    follow = "follow a run until ctrl-C or its end (default: the one at work, or the last one)"
    parser.add_argument("--watch", nargs="?", const="", metavar="RUN", help=follow)
    pause = "seconds between two looks at it (default: 2)"
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help=pause)
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    table = "write the mean score over seeds, and its spread, with a column for each setting"
    forms = {"nargs": "?", "const": "markdown", "choices": list(WRITERS)}
    parser.add_argument("--table", **forms, help=table)
    options = parser.parse_args(arguments)
    try:
        if options.table is not None:
            write_table(options.folder, options.table)
        elif options.watch is not None:
            watch(_chosen(options.watch, options.folder), max(0.1, options.interval))
        else:
            show(_runs(options.folder), as_json=options.json)
    except ConfigError as error:
        print_error(str(error))
        return exit_code(error) or 1
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    except BrokenPipeError:
        # Who reads has seen enough. Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _runs(folder: Path) -> list[Listed]:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; runs.py FOLDER looks elsewhere")
    return list_runs(folder)


def _chosen(run: str, folder: Path) -> Path:
    """Return the folder to follow; that of a run which is named need not be there yet."""
    if run:
        return Path(run)
    runs = _runs(folder)
    if not runs:
        raise ConfigError(f"{folder}: holds no run to follow")
    return runs[0].folder


def show(runs: Sequence[Listed], *, as_json: bool) -> None:
    """Print the list of runs."""
    if as_json:
        sys.stdout.write(json.dumps([one.to_json() for one in runs], indent=1) + "\n")
    elif runs:
        sys.stdout.write(as_text(runs, in_colour=colours(sys.stdout)) + "\n")
    else:
        sys.stdout.write("there are no runs yet\n")


def write_table(folder: Path, form: str) -> None:
    """Print the table over seeds of the runs in a folder, such as a sweep's."""
    lines = seed_table([read_run(one.folder) for one in _runs(folder)])
    if len(lines) == 1:
        raise ConfigError(f"{folder}: no run in it has ended and has a score")
    sys.stdout.write(WRITERS[form](lines))


def watch(folder: Path, interval: float) -> None:
    """Show a run again and again; where no terminal shows it, a line each time it has moved."""
    told = None
    for one, screen in frames(folder, interval):
        if sys.stdout.isatty():
            sys.stdout.write(f"{_CLEAR}{screen}\n")
        elif told != (place := (one.status.state, one.status.step)):
            told = place
            sys.stdout.write(as_text([one], in_colour=False).split("\n")[1] + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
