"""Print the votes for some ARC test inputs as grids: python scripts/show_votes.py ARC_TASKS TASKS.

ARC_TASKS is the arc_tasks.json of an evaluation, TASKS the test_puzzles.json of its data set. Test
inputs that were solved come first.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apps.reports.terminal import grid_lines, side_by_side
from dataset.format.files import read_json
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_NUM_COLOURS, ARC_SIDE
from dataset.kinds.arc import ARC
from runtime.errors import EXIT_DATA, DatasetError
from runtime.text import colours, shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the command line asks for; return the exit code."""
    summary = str(__doc__).split("\n")[0]
    parser = argparse.ArgumentParser(prog="show_votes.py", description=summary)
    votes, tasks = "an evaluation's arc_tasks.json", "the data's test_puzzles.json"
    parser.add_argument("votes", type=Path, metavar="ARC_TASKS", help=votes)
    parser.add_argument("tasks", type=Path, metavar="TASKS", help=tasks)
    count, best = "test inputs to show (default: 3)", "answers of each (default: 2)"
    parser.add_argument("--count", type=int, default=3, metavar="N", help=count)
    parser.add_argument("--best", type=int, default=2, metavar="K", help=best)
    options = parser.parse_args(arguments)
    try:
        votes, tasks = read_json(options.votes), read_json(options.tasks)
        text = votes_as_text(votes, tasks, options.count, options.best)
    except DatasetError as error:
        sys.stderr.write(f"error: {shown(error, 10_000)}\n")
        return EXIT_DATA
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        told = f"{options.votes}: not the votes of an evaluation on {options.tasks}"
        sys.stderr.write(f"error: {told}\n")
        return EXIT_DATA
    sys.stdout.write(text)
    return 0


def votes_as_text(votes: Any, tasks: Any, count: int, best: int) -> str:
    """Return the first `count` test inputs as text, those that were solved first."""
    chosen = [
        (name, number, found)
        for name, inputs in votes.items()
        if name in tasks
        for number, found in enumerate(inputs)
    ]
    chosen.sort(key=lambda item: item[2]["solved_at"] is None)
    return "".join(
        describe(name, number, found, tasks[name]["test"][number], best)
        for name, number, found in chosen[:count]
    )


def describe(name: str, number: int, found: Any, pair: Any, best: int) -> str:
    """Return a test input, its known answer and its most voted answers side by side, as text."""
    columns = [("input", pair["input"])]
    if "output" in pair:
        columns.append(("right answer", pair["output"]))
    for grid in found["grids"][:best]:
        columns.append((f"{grid['votes']} of {found['votes']} votes", grid["grid"]))
    blocks = [(title, lines_of(grid)) for title, grid in columns]
    place = found["solved_at"]
    verdict = "not among the answers" if place is None else f"right answer at place {place}"
    return f"{shown(name)}, test input {number + 1}: {verdict}\n\n{side_by_side(blocks)}\n\n"


def lines_of(grid: Any) -> list[str]:
    """Write a grid of colours 0 to 9; `.` is colour 0. In a terminal each cell has its colour."""
    if grid and colours(sys.stdout) and np.max(grid) < ARC_NUM_COLOURS:
        tokens = np.array(grid) + ARC_FIRST_COLOUR_TOKEN
        return grid_lines(ARC.board(ARC_SIDE), tokens, colour=True)
    lines = [" ".join("." if colour == 0 else str(colour) for colour in row) for row in grid]
    return lines or ["(empty)"]
