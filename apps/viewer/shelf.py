"""The models, data sets and evaluations that the viewer finds.

The page refers to them by number, not by path.
"""

import csv
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import chain, islice
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from apps.reports.asking import kind_read_by
from apps.reports.html import percent
from apps.reports.reading import find_runs, rows_of
from apps.reports.solving import names_known_to
from apps.reports.status import modified
from dataset.format.schema import METADATA_NAME
from dataset.kinds.arc import ARC, as_known, task_of
from dataset.kinds.base import BoardLook, Kind, Puzzle
from dataset.kinds.sudoku import SUDOKU
from evaluation.job import output_folder
from evaluation.puzzles import identifiers_of, kind_of_data, puzzles_of
from evaluation.values import at as value_at
from evaluation.values import number_in
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, ConfigError, DatasetError, disk_errors
from runtime.files import read_bounded
from runtime.text import many
from training.checkpoint.published import CONFIG_FILE as PUBLISHED_CONFIG
from training.checkpoint.store import MANIFEST, list_steps
from training.checkpoint.trained_model import TrainedModel, find_trained_model

MISTAKES = (CheckpointError, ConfigError, DatasetError)
_RECORDS = "_records.csv"
_MOST_RUNS, _MOST_ROWS = 500, 200_000
# The figures of a puzzle in an evaluation that the page shows, with their words.
_FIGURES: dict[str, Callable[[float], str] | None] = {
    "exact_accuracy": None,
    "abstained": None,
    "accuracy": lambda value: f"{percent(value)} of the cells right",
    "q_halt": lambda value: f"{percent(value)} sure",
    "steps": lambda value: many(round(value), "step"),
    "clues": lambda value: many(round(value), "clue"),
}
_MOST_RECORD_BYTES, _MOST_RESULT_BYTES = 200_000_000, 50_000_000
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Model:
    """A checkpoint.

    Attributes:
        name: for people.
        path: a run's folder, or any other value of `checkpoint=`.
    """

    name: str
    path: Path

    @property
    def trained(self) -> TrainedModel:
        """Its newest good checkpoint."""
        return _trained(self.path, modified(self.path))

    @property
    def kind(self) -> Kind | None:
        return kind_read_by(self.trained)

    @property
    def size(self) -> int:
        """The number of rows of its puzzles; 9 if unknown."""
        facts = self.trained.facts
        return isqrt(facts.seq_len) if facts else 9

    @cached_property
    def identifiers(self) -> list[str] | None:
        """The names of the puzzles in its embedding; None: it has no embedding."""
        folders = self.trained.run.data_folders("train")
        return names_known_to(
            self.trained, lambda: PuzzleDataset(folders, "train", check_values=False)
        )

    def as_known(self, puzzle: Puzzle) -> Puzzle:
        """Return an ARC puzzle of any data set as the model knows its task.

        Raises:
            DatasetError: it has not seen the task.
        """
        if puzzle.kind is not ARC or self.identifiers is None:
            return puzzle
        if (known := as_known(puzzle, self.identifiers)) is None:
            raise DatasetError(f"the model has not seen {puzzle.name} in training")
        return known

    def known(self, data: "Data") -> set[str] | None:
        """Return the ARC tasks that it can solve; None: any puzzle."""
        return self._tasks if data.kind is ARC else None

    @cached_property
    def _tasks(self) -> set[str] | None:
        if self.identifiers is None:
            return None
        return {task for name in self.identifiers if (task := task_of(name))}

    def facts(self, shelf: "Shelf") -> dict[str, Any]:
        """Return the facts for the page."""
        trained, kind, size = self.trained, self.kind, self.size
        data, records = shelf.offered(self)
        readable = [shelf.data[n] for n in data if shelf.data[n].known_kind]
        tells = trained.facts is not None and kind is not None  # Published ones do not.
        if not tells and len({(each.kind, each.size) for each in readable}) == 1:
            kind, size = readable[0].kind, readable[0].size
        kind = kind or SUDOKU
        return {
            "data": data,
            "records": records,
            "kind": kind.name,
            "size": size,
            "any_size": trained.cells is None,
            "board": asdict(kind.board(size)),
            "train_step": trained.step,
            "steps": getattr(trained.run.arch, "halt_max_steps", None),
            "searches": trained.run.arch.searches,
        }


@lru_cache(_MOST_RUNS)
def _trained(path: Path, changed: float) -> TrainedModel:
    """Read a checkpoint again only if it has changed, since verifying it reads the whole file."""
    return find_trained_model(path, lambda message: None)


@dataclass(frozen=True)
class Data:
    """A split of a data set."""

    name: str
    folder: Path
    split: str

    @cached_property
    def dataset(self) -> PuzzleDataset:
        return PuzzleDataset([self.folder], self.split, check_values=False)

    @cached_property
    def kind(self) -> Kind:
        """The kind of its puzzles.

        Raises:
            DatasetError: it is unknown.
        """
        return kind_of_data(self.dataset)

    @property
    def known_kind(self) -> Kind | None:
        """The kind of its puzzles; None if it is unknown or the data cannot be read."""
        return _or_nothing(lambda: self.kind, None)

    @property
    def size(self) -> int:
        """The number of rows of its puzzles."""
        return isqrt(self.dataset.metadata.seq_len)

    @property
    def look(self) -> BoardLook:
        return self.kind.board(self.size)

    @cached_property
    def starts(self) -> dict[str, int]:
        """The first row of each set, counted over all sets; under "" the number of all rows."""
        sizes = [arrays.num_examples for arrays in self.dataset.sets.values()]
        return dict(zip([*self.dataset.sets, ""], [0, *np.cumsum(sizes).tolist()], strict=True))

    def puzzles(self, rows: Sequence[int]) -> list[Puzzle]:
        """Return the puzzles of rows, counted over all sets.

        Raises:
            DatasetError: a row does not exist.
        """
        number = self.starts[""]
        for row in rows:
            if not 0 <= row < number:
                raise DatasetError(f"{self.folder}: has {number} puzzles, but no number {row}")
        ordered = sorted(set(rows))
        found = dict(zip(ordered, puzzles_of(self.dataset, self.kind, ordered), strict=True))
        return [found[row] for row in rows]

    def demonstrations(self, own: Puzzle) -> list[Puzzle]:
        """Return up to 10 demonstrations of the ARC task of a puzzle: the other pairs of its
        training data, without augmentations; for other kinds an empty list.
        """
        if self.kind is not ARC or not (self.folder / "train" / METADATA_NAME).is_file():
            return []
        train = _training_data(self.folder)
        tasks = {row: task_of(train.names[row]) for row in train.listed.tolist()}
        pairs = train.puzzles([row for row, task in tasks.items() if task == task_of(own.name)])
        asked = ARC.seen(own, own.question)
        others = [one for one in pairs if not np.array_equal(ARC.seen(one, one.question), asked)]
        return [one for one in others if one.target is not None][:10]

    @cached_property
    def names(self) -> list[str]:
        """The names of ARC puzzles, by row; empty for other kinds."""
        if self.kind is not ARC:
            return []
        known, sets = identifiers_of(self.dataset), self.dataset.sets.values()
        of_sets = (np.repeat(one.puzzle_identifiers, np.diff(one.puzzle_indices)) for one in sets)
        return [known[identifier] for of_set in of_sets for identifier in of_set.tolist()]

    @cached_property
    def listed(self) -> np.ndarray:
        """The rows of the original puzzles (the first of each group), counted over all sets, int64;
        at most 200,000.
        """
        found = []
        for set_name, arrays in self.dataset.sets.items():
            is_first = np.zeros(len(arrays.puzzle_indices) - 1, bool)
            is_first[arrays.group_indices[:-1]] = True
            rows = np.flatnonzero(np.repeat(is_first, np.diff(arrays.puzzle_indices)))
            found.append(rows + self.starts[set_name])
        return np.concatenate(found)[:_MOST_ROWS]

    @cached_property
    def ratings(self) -> np.ndarray:
        """The difficulty of each row; NaN: unknown."""
        rated = [(one.example_ratings(), one.num_examples) for one in self.dataset.sets.values()]
        parts = [np.full(n, np.nan) if ratings is None else ratings for ratings, n in rated]
        return np.concatenate(parts)

    def rows(self, text: str = "", known: Collection[str] | None = None) -> np.ndarray:
        """Return the rows to list, int64. ARC puzzles are listed if their name contains `text`, and
        their task is among `known` if that is given.
        """
        if not self.names:
            return self.listed
        names = [self.names[row] for row in self.listed]
        fits = [
            text in name.lower() and (known is None or task_of(name) in known) for name in names
        ]
        return self.listed[np.array(fits, bool)]

    def described(self, row: int, puzzle: Puzzle) -> str:
        """Describe a row of the list in one line."""
        kind, look, rating = puzzle.kind, self.look, self.ratings[row]
        words = [label(puzzle)]
        if look.cells == "written":
            may_be_open = np.array(look.empty or [look.open]) == look.open
            clues = may_be_open & (puzzle.tokens != look.open)
            words.append(f"{int(clues.sum())} clues")
        if kind is ARC:
            words.append(f"{kind.seen(puzzle, puzzle.question).size} cells of the input")
        if np.isfinite(rating):
            rated = f"{rating:g}"
            words.append(f"rating {rated}" if kind.rating == "rating" else f"{rated} {kind.rating}")
        return ", ".join(words)


def label(puzzle: Puzzle) -> str:
    """Return a label for a puzzle of a data set, for ARC with its task."""
    task = f"task {task_of(puzzle.name)}, " if puzzle.name else ""
    return f"{task}{puzzle.place}"


@lru_cache(8)
def _training_data(folder: Path) -> Data:
    return Data("", folder, "train")


@dataclass(frozen=True)
class Records:
    """The records of an evaluation, puzzle by puzzle, and its data."""

    model: Path
    name: str
    path: Path
    data: Data

    @cached_property
    def lines(self) -> dict[int, dict[str, float]]:
        """The finite figures of all puzzles with labels, by row, counted over all sets.

        Raises:
            DatasetError: the file cannot be read, or has no records.
        """
        found = {}
        with disk_errors(self.path, DatasetError):
            rows = rows_of(BytesIO(read_bounded(self.path, _MOST_RECORD_BYTES)))
        try:
            names = next(rows, [])
            for cells in rows:
                line = dict(zip(names, cells, strict=True))
                # Of a search `solved`, of puzzles with several right answers `valid`.
                right = next(name for name in ("solved", "valid", "exact_accuracy") if name in line)
                line["exact_accuracy"] = line[right]
                row = self.data.starts[line.pop("set")] + int(line.pop("index"))
                values = {name: number_in(line[name]) for name in _FIGURES if name in line}
                if values["exact_accuracy"] is not None:
                    found[row] = {n: value for n, value in values.items() if value is not None}
        except (KeyError, StopIteration, ValueError, csv.Error):
            raise DatasetError(f"{self.path}: not the records of an evaluation") from None
        return found

    def rows(self, *, wrong_only: bool) -> np.ndarray:
        """Return the rows of all or only the wrong answers, the surest first; without augmentations
        of ARC tasks.
        """
        listed = set(self.data.listed.tolist()) if self.data.kind is ARC else self.lines
        rows = [
            row
            for row, line in self.lines.items()
            if row in listed and not (wrong_only and line["exact_accuracy"] == 1)
        ]
        return np.array(sorted(rows, key=lambda row: -self.lines[row].get("q_halt", 0.0)), int)

    def described(self, row: int, puzzle: Puzzle) -> str:
        """Describe the result for a puzzle in one line."""
        figures = self.lines[row]
        if self.data.look.cells != "written" or self.data.look.empty:
            figures = {name: value for name, value in figures.items() if name != "clues"}
        wrong = "no answer" if figures.get("abstained") == 1 else "wrong"
        words = ["right" if figures["exact_accuracy"] == 1 else wrong]
        words += [say(figures[name]) for name, say in _FIGURES.items() if say and name in figures]
        return f"{label(puzzle)}: {', '.join(words)}"


@dataclass(frozen=True)
class Shelf:
    """All models, data sets and records that were found."""

    models: list[Model]
    data: list[Data]
    records: list[Records]

    def offered(self, model: Model) -> tuple[list[int], list[int]]:
        """Return the numbers of the data sets that a model reads, its own first, and of its
        evaluations. A broken data set comes last for every model.
        """
        kind, cells, run = model.kind, model.trained.cells, model.trained.run
        folders = [*run.data_folders("test"), *run.data_folders("train")]
        own = [Path(folder).resolve() for folder in folders]

        def rank(data: Data) -> int:
            if data.known_kind is None:
                return len(own) + 1
            is_size = cells in (None, data.dataset.metadata.seq_len)
            if not is_size or kind not in (None, data.kind):
                return -1
            folder = data.folder.resolve()
            return own.index(folder) if folder in own else len(own)

        ranks = [rank(data) for data in self.data]
        sets = sorted((n for n, each in enumerate(ranks) if each >= 0), key=ranks.__getitem__)
        return sets, [n for n, each in enumerate(self.records) if each.model == model.path]

    def with_more(self, new: "Shelf") -> "Shelf":
        """Add new entries at the end, so that the numbers on open pages stay valid."""
        return Shelf(
            _both(self.models, new.models),
            _both(self.data, new.data),
            _both(self.records, new.records),
        )


def _both(known: list[_Found], found: list[_Found]) -> list[_Found]:
    return list(({each: each for each in known} | {each: each for each in found}).values())


def at(found: Sequence[_Found], number: int, what: str) -> _Found:
    """Return the entry with a number; raise ConfigError if there is none."""
    if number >= len(found):
        raise ConfigError(f"there is no {what} with number {number}")
    return found[number]


def find(checkpoints: list[Path], data: list[Path]) -> Shelf:
    """Look for models and data sets in these folders, and for the records of the models."""
    models = [Model(str(path), path) for path in chain.from_iterable(map(_runs, checkpoints))]
    tested = {
        model: list(map(Path, _or_nothing(lambda m=model: m.trained.run.data_folders("test"), [])))
        for model in models
    }
    below = (found for folder in data for found in sorted(folder.rglob(f"*/{METADATA_NAME}")))
    folders = [found.parent.parent for found in below]
    folders += [folder for own in tested.values() for folder in own if folder.is_dir()]
    known: dict[Path, Path] = {}
    for folder in folders:
        known.setdefault(folder.resolve(), folder)
    sets = [
        Data(f"{folder} ({split})", folder, split)
        for folder in known.values()
        for split in ("selection", "test", "train")
        if (folder / split / METADATA_NAME).is_file()
    ]
    records = []
    for model in models:
        own = [(folder / "test").resolve() for folder in tested[model]]
        place, written = _or_nothing(lambda m=model: _written(m), (model.path, []))
        for path in written:
            measured = _measured(path, own)
            fitting = [one for one in sets if [(one.folder / one.split).resolve()] == measured]
            name = str(path.relative_to(place)).removesuffix(_RECORDS)
            records += [Records(model.path, name, path, one) for one in fitting]
    return Shelf(models, sets, records)


def _written(model: Model) -> tuple[Path, list[Path]]:
    """Return the folder where evaluations of a model are written, and their records in it."""
    weights = model.trained.weights
    folder = output_folder(model.path, weights)
    records = sorted([*folder.glob(f"*{_RECORDS}"), *folder.glob(f"*/*{_RECORDS}")])
    if weights == model.path:  # One checkpoint of several in this folder.
        records = [path for path in records if path.name.startswith(f"eval_{weights.name}_")]
    return folder, records


def _measured(records: Path, otherwise: list[Path]) -> list[Path]:
    """Return the data folders in the result beside a file of records; by default `otherwise`."""
    result = records.with_name(f"{records.name.removesuffix(_RECORDS)}.json")
    with suppress(OSError, ValueError, TypeError, RecursionError):
        data = value_at(json.loads(read_bounded(result, _MOST_RESULT_BYTES)), "data")
        return [Path(folder).resolve() for folder in data]
    return otherwise


def _runs(path: Path) -> list[Path]:
    """Return the runs in a folder and below it; a run or a file is returned itself."""
    if not path.is_dir() or (path / MANIFEST).exists():
        return [path]
    published = (found.parent for found in path.rglob(PUBLISHED_CONFIG))
    own = (found for found in find_runs(path) if list_steps(found))
    return list(islice(sorted({*published, *own}), _MOST_RUNS))


def _or_nothing(look: Callable[[], _Found], otherwise: _Found) -> _Found:
    """Return the result of `look`, or `otherwise` if it fails; the page shows the error later."""
    try:
        return look()
    except MISTAKES:
        return otherwise
