"""Write a report of one or more runs: python scripts/report.py RUN [RUN ...].

RUN is the folder of a run or a sweep, or any folder with runs below it. The report is one
self-contained page: report.html in the folder of a single run or sweep, else in the current folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from apps.reports.writing import write_report
from dataset.command_line import run_tool
from runtime.process import end_with_parent
from runtime.text import run_named


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report for a command line, and return the exit code."""
    summary = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(prog="report.py", description=summary)
    folders, output = "folders of runs or sweeps", "the file to write (default: report.html)"
    parser.add_argument("runs", nargs="+", type=run_named, metavar="RUN", help=folders)
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help=output)
    options = parser.parse_args(arguments)
    end_with_parent()

    def write() -> str:
        path, size = write_report(options.runs, options.output)
        return f"written: {path} ({size / 1e6:.1f} MB)\n"

    return run_tool(write, "report.py")


if __name__ == "__main__":
    sys.exit(main())
