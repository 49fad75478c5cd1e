"""Read a run's folder without trusting it: files may be missing, half written, damaged, huge or
malicious. Nothing is executed, no link is followed, and every unreadable file leaves a note.
"""

import csv
import json
import math
import os
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from apps.reports.status import SWEEP, Status, is_run, job_of, modified, read_status
from apps.reports.thinning import Curve
from apps.reports.values import MAX_VALUES, num_values, parsed
from evaluation.values import at, number, number_in
from runtime.files import open_regular, read_bounded
from runtime.text import shown
from training.checkpoint.published import PlainLoader
from training.checkpoint.run_folder import CONFIG_FILE
from training.config.schema import flatten
from training.tracking import METRICS_FILE, WARNINGS

RECORDS = "_records"
VOTES = "arc_tasks"

_MAX_LINE = 2**20
_MAX_CONFIG = 2**18
_MAX_JSON = 64 * 2**20
_MAX_ALL_JSON = 256 * 2**20
_MAX_SETTINGS = 1000
_MAX_CURVES = 200
_MAX_WARNINGS = 100
_MAX_RESULTS = 100
_MAX_VOTES = 3
_MAX_ROWS = 1_000_000
_MAX_COLUMNS = 1200  # Up to 1,024 for ACT steps, and some others.
_NOT_FINITE = ("nan", "inf", "-inf")  # As metrics.jsonl writes them.
_LARGEST = 1e15  # Largest value in the records of puzzles.
_NOT_RESULTS = ("submission", SWEEP, "results.json")  # Names of other JSON files start so.
_NAME = re.compile(r"(train|eval|diagnose|speed|memory)/[^\x00-\x1f<>&\"']{1,100}")


Records = dict[str, np.ndarray]
"""The records of an evaluation's puzzles: columns by name, float64 [rows], each with a finite
value; NaN: not known.
"""


@dataclass
class Result:
    """The JSON of an evaluation, and the files about its single puzzles.

    Attributes:
        name: of the JSON file.
        records: the table of puzzles.
        answers: see `evaluation.records.Answers`.
    """

    name: str
    content: dict[str, Any]
    records: Records | None = None
    answers: dict[str, Any] | None = None

    @property
    def step(self) -> int:
        """Optimizer steps of the weights, -1 if not known."""
        step = self.content.get("step")
        return step if type(step) is int else -1


@dataclass
class Run:
    """A run's folder.

    Attributes:
        settings: dotted path -> value as text.
        curves: metrics of training and of the evaluations during training, by name.
        warnings: (step, words) of the diagnostics.
        results: the evaluations by `evaluate.py`, the newest weights first.
        votes: (file, content) of the files with votes for ARC tasks.
        swept: the settings that a sweep chose for this run.
        notes: lines about files that could not be read.
    """

    folder: Path
    name: str
    status: Status
    settings: dict[str, str] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    warnings: list[tuple[int, str]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    votes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    swept: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self, name: str, missing: str = "") -> Iterator[None]:
        """Note errors of reading a file; a missing file is noted only if `missing` has words."""
        try:
            yield
        except FileNotFoundError:
            self.notes += [f"{name}: is missing, {missing}"] if missing else []
        except OSError as error:
            self.notes.append(f"{name}: {shown(error.strerror or error, 200)}")
        except RecursionError:
            self.notes.append(f"{name}: is nested too deep")
        except (ValueError, csv.Error, yaml.YAMLError) as error:
            kind = "YAML" if isinstance(error, yaml.YAMLError) else "JSON"
            self.notes.append(f"{name}: not {kind}: {shown(' '.join(str(error).split()), 200)}")


def lines_of(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines of a file with their ends, in bounded memory; None for a line over 1 MiB."""
    while line := file.readline(_MAX_LINE):
        if len(line) < _MAX_LINE or line.endswith(b"\n"):
            yield line
        else:
            while line and not line.endswith(b"\n"):
                line = file.readline(_MAX_LINE)
            yield None


def find_runs(folder: Path, levels: int = 4) -> list[Path]:
    """Return the folder itself if it is a run, else the runs up to `levels` below it, sorted by
    name. Links and runs inside of runs are skipped.
    """
    if is_run(folder):
        return [folder]
    entries = _entries(folder, "*") if levels else []
    # Not `Path.is_dir`, which raises an error without permission.
    inner = [path for path in entries if path.name[0] != "." and os.path.isdir(path)]
    return [run for path in inner for run in find_runs(path, levels - 1)]


def _entries(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of a folder that match a pattern, without links."""
    with suppress(OSError):
        return sorted(path for path in folder.glob(pattern) if not path.is_symlink())
    return []


def read_run(folder: Path, most: int = MAX_VALUES) -> Run:
    """Read a run's folder, at most `most` values of JSON. Errors become `notes`."""
    run = Run(folder, shown(folder.resolve().name, 100), read_status(folder))
    _read_config(run)
    _read_metrics(run)
    _read_results(run, most)
    values = at(job_of(folder), "values")
    if isinstance(values, dict):
        run.swept = {shown(key): shown(value) for key, value in list(values.items())[:50]}
    return run


def _read_config(run: Run) -> None:
    with run.noting(CONFIG_FILE, "so the settings are not known"):
        content = yaml.load(read_without_links(run.folder / CONFIG_FILE, _MAX_CONFIG), PlainLoader)
        pairs = flatten(content) if isinstance(content, dict) else iter(())
        run.settings = {shown(k, 100): _as_text(v) for k, v in islice(pairs, _MAX_SETTINGS)}
        if not run.settings:
            run.notes.append(f"{CONFIG_FILE}: holds no settings")


def _as_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)  # As the file writes it.
    return shown(value, 200)


def _read_metrics(run: Run) -> None:
    path, bad = run.folder / METRICS_FILE, 0
    missing = "" if (run.folder / SWEEP).exists() else "so there are no curves"
    with run.noting(METRICS_FILE, missing), opened_without_links(path) as file:
        for line in lines_of(file):
            record: Any = None
            with suppress(ValueError, RecursionError):
                record = None if line is None else json.loads(line)
            step = record.get("step") if isinstance(record, dict) else None
            if type(step) is int and 0 <= step < 2**53:
                _add_record(run, step, record)
            else:
                bad += 1
    if bad:
        what = "line that cannot be read was" if bad == 1 else "lines that cannot be read were"
        run.notes.append(f"{METRICS_FILE}: {bad:,} {what} left out")


def _add_record(run: Run, step: int, record: dict[str, Any]) -> None:
    for name, value in record.items():
        if not isinstance(value, float):
            value = _as_float(value)
        if value is None:
            continue
        curve = run.curves.get(name)
        if curve is None and len(run.curves) < _MAX_CURVES and _NAME.fullmatch(name):
            curve = run.curves[name] = Curve()
        if curve is not None:
            curve.add(step, value)
    warnings = record.get(WARNINGS)
    if isinstance(warnings, list):
        room = _MAX_WARNINGS - len(run.warnings)
        run.warnings += [(step, shown(words, 500)) for words in warnings[:room] if words]


def _as_float(value: Any) -> float | None:
    """Return a value as a number: NaN if it is not finite, None if it is no number."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and value in _NOT_FINITE):
        finite = number(value)
        return math.nan if finite is None else finite
    return None


class _Budget:
    """The bytes and values of JSON that may still be read."""

    def __init__(self, num_values: int) -> None:
        self._bytes, self._values = _MAX_ALL_JSON, num_values

    def read(self, path: Path) -> Any:
        text = read_without_links(path, min(_MAX_JSON, self._bytes))
        self._bytes -= len(text)
        content = parsed(text, self._values)
        self._values -= num_values(text)
        return content


def _read_results(run: Run, most: int) -> None:
    """Read the files of evaluations in the folder and one level below, except in checkpoints and
    hidden folders.
    """
    below = [p for p in _entries(run.folder, "*/") if not p.name.startswith(("step_", "."))]
    # Each evaluation during training has its own folder; only the newest is read.
    during = sorted((p for p in below if p.name.startswith("eval_step_")), key=modified)
    folders = [run.folder, *(p for p in below if p not in during), *during[-1:]]
    files = [path for folder in folders[:_MAX_RESULTS] for path in _entries(folder, "*.json")]
    budget = _Budget(most)
    for path in files[: 4 * _MAX_RESULTS]:
        name, content = shown(path.relative_to(run.folder), 100), None
        if path.stem.endswith(RECORDS) or path.name.startswith(_NOT_RESULTS):
            continue
        with run.noting(name):
            content = budget.read(path)
        if path.name.startswith(VOTES) and isinstance(content, dict):
            run.votes += [(name, content)] if len(run.votes) < _MAX_VOTES else []
        elif _is_result(content) and len(run.results) < _MAX_RESULTS:
            run.results.append(Result(name, content))
            _read_records(run, run.results[-1], path, budget)
    run.results.sort(key=lambda result: (-result.step, result.name))


def _is_result(content: object) -> bool:
    kinds = ("metrics", "chains", "searchers", "inside")
    return (
        isinstance(content, dict) and "checkpoint" in content and any(k in content for k in kinds)
    )


def _read_records(run: Run, result: Result, path: Path, budget: _Budget) -> None:
    """Read the files beside an evaluation's JSON."""
    table, answers = (path.with_name(f"{path.stem}{RECORDS}{end}") for end in (".csv", ".json"))
    with run.noting(shown(table.name)), opened_without_links(table) as file:
        result.records = _columns(file)
    with run.noting(shown(answers.name)):
        content = budget.read(answers)
        result.answers = content if isinstance(content, dict) else None


def rows_of(file: BinaryIO) -> Iterator[list[str]]:
    """Yield the cells of each line of a table, the header first. Lines that are too long, or have
    more or fewer cells than the header, are left out.
    """
    length = None
    for line in islice((line for line in lines_of(file) if line is not None), _MAX_ROWS + 1):
        text = line.decode(errors="replace").rstrip("\r\n")
        cells = next(csv.reader([text]), [])
        if length in (None, len(cells)):
            length = len(cells)
            yield cells[:_MAX_COLUMNS]


def _columns(file: BinaryIO) -> Records:
    """Read a table of numbers; any other cell becomes NaN, and columns of NaN are left out."""
    rows = rows_of(file)
    names = next(rows, [])
    columns = [array("d") for _ in names]
    for cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            value = number_in(cell)
            column.append(math.nan if value is None or abs(value) > _LARGEST else value)
    found = zip(names, map(np.asarray, columns), strict=True)
    return {name: values for name, values in found if np.isfinite(values).any()}


def read_without_links(path: Path, limit: int) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: the file is a link, has more than `limit` bytes, or cannot be read.
    """
    _require_no_link(path)
    return read_bounded(path, limit)


def opened_without_links(path: Path) -> BinaryIO:
    """Open a regular file; OSError if it is a link."""
    _require_no_link(path)
    return open_regular(path)


def _require_no_link(path: Path) -> None:
    # A link may lead to private files, and reports are made to be shared.
    if path.is_symlink():
        raise OSError("is a link, and is not followed")
