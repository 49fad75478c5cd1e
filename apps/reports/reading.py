"""What a run's folder holds, read without believing any of it: files may be missing, half written,
damaged, huge, or written by somebody who means harm. Nothing is executed, no link is followed, and
what cannot be read becomes a note.
"""

import csv
import io
import json
import math
import re
import reprlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from apps.reports.status import SWEEP, Status, is_run, modified, read_status, sweep_of
from apps.reports.thinning import Curve
from apps.reports.values import MAX_VALUES, at, num_values, number, number_in, parsed
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
_MAX_COLUMNS = 1200  # Of which 1,024 may be ACT steps.
_NOT_FINITE = ("nan", "inf", "-inf")  # As metrics.jsonl has them.
_LARGEST = 1e15  # Of what is known of a puzzle.
# Other JSON files in a run's folder.
_OTHERS = ("submission", SWEEP, "results.json")
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 4, 20, 100, 100
_NAME = re.compile(r"(train|eval|diagnose)/[^\x00-\x1f<>&\"']{1,100}")


@dataclass
class Records:
    """What is known of each puzzle of an evaluation: float64 [rows] by name, NaN where unknown."""

    columns: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())


@dataclass
class Result:
    """An evaluation's JSON, and beside it what is known of single puzzles.

    Attributes:
        name: of the file.
        content: as it is; see `at` and `number`.
        records: the table of its puzzles.
        answers: what its answers show, see `evaluation.records.Answers`.
    """

    name: str
    content: dict[str, Any]
    records: Records | None = None
    answers: dict[str, Any] | None = None

    @property
    def step(self) -> int:
        """Optimizer steps of its weights, -1 where that is not said."""
        step = self.content.get("step")
        return step if type(step) is int else -1


@dataclass
class Run:
    """A run's folder.

    Attributes:
        settings: by dotted path, as text.
        curves: of the training steps and of the evaluations among them, by name.
        warnings: (step, words) of the diagnosis.
        results: of `evaluate.py`, the newest weights first.
        votes: the ARC tasks of evaluations, by file: (where, content).
        swept: the settings that a sweep gave it.
        notes: what could not be read.
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


def lines_of(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines of a file, with their ends, in bounded memory: None for one over 1 MiB."""
    while line := file.readline(_MAX_LINE):
        if len(line) < _MAX_LINE or line.endswith(b"\n"):
            yield line
        else:
            while line and not line.endswith(b"\n"):
                line = file.readline(_MAX_LINE)
            yield None


def find_runs(folder: Path, depth: int = 4) -> list[Path]:
    """Return the runs in a folder, itself or below, in the order of their names; links are not
    followed, and nothing is looked for inside a run.
    """
    if is_run(folder):
        return [folder]
    if depth == 0:
        return []
    try:
        inner = sorted(path for path in folder.iterdir() if _is_folder(path))
    except OSError:
        return []
    return [run for path in inner if path.name[0] != "." for run in find_runs(path, depth - 1)]


def _is_folder(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir() and not path.is_symlink()
    return False


def read_run(folder: Path, most: int = MAX_VALUES) -> Run:
    """Read a run's folder, at most so many values of JSON. Whatever is wrong with it stands in its
    `notes`.
    """
    run = Run(folder, shown(folder.resolve().name, 100), read_status(folder))
    _read_config(run)
    _read_metrics(run)
    _read_results(run, most)
    _read_sweep(run)
    return run


def _read_config(run: Run) -> None:
    path = run.folder / CONFIG_FILE
    try:
        content = yaml.load(read_without_links(path, _MAX_CONFIG), PlainLoader)
        pairs = flatten(content) if isinstance(content, dict) else iter(())
        for key, value in islice(pairs, _MAX_SETTINGS):
            run.settings[shown(key, 100)] = _as_text(value)
        if not run.settings:
            run.notes.append(f"{path.name}: holds no settings")
    except FileNotFoundError:
        run.notes.append(f"{path.name}: is not there, so the settings are not known")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        run.notes.append(f"{path.name}: {_reason(error)}")


def _as_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)  # As it is written in the file.
    return shown(_SHORT.repr(value) if isinstance(value, list | tuple | set) else value, 200)


def _read_metrics(run: Run) -> None:
    path, bad = run.folder / METRICS_FILE, 0
    try:
        _require_no_link(path)
        with open_regular(path) as file:
            for line in lines_of(file):
                record = None if line is None else _record_in(line)
                step = None if record is None else record.get("step")
                if record is not None and type(step) is int and 0 <= step < 2**53:
                    _add_record(run, step, record)
                else:
                    bad += 1
    except FileNotFoundError:
        if not (run.folder / SWEEP).exists():
            run.notes.append(f"{path.name}: is not there, so there are no curves")
    except OSError as error:
        run.notes.append(f"{path.name}: {_reason(error)}")
    if bad:
        what = "line that cannot be read was" if bad == 1 else "lines that cannot be read were"
        run.notes.append(f"{path.name}: {bad:,} {what} left out")


def _record_in(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _add_record(run: Run, step: int, record: Mapping[str, Any]) -> None:
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
    told = record.get(WARNINGS)
    if isinstance(told, list):
        room = _MAX_WARNINGS - len(run.warnings)
        run.warnings += [(step, shown(words, 500)) for words in told[:room] if words]


def _as_float(value: Any) -> float | None:
    """Return a number of a record; NaN where it is not finite, None where it is no number."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and value in _NOT_FINITE):
        finite = number(value)
        return math.nan if finite is None else finite
    return None


def _read_results(run: Run, most: int) -> None:
    """Read what evaluations have written in the folder, and in folders of it that are neither
    checkpoints nor hidden.
    """
    below = [p for p in _entries(run.folder, "*/") if not p.name.startswith(("step_", "."))]
    # Each evaluation in the course of a run has a folder of its own: the newest counts.
    during = sorted((p for p in below if p.name.startswith("eval_step_")), key=modified)
    folders = [run.folder, *(p for p in below if p not in during), *during[-1:]]
    files = [path for folder in folders[:_MAX_RESULTS] for path in _entries(folder, "*.json")]
    left, values_left = _MAX_ALL_JSON, most
    for path in files[: 4 * _MAX_RESULTS]:
        name = str(path.relative_to(run.folder))
        if path.stem.endswith(RECORDS) or path.name.startswith(_OTHERS):
            continue
        try:
            text = read_without_links(path, min(_MAX_JSON, left))
            left -= len(text)
            content = parsed(text, values_left)
            values_left -= num_values(text)
        except (OSError, ValueError, RecursionError) as error:
            run.notes.append(f"{shown(name)}: {_reason(error)}")
            continue
        if path.name.startswith(VOTES) and isinstance(content, dict):
            if len(run.votes) < _MAX_VOTES:
                run.votes.append((shown(name, 100), content))
        elif _is_result(content) and len(run.results) < _MAX_RESULTS:
            result = Result(shown(name, 100), content)
            values_left -= _read_records(run, result, path, values_left)
            run.results.append(result)
    run.results.sort(key=lambda result: (-result.step, result.name))


def _entries(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in folder.glob(pattern) if not path.is_symlink())
    except OSError:
        return []


def _is_result(content: object) -> bool:
    kinds = ("metrics", "chains", "searchers")
    return (
        isinstance(content, dict) and "checkpoint" in content and any(k in content for k in kinds)
    )


def _read_records(run: Run, result: Result, path: Path, most: int) -> int:
    """Read what lies beside an evaluation; returns how many of `most` values of JSON that has."""
    table, answers = (path.with_name(f"{path.stem}{RECORDS}{end}") for end in (".csv", ".json"))
    try:
        _require_no_link(table)
        with open_regular(table) as file:
            result.records = Records(_columns(file))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, csv.Error) as error:
        run.notes.append(f"{shown(table.name)}: {_reason(error)}")
    try:
        text = read_without_links(answers, _MAX_JSON)
        content = parsed(text, most)
        result.answers = content if isinstance(content, dict) else None
        return num_values(text)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        run.notes.append(f"{shown(answers.name)}: {_reason(error)}")
    return 0


def _columns(file: BinaryIO) -> dict[str, np.ndarray]:
    """Read a table of numbers; what is none counts as unknown, and text columns as all unknown."""
    rows = (line for line in lines_of(file) if line is not None)
    header = _cells(next(rows, b""))
    names = header[:_MAX_COLUMNS]
    columns = [array("d") for _ in names]
    for line, _ in zip(rows, range(_MAX_ROWS), strict=False):
        cells = _cells(line)
        if len(cells) == len(header):
            for column, cell in zip(columns, cells, strict=False):
                column.append(_float(cell))
    arrays = (np.frombuffer(column) if column else np.zeros(0) for column in columns)
    return dict(zip(names, arrays, strict=True))


def _cells(line: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(line.decode(errors="replace").rstrip("\r\n"))), [])


def _float(text: str) -> float:
    value = number_in(text)
    return math.nan if value is None or abs(value) > _LARGEST else value


def _read_sweep(run: Run) -> None:
    """Note what a sweep gave the run, and what became of it there."""
    jobs = at(sweep_of(run.folder.parent), "jobs")
    values = at(jobs, run.folder.name, "values")
    if isinstance(values, dict):
        run.swept = {shown(key): shown(value) for key, value in list(values.items())[:50]}


def read_without_links(path: Path, limit: int) -> bytes:
    """Return what a file holds, at most `limit` bytes.

    Raises:
        OSError: it is a link, or larger, or cannot be read.
    """
    _require_no_link(path)
    return read_bounded(path, limit)


def _require_no_link(path: Path) -> None:
    # It may lead to what is nobody's business, and a page is there to be handed on.
    if path.is_symlink():
        raise OSError("is a link, and is not followed")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return shown(error.strerror or error, 200)
    if isinstance(error, RecursionError):
        return "is nested too deep"
    kind = "YAML" if isinstance(error, yaml.YAMLError) else "JSON"
    return f"no {kind}: {shown(' '.join(str(error).split()), 200)}"
