"""The results of the programme: the table of docs/reliability.md, and the details in docs/log/."""

import itertools
import os
import platform
import subprocess
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

# Fault, and what must happen.
ROWS = {
    1: ("kill -9 at a random instant", "resumed until done, all state ends in the same bits"),
    2: ("kill -9 at every file operation of a save", "the last saved step, or the one being saved"),
    3: ("power loss", "no checkpoint reported as saved is lost, whatever the disk kept"),
    4: ("a random rank killed, restart on 1, 2 or 4", "same bits with `reduction=exact`"),
    5: ("SIGTERM or SIGINT to a rank, all ranks, the launcher", "all save the same step, in time"),
    6: ("a rank dies under torchrun `--max-restarts`", "resumes, same bits"),
    7: ("a rank hangs; a rank is only slow", "an error that names it, in time; no false alarm"),
    8: ("checkpoint bits flipped, files cut, missing, swapped", "noticed, and the file named"),
    9: ("the same for data; wrong types, shapes, offsets, tokens", "noticed before a model exists"),
    10: ("disk full or an I/O error at each operation", "old checkpoint intact, nothing left over"),
    11: ("NaN or Inf on one rank", "all stop at that step, no byte changed, nothing saved"),
    12: (
        "W&B, TensorBoard or MLflow refuses, hangs or raises",
        "training as without them, all metrics in the local file",
    ),
    13: ("read-only or unwritable paths", "refused before training, the path named"),
    14: ("mutated configurations", "none accepted; the right name offered"),
    15: ("malicious files", "nothing of them is executed"),
    16: ("names that lead out of the folder", "nothing written outside it"),
    17: ("malformed ARC JSON, Sudoku and maze CSV", "documented errors with file and row, no hang"),
    18: ("two runs in one folder", "one proceeds; after a kill the next takes over"),
    19: ("a build killed or out of space at each operation", "old or new, never mixed"),
    20: ("same seed under another hash seed and file order", "the same bytes"),
    21: ("evaluation on 1, 2 and 4 ranks", "identical predictions, exact counts"),
    22: ("kill -9 of a sweep, its jobs, or both", "started again, same bits, no job run twice"),
    23: (
        "two nodes and their link: away, lossy, slow, a node gone",
        "same bits, or its host named",
    ),
    24: (
        "a save beside training: killed, disk full, in a hurry, memory short",
        "the promises of a save that halts training",
    ),
}

_TARGET = Path(__file__).resolve().parents[3] / "docs" / "reliability.md"
_DETAILS = _TARGET.parent / "log" / "reliability.md"
_MEASURED = "## Measured\n"


@dataclass
class Row:
    """The results of a row's tests, and their counts by test."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """The row's result, with the sums of its tests' numbers."""
        numbers: Counter[str] = Counter()
        for _, counted in sorted(self.figures.items()):
            numbers.update(counted.get("numbers", {}))
        end = "failed" if self.failed else "passed" if self.passed else "not run"
        said = ", ".join(f"{number} {unit.replace('_', ' ')}" for unit, number in numbers.items())
        return f"{end}: {said}" if said else end

    @property
    def text(self) -> str:
        """All sentences, in the order of the tests' names."""
        told = (counted.get("sentences", ()) for _, counted in sorted(self.figures.items()))
        return "; ".join(itertools.chain(*told))


def write(
    rows: Mapping[int, Row], mutants: Mapping[str, tuple[int, bool]], form: str, seconds: float
) -> Path:
    """Write the table into the project's page and the details into the log; return the page's path.

    Args:
        rows: by number.
        mutants: by title, the row that must fail and whether it did.
        form: quick or long.
        seconds: wall time of the run.
    """
    command = "make chaos" if form == "long" else "make chaos-quick"
    machine = f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}"
    versions = f"{machine}, torch {version('torch')}"
    measured = (
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {_commit()}, {versions}; {seconds:.0f} s"
    )
    wrapper = textwrap.TextWrapper(100, subsequent_indent="  ")
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    table = ["| # | fault | what must happen | result |", "|---|---|---|---|"]
    details = ["# Reliability: details", "", measured, ""]
    for number, (fault, demand) in ROWS.items():
        row = rows.get(number, Row())
        table.append(f"| {number} | {fault} | {demand} | {row.result} |")
        if row.text:
            details += wrapper.wrap(f"- **Row {number}, {fault}:** {row.text}.")
    details += ["", "| protection taken out | row | result |", "|---|---|---|"]
    for row, title, caught in sorted((row, title, end) for title, (row, end) in mutants.items()):
        details.append(f"| {title} | {row} | {'caught' if caught else 'NOT CAUGHT'} |")
    caught = sum(end for _, end in mutants.values())
    proof = f"{caught} of {len(mutants)} mutants were caught ([details](log/reliability.md))."
    page = [_TARGET.read_text().partition(_MEASURED)[0] + _MEASURED, measured, proof, "", *table]
    for target, lines in ((_TARGET, page), (_DETAILS, details)):
        target.write_text("\n".join(lines) + "\n")
    return _TARGET


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty=, changed", "--exclude=*"]
    try:
        said = subprocess.check_output(command, cwd=_TARGET.parent, text=True, stderr=DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout"
    return f"commit {said.strip()}"
