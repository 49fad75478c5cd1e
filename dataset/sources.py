"""Where original puzzles come from: CSV files in a folder or on the Hugging Face hub, a generator.

The CSV files have the columns source, question, answer and rating; question and answer are square
grids, one character per cell, row by row, in which spaces count.
"""

import contextlib
import csv
import gzip
import io
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runtime.errors import REFUSALS, ConfigError, DatasetError
from runtime.files import open_regular
from runtime.progress import bar
from runtime.streams import Stream, random_words
from runtime.text import many

CSV_COLUMNS = ["source", "question", "answer", "rating"]

_MAX_LINE = 2**18
_MAX_CHARACTERS = 2**32  # Of a file: six times those of Sudoku-Extreme.


class Puzzles(NamedTuple):
    """Puzzles of one size: questions and answers uint8 [N, cells], ratings int64 [N]."""

    questions: np.ndarray
    answers: np.ndarray
    ratings: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Puzzles":
        """Keep the rows of an index or a mask."""
        return Puzzles(self.questions[chosen], self.answers[chosen], self.ratings[chosen])


class GeneratedPuzzle(NamedTuple):
    """A new puzzle, uint8 [cells] each, its rating, and the attempts made for it and all before."""

    question: np.ndarray
    answer: np.ndarray
    rating: int
    attempts: int


def gathered(made: Iterable[GeneratedPuzzle]) -> tuple[Puzzles, int]:
    """Return new puzzles, one at least, and the attempts made for them."""
    questions, answers, ratings, attempts = zip(*made, strict=True)
    return Puzzles(*map(np.array, (questions, answers, ratings))), attempts[-1]


def csv_paths(source: str, repository: str) -> dict[str, Path]:
    """Find train.csv and test.csv (or .csv.gz) in a folder, or of "hf" on the hub; by split.

    Raises:
        DatasetError: a file is missing or cannot be downloaded, or huggingface_hub is not there.
        ConfigError: the cache may not be written.
    """
    if source == "hf":
        return _hub_paths(repository)
    folder, paths = Path(source), dict[str, Path]()
    if not os.path.isdir(folder):
        raise DatasetError(f"{folder}: no such folder (--source is hf, generate or a folder)")
    for split in ("train", "test"):
        plain, zipped = folder / f"{split}.csv", folder / f"{split}.csv.gz"
        paths[split] = plain if os.path.exists(plain) else zipped
        if not os.path.exists(paths[split]):
            raise DatasetError(f"{plain}: no such file, and no {zipped.name} either")
    return paths


def _hub_paths(repository: str) -> dict[str, Path]:
    elsewhere = "or use --source generate, or --source FOLDER with train.csv and test.csv"
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
    except ImportError:
        install = "pip install huggingface_hub (the extra `data`)"
        raise DatasetError(f"--source hf needs huggingface_hub: {install}, {elsewhere}") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it announces every new attempt
    paths = {}
    for split in ("train", "test"):
        try:
            path = hf_hub_download(repository, f"{split}.csv", repo_type="dataset")
        except Exception as error:  # its own errors, its HTTP library's, and the system's
            if isinstance(error, OSError) and error.errno in REFUSALS:
                said = f"the cache of downloads cannot be written: {error.strerror}"
                raise ConfigError(f"{error.filename}: {said}") from None
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            problem = f"{split}.csv of {repository} cannot be downloaded ({reason})"
            raise DatasetError(f"{problem}; try again, {elsewhere}") from error
        paths[split] = Path(path)
    return paths


class CsvRow(NamedTuple):
    """A row, the number of its (last) line, and its rating, None where the field is empty."""

    line: int
    question: str
    answer: str
    rating: int | None


def read_rows(path: Path, size: int, *, needs_rating: bool) -> Iterator[CsvRow]:
    """Yield the rows of a CSV file, gzipped if its name ends in .gz; empty lines are skipped.

    Args:
        size: rows of the grid, so that question and answer have size * size characters.
    Raises:
        DatasetError: the file cannot be read, is larger than 4 GiB when unpacked, has no header, or
            a row has other fields. The message names the file and the line.
    """
    for line, row in _rows(path):
        if problem := _field_problem(row, size, needs_rating):
            raise DatasetError(f"{path}: row {line}: {problem}")
        _, question, answer, rating = row
        number = int(rating.strip()) if rating.strip() else None
        yield CsvRow(line, question, answer, number)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header, and the number of their (last) lines."""
    line = 0
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open_regular(path))
            if path.suffix == ".gz":
                file = opened.enter_context(gzip.GzipFile(fileobj=file))
            # Bytes that are not UTF-8 become surrogates: harmless in `source`, elsewhere refused.
            text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
            rows = csv.reader(_lines(opened.enter_context(text)))
            if (header := next(rows, [])) != CSV_COLUMNS:
                found, wanted = ",".join(header)[:80], ",".join(CSV_COLUMNS)
                raise DatasetError(f"{path}: the header {wanted} is missing; found {found!r}")
            for row in bar(rows, f"read {path.name}", "rows"):
                line = rows.line_num
                if row:
                    yield line, row
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DatasetError(f"{path}: cannot be read after line {line}: {reason}") from None


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    characters = 0
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE and not line.endswith("\n"):
            raise csv.Error(f"a line of more than {_MAX_LINE} characters")
        characters += len(line)
        if characters > _MAX_CHARACTERS:
            raise csv.Error(f"more than {_MAX_CHARACTERS} characters; split the file")
        yield line


def _field_problem(row: list[str], size: int, needs_rating: bool) -> str | None:
    if len(row) != len(CSV_COLUMNS):
        return f"{many(len(row), 'field')}; accepted: {len(CSV_COLUMNS)} ({','.join(CSV_COLUMNS)})"
    _, question, answer, rating = row
    for name, text in (("question", question), ("answer", answer)):
        if len(text) != size * size:
            return f"{name} has {len(text)} characters; accepted: {size * size} (--size {size})"
    is_missing = not needs_rating and not rating.strip()
    if not is_missing and not re.fullmatch(r"[+-]?[0-9]{1,18}", rating.strip(), re.ASCII):
        return f"rating is {rating[:40]!r}; accepted: an integer"
    return None


def require_good_rows(path: Path, rows: Sequence[CsvRow], rules: Mapping[str, np.ndarray]) -> None:
    """Raise DatasetError unless all rows keep all rules, bool [N] by what they say; names the first
    row that does not.
    """
    good = np.all(list(rules.values()), axis=0)
    if not good.all():
        row = int(good.argmin())
        broken = next(rule for rule, kept in rules.items() if not kept[row])
        raise DatasetError(f"{path}: row {rows[row].line}: {broken}")


def subsample(puzzles: Puzzles, number: int | None, seed: int, stream: Stream) -> Puzzles:
    """Choose `number` puzzles at random without replacement, in their order; None: keep all."""
    count = len(puzzles.ratings)
    if number is None or number >= count:
        return puzzles
    return puzzles.rows(np.sort(shuffled(count, seed, stream)[:number]))


def shuffled(count: int, seed: int, stream: Stream) -> np.ndarray:
    """Return the numbers 0 to count - 1 in random order, int64 [count]."""
    words = random_words(seed, stream, (0, 0, 0, 0), count)
    return np.argsort(words, kind="stable")
