"""What the viewer offers: checkpoints, data sets and evaluations that it finds.

The page names them by their numbers, never by paths.
"""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, islice
from math import isqrt
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from apps.reports.asking import kind_read_by
from apps.reports.status import modified
from apps.reports.values import at, number_in
from dataset.arc.augmentation import parse_identifier
from dataset.arc.tasks import crop_grids
from dataset.format.layout import METADATA_NAME
from dataset.kinds.arc import ARC
from dataset.kinds.base import Kind, Puzzle
from dataset.kinds.board import BoardLook
from evaluation.puzzles import identifiers_of, kind_of_data, puzzles_of
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, ConfigError, DatasetError, disk_errors
from runtime.files import read_bounded
from training.checkpoint.published import CONFIG_FILE as PUBLISHED_CONFIG
from training.checkpoint.run_folder import CONFIG_FILE
from training.checkpoint.store import MANIFEST
from training.checkpoint.trained_model import TrainedModel, find_trained_model

MISTAKES = (CheckpointError, ConfigError, DatasetError)
_RECORDS = "_records.csv"
_MOST_RUNS, _MOST_ROWS = 500, 200_000
_MOST_RECORD_BYTES, _MOST_RESULT_BYTES = 200_000_000, 50_000_000
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Model:
    """A checkpoint.

    Attributes:
        name: for people.
        path: a run's folder, or what `checkpoint=` takes.
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
        """Rows of its puzzles; where nothing tells, those of most Sudokus."""
        facts = self.trained.facts
        return isqrt(facts.seq_len) if facts else 9

    @property
    def folders(self) -> list[Path]:
        """The folders of the data that it is tested on and was trained on."""
        run = self.trained.run
        return [Path(path) for split in ("test", "train") for path in run.data_folders(split)]

    @cached_property
    def identifiers(self) -> list[str] | None:
        """Names of the puzzles that its embedding knows; None: it has none."""
        run = self.trained.run
        if not run.arch.puzzle_emb_ndim:
            return None
        folders = run.data_folders("train")
        return identifiers_of(PuzzleDataset(folders, "train", check_values=False))

    def as_known(self, puzzle: Puzzle) -> Puzzle:
        """Return an ARC puzzle of any data set with the identifier by which the model knows it.

        Raises:
            DatasetError: it does not.
        """
        if puzzle.kind is not ARC or self.identifiers is None:
            return puzzle
        if puzzle.name not in self.identifiers:
            raise DatasetError(f"the model has not seen {puzzle.name} in training")
        return replace(puzzle, identifier=self.identifiers.index(puzzle.name))

    def known(self, data: "Data") -> set[str] | None:
        """Return the names of the ARC puzzles that it can be asked about; None: any puzzle."""
        if data.kind is not ARC or self.identifiers is None:
            return None
        return set(self.identifiers)


@lru_cache(_MOST_RUNS)
def _trained(path: Path, changed: float) -> TrainedModel:
    """Look again only where a checkpoint has come or gone: all of it is read, to be verified."""
    return find_trained_model(path, lambda message: None)


class Filter(NamedTuple):
    """Which puzzles are wanted: words in the name, and bounds of figures by name."""

    text: str = ""
    bounds: Mapping[str, tuple[float, float]] = {}


@dataclass(frozen=True)
class Data:
    """A split of a data set, as a shelf of puzzles."""

    name: str
    folder: Path
    split: str

    @cached_property
    def dataset(self) -> PuzzleDataset:
        return PuzzleDataset([self.folder], self.split, check_values=False)

    @cached_property
    def kind(self) -> Kind:
        """What kind of puzzles they are.

        Raises:
            DatasetError: none that is known.
        """
        return kind_of_data(self.dataset)

    @property
    def look(self) -> BoardLook:
        return self.kind.board(isqrt(self.dataset.metadata.seq_len))

    @property
    def num_puzzles(self) -> int:
        return sum(arrays.num_examples for arrays in self.dataset.sets.values())

    def puzzles(self, rows: Sequence[int]) -> list[Puzzle]:
        """Return the puzzles of rows, counted over all sets.

        Raises:
            DatasetError: there is no such row.
        """
        for row in rows:
            if not 0 <= row < self.num_puzzles:
                raise DatasetError(
                    f"{self.folder}: has {self.num_puzzles} puzzles, none with number {row}"
                )
        ordered = sorted(set(rows))
        found = dict(zip(ordered, puzzles_of(self.dataset, self.kind, ordered), strict=True))
        return [found[row] for row in rows]

    def demonstrations(self, row: int) -> list[Puzzle]:
        """Return up to 10 pairs that show what an ARC task asks for: the pairs of its training
        data that are not the row's own; of other kinds none.
        """
        if self.kind is not ARC or not (self.folder / "train" / METADATA_NAME).is_file():
            return []
        train, (own,) = _training_data(self.folder), self.puzzles([row])
        pairs = train.puzzles(train.rows_of(_task_of(own.name)))
        others = [one for one in pairs if (one.question != own.question).any()]
        return [one for one in others if one.target is not None][:10]

    def rows_of(self, task: str) -> list[int]:
        """Return the rows of an ARC task as it is, without augmentations."""
        rows, before = list[int](), 0
        for arrays in self.dataset.sets.values():
            for puzzle in arrays.group_indices[:-1].tolist():
                if _task_of(self.identifiers[arrays.puzzle_identifiers[puzzle]]) == task:
                    first, end = arrays.puzzle_indices[puzzle : puzzle + 2].tolist()
                    rows += range(before + first, before + end)
            before += arrays.num_examples
        return rows

    @cached_property
    def identifiers(self) -> list[str]:
        """The name of each puzzle identifier."""
        return identifiers_of(self.dataset)

    @cached_property
    def names(self) -> list[str]:
        """The names of ARC puzzles, by row; of other kinds none."""
        if self.kind is not ARC:
            return []
        names = []
        for arrays in self.dataset.sets.values():
            counts = np.diff(arrays.puzzle_indices)
            for identifier, count in zip(arrays.puzzle_identifiers, counts, strict=True):
                names += [self.identifiers[identifier]] * int(count)
        return names

    @cached_property
    def _listed(self) -> dict[str, np.ndarray]:
        """Of each set the rows that are listed, at most 200,000 in all: those of the original
        puzzles, each the first of its group; augmentations are not listed.
        """
        listed, left = {}, _MOST_ROWS
        for set_name, arrays in self.dataset.sets.items():
            is_listed = np.zeros(len(arrays.puzzle_indices) - 1, bool)
            is_listed[arrays.group_indices[:-1]] = True
            rows = np.flatnonzero(np.repeat(is_listed, np.diff(arrays.puzzle_indices)))
            listed[set_name] = rows[:left]
            left -= len(listed[set_name])
        return listed

    @cached_property
    def listed(self) -> np.ndarray:
        """The rows that are listed, counted over all sets, int64."""
        sizes = [arrays.num_examples for arrays in self.dataset.sets.values()]
        starts = np.cumsum([0, *sizes[:-1]])
        rows = [rows + start for rows, start in zip(self._listed.values(), starts, strict=True)]
        return np.concatenate(rows)

    @cached_property
    def figures(self) -> dict[str, np.ndarray]:
        """What tells easy puzzles from hard ones, of the rows that are listed."""
        parts: dict[str, list[np.ndarray]] = {}
        for set_name, rows in self._listed.items():
            ids = np.zeros(len(rows), np.int32)
            inputs = self.dataset.read(set_name, rows, ids).inputs
            if self.look.cells == "written":
                parts.setdefault("clues", []).append((inputs != self.look.open).sum(1))
            if self.kind is ARC:
                cells = [grid.size for grid in crop_grids(inputs)]
                parts.setdefault("cells of the input", []).append(np.array(cells))
            if (ratings := self.dataset.sets[set_name].example_ratings()) is not None:
                parts.setdefault(self.kind.rating, []).append(ratings[rows])
        return {name: np.concatenate(values) for name, values in parts.items()}

    def rows(self, wanted: Filter, known: Collection[str] | None = None) -> np.ndarray:
        """Return the rows that a filter lets through, int64; with `known` those of ARC puzzles
        with such names only.
        """
        chosen = np.ones(len(self.listed), bool)
        for name, (low, high) in wanted.bounds.items():
            if name in self.figures:
                chosen &= (self.figures[name] >= low) & (self.figures[name] <= high)
        if wanted.text and self.names:
            text = wanted.text.lower()
            chosen &= np.array([text in self.names[row].lower() for row in self.listed], bool)
        if known is not None and self.names:
            chosen &= np.array([self.names[row] in known for row in self.listed], bool)
        return self.listed[chosen]

    def label(self, row: int) -> str:
        """Return a puzzle's number in its set, as records have it, with the set's name where there
        are several; of an ARC puzzle its task, too.
        """
        sizes = [arrays.num_examples for arrays in self.dataset.sets.values()]
        ends = np.cumsum(sizes)
        place = int(np.searchsorted(ends, row, side="right"))
        of_set = f"{list(self.dataset.sets)[place]}, " if len(sizes) > 1 else ""
        task = f"task {_task_of(self.names[row])}, " if self.names else ""
        return f"{task}{of_set}puzzle {row - ends[place] + sizes[place]:,}"

    def described(self, row: int) -> str:
        """Return a row that is listed in a line."""
        place = int(np.searchsorted(self.listed, row))
        figures = ((name, values[place]) for name, values in self.figures.items())
        said = (f"{n} {v}" if n == "rating" else f"{v} {n}" for n, v in figures)
        return ", ".join([self.label(row), *said])


@lru_cache(8)
def _training_data(folder: Path) -> Data:
    return Data("", folder, "train")


def _task_of(name: str) -> str:
    return parse_identifier(name)[0]


class Record(NamedTuple):
    """A line of an evaluation's records: its puzzle's row, counted over all sets; figures."""

    row: int
    figures: dict[str, float]


@dataclass(frozen=True)
class Records:
    """The records of a model's evaluation, puzzle by puzzle, and the data that it measured."""

    model: Path
    name: str
    path: Path
    data: Data

    @cached_property
    def lines(self) -> list[Record]:
        """All puzzles that have labels.

        Raises:
            DatasetError: the file is too large, or not one of records.
        """
        first, counted = {}, 0
        for name, arrays in self.data.dataset.sets.items():
            first[name] = counted
            counted += arrays.num_examples
        with disk_errors(self.path, DatasetError):
            text = read_bounded(self.path, _MOST_RECORD_BYTES).decode(errors="replace")
        try:
            return [
                Record(first[line["set"]] + int(line["index"]), figures)
                for line in csv.DictReader(text.splitlines())
                if "exact_accuracy" in (figures := _numbers(line))
            ]
        except (KeyError, TypeError, ValueError, csv.Error):
            raise DatasetError(f"{self.path}: not the records of an evaluation") from None

    @cached_property
    def figures(self) -> dict[str, np.ndarray]:
        """The figures of all lines that have them."""
        names = dict.fromkeys(name for line in self.lines for name in line.figures)
        having = {n: [line.figures[n] for line in self.lines if n in line.figures] for n in names}
        return {name: np.array(values) for name, values in having.items()}

    def chosen(self, wanted: Filter, *, wrong_only: bool) -> list[Record]:
        """Return what a filter lets through, the surest mistakes first; of ARC tasks no
        augmentations.
        """
        is_listed = set(self.data.listed.tolist()) if self.data.kind is ARC else None
        lines = [
            line
            for line in self.lines
            if (is_listed is None or line.row in is_listed)
            and not (wrong_only and line.figures["exact_accuracy"] == 1)
            and all(
                low <= line.figures.get(name, low) <= high
                for name, (low, high) in wanted.bounds.items()
            )
        ]
        return sorted(lines, key=lambda line: -line.figures.get("q_halt", 0.0))


def _numbers(line: Mapping[str, str | None]) -> dict[str, float]:
    """Return the figures of a line; what is no finite number is left out."""
    others = ("set", "index")
    told = {n: t for n, t in line.items() if t and n and not n.startswith("right_after_")}
    found = {name: number_in(text) for name, text in told.items() if name not in others}
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Shelf:
    """All that was found."""

    models: list[Model]
    data: list[Data]
    records: list[Records]

    def offered(self, model: Model) -> tuple[list[int], list[int]]:
        """Return the numbers of the data sets that a model reads, its own first, and those of its
        evaluations; a broken data set is offered to each, at the end.
        """
        own = [folder.resolve() for folder in model.folders]
        kind, facts = model.kind, model.trained.facts

        def rank(data: Data) -> int:
            if _or_nothing(lambda: data.kind, None) is None:
                return len(own) + 1
            is_size = facts is None or facts.seq_len == data.dataset.metadata.seq_len
            if not is_size or kind not in (None, data.kind):
                return -1
            folder = data.folder.resolve()
            return own.index(folder) if folder in own else len(own)

        ranks = [rank(data) for data in self.data]
        sets = sorted((n for n, each in enumerate(ranks) if each >= 0), key=ranks.__getitem__)
        return sets, [n for n, each in enumerate(self.records) if each.model == model.path]

    def with_more(self, new: "Shelf") -> "Shelf":
        """Add what is new, behind the rest: it keeps its numbers, as pages may be open."""
        return Shelf(
            _both(self.models, new.models),
            _both(self.data, new.data),
            _both(self.records, new.records),
        )


def _both(known: list[_Found], found: list[_Found]) -> list[_Found]:
    return list(({each: each for each in known} | {each: each for each in found}).values())


def find(checkpoints: list[Path], data: list[Path]) -> Shelf:
    """Look for checkpoints in folders, or take the ones that they name; for data sets too."""
    models = [Model(str(path), path) for path in chain.from_iterable(map(_runs, checkpoints))]
    known = {found.resolve(): found for folder in data for found in _data_folders(folder)}
    for model in models:
        for folder in _or_nothing(lambda model=model: model.trained.run.data_folders("test"), []):
            path = Path(folder)
            if path.is_dir():
                known.setdefault(path.resolve(), path)
    sets = [
        Data(f"{folder} ({metadata.parent.name})", folder, metadata.parent.name)
        for folder in known.values()
        for metadata in sorted(folder.glob(f"*/{METADATA_NAME}"))
        if metadata.parent.name in ("test", "train", "selection")
    ]
    records = []
    for model in models:
        folders = _or_nothing(lambda model=model: model.trained.run.data_folders("test"), [])
        own = [Path(folder, "test").resolve() for folder in folders]
        written = [*model.path.glob(f"*{_RECORDS}"), *model.path.glob(f"*/*{_RECORDS}")]
        for path in sorted(written):
            measured = _measured(path, own)
            fitting = [one for one in sets if [(one.folder / one.split).resolve()] == measured]
            name = str(path.relative_to(model.path)).removesuffix(_RECORDS)
            records += [Records(model.path, name, path, one) for one in fitting]
    return Shelf(models, sets, records)


def _measured(records: Path, otherwise: list[Path]) -> list[Path]:
    """Return what an evaluation with records measured, as its result beside them says."""
    result = records.with_name(f"{records.name.removesuffix(_RECORDS)}.json")
    with suppress(OSError, ValueError, TypeError, RecursionError):
        data = at(json.loads(read_bounded(result, _MOST_RESULT_BYTES)), "data")
        return [Path(folder).resolve() for folder in data]
    return otherwise


def _runs(path: Path) -> Iterator[Path]:
    """Yield the runs in a folder and below it; a run's folder, or what is no folder, is itself."""
    if not path.is_dir() or _is_run(path) or (path / MANIFEST).exists():
        yield path
        return
    below = (found.parent for found in path.rglob("*.yaml") if _is_run(found.parent))
    yield from islice(dict.fromkeys(sorted(below)), _MOST_RUNS)


def _is_run(path: Path) -> bool:
    named = any((path / name).is_file() for name in (CONFIG_FILE, PUBLISHED_CONFIG))
    return named or any(path.glob(f"step_*/{MANIFEST}"))


def _data_folders(path: Path) -> Iterator[Path]:
    yield from dict.fromkeys(
        found.parent.parent for found in sorted(path.rglob(f"*/{METADATA_NAME}"))
    )


def _or_nothing(look: Callable[[], _Found], otherwise: _Found) -> _Found:
    """Return what is found, or something else where it is broken; the page says why later."""
    try:
        return look()
    except MISTAKES:
        return otherwise
