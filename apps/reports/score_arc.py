"""Score saved answers to ARC tasks: python scripts/score_arc.py PREDICTIONS.npz... TASKS.json
or a submission: python scripts/score_arc.py submission.json TASKS

The TASKS of a submission are a folder of task files, one file, or Kaggle's challenges with the
solutions beside them. Prints pass@1 and pass@2 with 95 % intervals, and for each task the attempts
that solve its test inputs (null: neither or unknown), as JSON. --page FILE.html shows the guesses
beside the truth.

Each PREDICTIONS.npz holds rows of augmented test inputs: puzzle_identifiers [N], inputs and preds
[N, S] (canvases of tokens) and q_halt_logits [N]. The votes of several files, for example one for
each rank, are counted together. TASKS.json holds `identifiers`, the name of each puzzle identifier,
and `test_puzzles`, the original tasks. Prints pass@K by test outputs and by whole tasks, and the
two-attempt submission, as JSON.
"""

import argparse
import json
import math
import sys
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from apps.reports.grids import ballot
from apps.reports.page import Page
from dataset.arc.tasks import content_readers
from dataset.command_line import integer
from dataset.format.files import read_json, read_json_object
from evaluation.evaluators.arc import (
    PuzzleNames,
    Tally,
    parse_tasks,
    score,
    submission,
    task_details,
)
from evaluation.headline import arc_interval
from evaluation.puzzles import parse_names
from runtime.errors import EXIT_DATA, DatasetError, disk_errors
from runtime.files import open_regular, write_atomically
from runtime.text import shown
from training.tracking import warn

FIELDS = ("puzzle_identifiers", "inputs", "preds", "q_halt_logits")
_MAX_BYTES = 2**35
_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DEFAULT_KS = (1, 2, 5, 10, 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score and print; return the exit code, 3 if a file cannot be used."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "predictions", nargs="+", type=Path, metavar="PREDICTIONS.npz|submission.json"
    )
    parser.add_argument("tasks", type=Path, metavar="TASKS")
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="of a submission's guesses")
    parser.add_argument("--submission", type=Path, metavar="FILE", help="write the submission")
    parser.add_argument(
        "--ks", nargs="+", type=integer(1), metavar="K", help="K of pass@K of predictions"
    )
    options = parser.parse_args(arguments)
    is_submission = [file.suffix for file in options.predictions] == [".json"]
    for name in ("submission", "ks") if is_submission else ("page",):
        if getattr(options, name) is not None:
            parser.error(f"--{name} is for {'predictions' if is_submission else 'a submission'}")
    try:
        if is_submission:
            found = score_submission(options.predictions[0], options.tasks, options.page)
        else:
            ks = options.ks or DEFAULT_KS
            found = run(options.predictions, options.tasks, options.submission, ks)
        sys.stdout.write(f"{json.dumps(found)}\n")
    except DatasetError as error:
        sys.stderr.write(f"{parser.prog}: {shown(error, 10_000)}\n")
        return EXIT_DATA
    return 0


def run(
    predictions: Sequence[Path], tasks_path: Path, submission_path: Path | None, ks: Sequence[int]
) -> dict[str, Any]:
    """Count the votes of all files and return the result."""
    content = read_json(tasks_path)
    if not isinstance(content, dict):
        raise DatasetError(f"{tasks_path}: expected an object with identifiers and test_puzzles")
    tasks = parse_tasks(content.get("test_puzzles"), f"{tasks_path}: test_puzzles")
    source = f"{tasks_path}: identifiers"
    names = PuzzleNames(parse_names(content.get("identifiers"), source), source)
    tally = Tally()
    for path in predictions:
        tally.add_rows(tasks, names, read_predictions(path))

    (scores, _), attempts = score(tasks, tally, ks), submission(tasks, tally)
    if submission_path is not None:
        with disk_errors(submission_path, DatasetError):
            write_atomically(submission_path, json.dumps(attempts) + "\n")
    if tally.num_unmatched:
        rows = f"{tally.num_unmatched} of {tally.num_predictions} predictions"
        sys.stderr.write(f"{rows} match no test input of their task and are not counted\n")
    return {
        "score_per_test_output": {f"ARC/pass@{k}": scores[f"pass@{k}"] for k in ks if scores},
        "score_per_task_all_outputs": {f"pass@{k}": scores[f"task_pass@{k}"] for k in ks if scores},
        "submission": attempts,
    }


def score_submission(path: Path, tasks_path: Path, page: Path | None = None) -> dict[str, Any]:
    """Return the scores of a submission, for the test inputs whose outputs are known. A damaged
    task is named and left out.
    """
    contents, tasks, problems = dict[str, Any](), dict[str, Any](), list[DatasetError]()
    for name, (file, read) in content_readers(tasks_path).items():
        try:
            contents[name] = read()
            tasks |= parse_tasks({name: contents[name]}, file)
        except DatasetError as error:
            problems.append(error)
    if problems and not tasks:
        raise problems[0]
    for problem in problems:
        warn(f"{problem}; this task is left out")
    solved = tasks_path.parent / tasks_path.name.replace("challenges", "solutions")
    if solved != tasks_path and solved.exists():
        for name, outputs in read_json_object(solved).items():
            if name not in tasks:
                continue
            number = len(tasks[name])
            if not isinstance(outputs, list) or len(outputs) != number:
                raise DatasetError(f"{solved}: task {name!r} has no list of {number} outputs")
            for pair, output in zip(contents[name]["test"], outputs, strict=True):
                pair["output"] = output
        tasks = parse_tasks({name: contents[name] for name in tasks}, solved)
    tally = Tally()
    tally.add_attempts(tasks, read_json_object(path), path)
    scores, number = score(tasks, tally, (1, 2))
    if not number:
        raise DatasetError(f"{tasks_path}: no test output is known")
    details = task_details(tasks, tally)
    if page is not None:
        with disk_errors(page, DatasetError):
            write_atomically(page, page_of(f"{path.stem}: guesses", details, contents))
    return {
        **{name: asdict(arc_interval(share, number)) for name, share in scores.items()},
        "num_tasks": number,
        "solved_by_attempt": {
            name: [one["solved_at"] for one in pairs] for name, pairs in details.items()
        },
    }


def page_of(title: str, details: Mapping[str, Any], originals: Mapping[str, Any]) -> str:
    """Return a page of the guesses beside the truth."""
    page, boards = Page(title, f"<h1>{escape(title)}</h1>"), []
    for name, pairs in details.items():
        for place, one in enumerate(pairs):
            for grid, label in zip(one["grids"], ("1st attempt", "2nd attempt"), strict=False):
                grid["label"] = label
            boards.append(ballot(name, place, one, originals))
    page.add("guesses", "Guesses", f'<div class="boards">{"".join(boards)}</div>')
    return page.to_html()


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of one file by name.

    Raises:
        DatasetError: the file cannot be read, or an array is missing or has a wrong shape or type.
    """
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # Damaged literals cause warnings.
            open_regular(path) as file,
            zipfile.ZipFile(file) as archive,
        ):
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_BYTES:
                raise DatasetError(f"{path}: more than {_MAX_BYTES} bytes when unpacked")
            arrays = {field: _read_array(archive, field, path) for field in FIELDS}
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # A damaged header may raise anything in numpy.
        reason = shown(str(error) or type(error).__name__, 200)
        raise DatasetError(f"{path}: cannot be read: {reason}") from None
    num_rows, cells = (*arrays["inputs"].shape, 0, 0)[:2]
    for field, array in arrays.items():
        shape = (num_rows, cells) if field in ("inputs", "preds") else (num_rows,)
        kinds, wanted = ("f", "floats") if field == "q_halt_logits" else ("iu", "integers")
        if array.shape != shape or array.dtype.kind not in kinds:
            found = f"{field} is {array.dtype} {list(array.shape)}"
            raise DatasetError(f"{path}: {found}, expected {wanted} {list(shape)}")
    if not cells or math.isqrt(cells) ** 2 != cells:
        raise DatasetError(f"{path}: {cells} cells in a row, but a canvas must be square")
    return arrays


def _read_array(archive: zipfile.ZipFile, field: str, path: Path) -> np.ndarray:
    """Read an array; DatasetError if its header claims more bytes than the archive has."""
    name = f"{field}.npy"
    if name not in archive.namelist():
        raise DatasetError(f"{path}: has no {field}")
    with archive.open(name) as member:
        version = npy.read_magic(member)
        if version not in _READ_HEADER:
            raise DatasetError(f"{path}: {field} has an unknown version of the .npy format")
        shape, _, dtype = _READ_HEADER[version](member)
        if math.prod(shape) * dtype.itemsize > archive.getinfo(name).file_size:
            raise DatasetError(f"{path}: {field} is smaller than its header says")
        member.seek(0)
        return npy.read_array(member, allow_pickle=False)
