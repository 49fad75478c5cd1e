"""Readers of original puzzles from CSV files, in a folder or on the Hugging Face hub.

The CSV files have the columns source, question, answer and rating. Question and answer are square
grids with one character per cell, row by row. Spaces count.
"""

import contextlib
import csv
import gzip
import io
import logging
import os
import re
import zlib
from collections.abc import Iterator
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
_MAX_CHARACTERS = 2**32  # The limit of a whole file; Sudoku-Extreme has a sixth of it.


class Puzzles(NamedTuple):
    """Puzzles of one size: questions and answers uint8 [N, cells], ratings int64 [N]."""

    questions: np.ndarray
    answers: np.ndarray
    ratings: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Puzzles":
        """Return the chosen rows; `chosen` is an index array or a mask."""
        return Puzzles(self.questions[chosen], self.answers[chosen], self.ratings[chosen])


class GeneratedPuzzle(NamedTuple):
    """A new puzzle, uint8 [cells], its rating, and the generator's number of attempts so far."""

    question: np.ndarray
    answer: np.ndarray
    rating: int
    attempts: int


def csv_paths(source: str, repository: str) -> dict[str, Path]:
    """Return train.csv and test.csv (or .csv.gz) by split: from the folder `source`, or, if it is
    "hf", downloaded from `repository` on the hub.

    Raises:
        DatasetError: a file is missing or cannot be downloaded, or huggingface_hub is missing.
        ConfigError: the download cache is not writable.
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
    alternative = "or use --source generate, or --source FOLDER with train.csv and test.csv"
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
    except ImportError:
        install = "pip install huggingface_hub (the extra `data`)"
        raise DatasetError(f"--source hf needs huggingface_hub: {install}, {alternative}") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # It warns at every retry.
    paths = {}
    for split in ("train", "test"):
        try:
            path = hf_hub_download(repository, f"{split}.csv", repo_type="dataset")
        except Exception as error:  # Its own errors, its HTTP library's, and the system's.
            if isinstance(error, OSError) and error.errno in REFUSALS:
                problem = f"the download cache cannot be written: {error.strerror}"
                raise ConfigError(f"{error.filename}: {problem}") from None
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            problem = f"{split}.csv of {repository} cannot be downloaded ({reason})"
            raise DatasetError(f"{problem}; try again, {alternative}") from error
        paths[split] = Path(path)
    return paths


class CsvRow(NamedTuple):
    """A row of a CSV file; `line` is the number of its last line, `rating` None if left empty."""

    line: int
    question: str
    answer: str
    rating: int | None


def read_rows(path: Path, rows: int, size: int, *, needs_rating: bool) -> Iterator[CsvRow]:
    """Yield the rows of a CSV file, gzipped if its name ends in .gz; empty lines are skipped.

    Args:
        rows: of the grid; question and answer have rows * rows characters.
        size: the flag --size, for messages.
    Raises:
        DatasetError: the file cannot be read, unpacks to more than 4 GiB or has no header, or the
            fields of a row are wrong. The message names the file and the line.
    """
    for line, row in _rows(path):
        where = f"{path}: row {line}"
        if len(row) != len(CSV_COLUMNS):
            columns = f"{len(CSV_COLUMNS)} ({','.join(CSV_COLUMNS)})"
            raise DatasetError(f"{where}: {many(len(row), 'field')}; accepted: {columns}")
        _, question, answer, rating = row
        for name, text in (("question", question), ("answer", answer)):
            if len(text) != rows * rows:
                problem = f"{name} has {len(text)} characters"
                raise DatasetError(f"{where}: {problem}; accepted: {rows * rows} (--size {size})")
        number = rating.strip()
        if (number or needs_rating) and not re.fullmatch(r"[+-]?[0-9]{1,18}", number, re.ASCII):
            raise DatasetError(f"{where}: rating is {rating[:40]!r}; accepted: an integer")
        yield CsvRow(line, question, answer, int(number) if number else None)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row below the header with the number of its last line."""
    line = 0
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open_regular(path))
            if path.suffix == ".gz":
                file = opened.enter_context(gzip.GzipFile(fileobj=file))
            # Bytes that are not UTF-8 become surrogates: harmless in `source`, refused elsewhere.
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
    """Yield the lines of a file; raise csv.Error if a line or the file is too long."""
    characters = 0
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE and not line.endswith("\n"):
            raise csv.Error(f"a line of more than {_MAX_LINE} characters")
        characters += len(line)
        if characters > _MAX_CHARACTERS:
            raise csv.Error(f"more than {_MAX_CHARACTERS} characters; split the file")
        yield line


def subsample(puzzles: Puzzles, number: int | None, seed: int, stream: Stream) -> Puzzles:
    """Return `number` puzzles drawn at random, in their old order; all if `number` is None."""
    count = len(puzzles.ratings)
    if number is None or number >= count:
        return puzzles
    return puzzles.rows(np.sort(shuffled(count, seed, stream)[:number]))


def shuffled(count: int, seed: int, stream: Stream) -> np.ndarray:
    """Return the numbers 0 to count - 1 in random order, int64 [count]."""
    words = random_words(seed, stream, (0, 0, 0, 0), count)
    return np.argsort(words, kind="stable")
