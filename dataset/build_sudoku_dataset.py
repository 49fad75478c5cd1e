"""Build a Sudoku data set: from the Hugging Face data sets, from CSV files, or from the generator.

    python dataset/build_sudoku_dataset.py --output-dir data/sudoku-extreme-1k-aug-1000 \\
        --subsample-size 1000 --num-aug 1000
    python dataset/build_sudoku_dataset.py --source generate --output-dir data/sudoku-new

The first is the published command line. `dataset.common` describes what is written. Each training
puzzle makes one group: the original, then its images. Every puzzle holds one example and has the
identifier 0. The same command gives the same bytes, wherever they are written to.
"""

import argparse
import csv
import difflib
import errno
import gzip
import logging
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import numpy as np
from tqdm import tqdm

from dataset.augmentation import (
    NEW_TEST_STREAM,
    NEW_TRAIN_STREAM,
    SUBSAMPLE_STREAM,
    TEST_STREAM,
    augment_sudoku,
    choose,
)
from dataset.common import (
    DatasetError,
    PuzzleDatasetMetadata,
    PuzzleSet,
    atomic_build,
    file_sha256,
    write_json,
    write_manifest,
    write_split,
)
from dataset.sudoku import EMPTY_TOKEN, NoPuzzleError, are_valid_solutions, find_conflict

EXIT_CONFIGURATION, EXIT_DATA, EXIT_INTERRUPTED = 2, 3, 130

CSV_COLUMNS = ["source", "question", "answer", "rating"]

_PUBLISHED_OUTPUT_DIR = Path("data/sudoku-extreme-full")
_DEFAULT_COUNT = 1000  # of generated training and test puzzles
_DEFAULT_CLUES = {4: (5, 10), 6: (12, 20), 9: (30, 40)}
_FEWEST_CLUES = {4: 4, 6: 8, 9: 17}  # with fewer no puzzle has one solution; 9: arXiv:1201.0749
_ROWS_PER_CHECK = 16_384
_NO_DIGIT = 255


class Puzzles(NamedTuple):
    """questions, answers: uint8 [N, cells] digits, 0 where empty.  ratings: int64 [N]."""

    questions: np.ndarray
    answers: np.ndarray
    ratings: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Puzzles":
        """Keep the rows of an index or a mask."""
        return Puzzles(self.questions[chosen], self.answers[chosen], self.ratings[chosen])


class Source(NamedTuple):
    """Original puzzles, and for the manifest the sha256 of the files and the counts by split."""

    train: Puzzles
    test: Puzzles
    files: dict[str, str]
    counts: dict[str, dict[str, Any]]


# Options


@dataclass(frozen=True)
class Options:
    """The command line; None stands for a flag that was not given and has no fixed default."""

    source: str
    source_repo: str
    output_dir: Path
    size: int
    subsample_size: int | None
    test_size: int | None
    num_aug: int
    min_difficulty: int | None
    min_clues: int
    max_clues: int
    seed: int

    def command(self) -> list[str]:
        """The flags that decide about the bytes written."""
        flags: dict[str, Any] = {"source": self.source}
        if self.source == "hf":
            flags["source-repo"] = self.source_repo
        flags["size"] = self.size
        flags["subsample-size"] = self.subsample_size
        flags["test-size"] = self.test_size
        flags["num-aug"] = self.num_aug
        flags["min-difficulty"] = self.min_difficulty
        if self.source == "generate":
            flags["min-clues"] = self.min_clues
            flags["max-clues"] = self.max_clues
        flags["seed"] = self.seed
        given = [(name, value) for name, value in flags.items() if value is not None]
        return ["build_sudoku_dataset.py", *(f"--{name}={value}" for name, value in given)]


class _Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_CONFIGURATION, f"error: {message} (--help lists the flags)\n")


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    accepted = f"{low} or more" if high is None else f"{low} to {high}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII):
            raise argparse.ArgumentTypeError(f"{text!r} is no integer; accepted: {accepted}")
        value = int(text)
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{value}; accepted: {accepted}")
        return value

    return parse


def _parser() -> _Parser:
    parser = _Parser(
        prog="build_sudoku_dataset.py",
        description="Build a Sudoku data set. Test puzzles are never augmented.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="folder to write; a data set already there is replaced at the end"
        f" (default with --source hf: {_PUBLISHED_OUTPUT_DIR})",
    )
    add(
        "--source",
        default="hf",
        metavar="hf|generate|FOLDER",
        help="hf: a data set of the Hugging Face hub; generate: new puzzles; FOLDER: train.csv"
        " and test.csv in it, or the same as .csv.gz if those are missing, with the columns"
        f" {','.join(CSV_COLUMNS)} (default: hf)",
    )
    add(
        "--source-repo",
        metavar="REPO",
        help="the data set for --source hf (default: sapientinc/sudoku-extreme)",
    )
    add(
        "--subsample-size",
        type=_integer(1),
        metavar="N",
        help="training puzzles, chosen at random without replacement"
        f" (default: all; with --source generate {_DEFAULT_COUNT})",
    )
    add(
        "--test-size",
        type=_integer(1),
        metavar="N",
        help=f"test puzzles (default: all; with --source generate {_DEFAULT_COUNT})",
    )
    add(
        "--num-aug",
        type=_integer(0),
        default=0,
        metavar="K",
        help="augmentations of each training puzzle, beside the original: digits, bands, rows,"
        " stacks and columns permuted and, except at size 6, transposed (default: 0)",
    )
    add(
        "--min-difficulty",
        type=_integer(0),
        metavar="R",
        help="leave out puzzles of a lower rating. In a file that is its rating column; of"
        " generated puzzles it is the backtracks of the built-in solver, another scale"
        " (published puzzles with a mean rating of 20 have about 100), and they are searched for",
    )
    add("--size", type=int, choices=(4, 6, 9), default=9, help="rows of the grid (default: 9)")
    ranges = "; ".join(f"{size}: {low} to {high}" for size, (low, high) in _DEFAULT_CLUES.items())
    add(
        "--min-clues",
        type=_integer(1),
        metavar="LOW",
        help="fewest clues of generated puzzles; their number is drawn uniformly, save that few"
        f" 9x9 puzzles get below 24 (default by size: {ranges}; any with --min-difficulty)",
    )
    add("--max-clues", type=_integer(1), metavar="HIGH", help="most clues of generated puzzles")
    add("--seed", type=_integer(0, 2**64 - 1), default=0, help="of all random choices (default: 0)")
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse and check the command line; a mistake prints one line and exits with code 2."""
    parser = _parser()
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = re.findall(r"--[a-z-]+", parser.format_usage())
        nearest = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1)
        hint = f"; nearest: {nearest[0]}" if nearest else ""
        parser.error(f"unknown argument {unknown[0]!r}{hint}")
    if namespace.output_dir is None:
        if namespace.source != "hf":
            parser.error(f"--output-dir is needed with --source {namespace.source}")
        namespace.output_dir = _PUBLISHED_OUTPUT_DIR
    if namespace.source_repo is None:
        namespace.source_repo = "sapientinc/sudoku-extreme"
    elif namespace.source != "hf":
        parser.error(f"--source-repo is for --source hf, not for --source {namespace.source}")
    if namespace.source == "generate":
        _complete_generator_options(parser, namespace)
    elif namespace.min_clues is not None or namespace.max_clues is not None:
        parser.error("--min-clues and --max-clues are for --source generate")
    else:
        namespace.min_clues = namespace.max_clues = 0
    return Options(**vars(namespace))


def _complete_generator_options(parser: _Parser, namespace: argparse.Namespace) -> None:
    size, rated = namespace.size, bool(namespace.min_difficulty)
    fewest, most = _FEWEST_CLUES[size], size * size - 1
    low, high = (fewest, most) if rated else _DEFAULT_CLUES[size]
    if namespace.min_clues is None:
        namespace.min_clues = min(low, namespace.max_clues or low)
    if namespace.max_clues is None:
        namespace.max_clues = max(high, namespace.min_clues)
    low, high = namespace.min_clues, namespace.max_clues
    if low > most:
        parser.error(f"--min-clues {low}; accepted at size {size}: 1 to {most}")
    if not fewest <= high <= most:
        parser.error(f"--max-clues {high}; accepted at size {size}: {fewest} to {most}")
    if low > high:
        parser.error(f"--min-clues {low} is above --max-clues {high}")
    namespace.subsample_size = namespace.subsample_size or _DEFAULT_COUNT
    namespace.test_size = namespace.test_size or _DEFAULT_COUNT


# Sources


def generated_source(options: Options) -> Source:
    """Generate the test puzzles first, so that they do not depend on how many train.

    Raises: NoPuzzleError: there are not as many as asked for, or they are too hard to find.
    """
    # Imported here because it loads the compiler: only who generates waits for it.
    from dataset.sudoku_generator import generate_puzzles

    taken: set[int] = set()
    puzzles, counts = {}, {}
    for split, stream, number in (
        ("test", NEW_TEST_STREAM, options.test_size),
        ("train", NEW_TRAIN_STREAM, options.subsample_size),
    ):
        assert number is not None
        with _progress(number, f"generate {split}", "puzzles") as bar:
            made = generate_puzzles(
                number,
                seed=options.seed,
                stream=stream,
                size=options.size,
                min_clues=options.min_clues,
                max_clues=options.max_clues,
                min_rating=options.min_difficulty or 0,
                taken=taken,
                advance=bar.update,
            )
        puzzles[split] = Puzzles(made.questions, made.answers, made.ratings)
        counts[split] = {"attempts": made.attempts}
    return Source(puzzles["train"], puzzles["test"], {}, counts)


def csv_source(paths: dict[str, Path], options: Options) -> Source:
    """Read train and test files, and choose: no training question occurs in the test file too."""
    puzzles, counts = {}, {}
    for split, path in paths.items():
        puzzles[split] = read_puzzles(path, options.size)
        counts[split] = {"rows": len(puzzles[split].ratings)}
    tested = {question.tobytes() for question in puzzles["test"].questions}
    is_new = [question.tobytes() not in tested for question in puzzles["train"].questions]
    puzzles["train"] = puzzles["train"].rows(np.array(is_new))
    counts["train"]["dropped_as_in_test"] = len(is_new) - sum(is_new)
    for split, stream, number in (
        ("train", SUBSAMPLE_STREAM, options.subsample_size),
        ("test", TEST_STREAM, options.test_size),
    ):
        before = puzzles[split]
        if options.min_difficulty is not None:
            puzzles[split] = before.rows(before.ratings >= options.min_difficulty)
        left = len(puzzles[split].ratings)
        counts[split]["dropped_as_too_easy"] = len(before.ratings) - left
        if left == 0:
            raise DatasetError(
                f"{paths[split]}: no puzzle is left of {counts[split]['rows']}"
                f" (--min-difficulty {options.min_difficulty};"
                f" {counts['train']['dropped_as_in_test']} training puzzles are test puzzles too)"
            )
        if number is not None and number < left:
            puzzles[split] = puzzles[split].rows(choose(options.seed, stream, left, number))
    files = {path.name: file_sha256(path) for path in paths.values()}
    return Source(puzzles["train"], puzzles["test"], files, counts)


def folder_paths(folder: Path) -> dict[str, Path]:
    """Find train.csv or train.csv.gz, and the same of test; DatasetError when one is missing."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such folder (--source is hf, generate or a folder)")
    paths = {}
    for split in ("train", "test"):
        candidates = [folder / f"{split}.csv", folder / f"{split}.csv.gz"]
        existing = [path for path in candidates if path.exists()]
        if not existing:
            raise DatasetError(f"{candidates[0]}: no such file, and no {candidates[1].name} either")
        paths[split] = existing[0]
    return paths


def hub_paths(repository: str) -> dict[str, Path]:
    """Download train.csv and test.csv of a data set, or find them in the cache of earlier times.

    Raises: DatasetError: huggingface_hub is not installed, or the files cannot be had.
    """
    elsewhere = "or use --source generate, or --source FOLDER with train.csv and test.csv"
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DatasetError(
            "--source hf needs huggingface_hub: pip install huggingface_hub"
            f" (the extra `data`), {elsewhere}"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it announces every new attempt
    paths = {}
    for split in ("train", "test"):
        try:
            path = hf_hub_download(repository, f"{split}.csv", repo_type="dataset")
        except Exception as error:  # its own errors, its HTTP library's, and the system's
            reason = (str(error).strip().splitlines() or [""])[0]
            raise DatasetError(
                f"{split}.csv of {repository} cannot be downloaded"
                f" ({type(error).__name__}: {reason}); try again, {elsewhere}"
            ) from error
        paths[split] = Path(path)
    return paths


# CSV files


def read_puzzles(path: Path, size: int) -> Puzzles:
    """Read and check a CSV file, gzipped if its name ends in .gz.

    Empty lines are skipped. Whether a puzzle has only one solution is not checked.

    Raises: DatasetError: the file cannot be read, has no header or no puzzle, or a row is wrong:
        its fields, its length, a character, an answer against the rules or the question, a rating
        that is no integer. The message names the file and the line.
    """
    batches: list[Puzzles] = []
    pending: list[tuple[int, list[str]]] = []
    line = 0
    try:
        with _open_text(path) as file:
            rows = csv.reader(file)
            header = next(rows, None)
            if header != CSV_COLUMNS:
                found = "it is empty" if header is None else f"found {','.join(header)[:80]!r}"
                raise DatasetError(
                    f"{path}: the header {','.join(CSV_COLUMNS)} is missing; {found}"
                )
            for row in tqdm(rows, f"read {path.name}", unit=" rows", disable=None, leave=False):
                line = rows.line_num
                if not row:
                    continue
                problem = _field_problem(row, size)
                if problem is None:
                    pending.append((line, row))
                if problem is not None or len(pending) == _ROWS_PER_CHECK:
                    batches.append(_checked_puzzles(pending, path, size))
                    pending = []
                if problem is not None:
                    raise DatasetError(f"{path}: row {line}: {problem}")
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DatasetError(f"{path}: cannot be read after line {line}: {reason}") from None
    batches.append(_checked_puzzles(pending, path, size))
    puzzles = Puzzles(*(np.concatenate(field) for field in zip(*batches, strict=True)))
    if len(puzzles.ratings) == 0:
        raise DatasetError(f"{path}: there is no puzzle below the header")
    return puzzles


def _open_text(path: Path) -> TextIO:
    # Bytes that are not UTF-8 become surrogates: harmless in `source`, a wrong character elsewhere.
    encoding, errors = "utf-8-sig", "surrogateescape"
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, errors=errors, newline="")
    return path.open(encoding=encoding, errors=errors, newline="")


def _field_problem(row: list[str], size: int) -> str | None:
    if len(row) != len(CSV_COLUMNS):
        return f"{len(row)} fields; accepted: {len(CSV_COLUMNS)} ({','.join(CSV_COLUMNS)})"
    _, question, answer, rating = row
    for name, text in (("question", question), ("answer", answer)):
        if len(text) != size * size:
            return f"{name} has {len(text)} characters; accepted: {size * size} (--size {size})"
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", rating.strip(), re.ASCII):
        return f"rating is {rating[:40]!r}; accepted: an integer"
    return None


def _checked_puzzles(pending: list[tuple[int, list[str]]], path: Path, size: int) -> Puzzles:
    """Turn rows into digits; DatasetError naming the first that is no puzzle with its answer."""
    questions = _digits([row[1] for _, row in pending], size)
    answers = _digits([row[2] for _, row in pending], size)
    good = (questions != _NO_DIGIT).all(axis=1) & are_valid_solutions(answers, size)
    good &= ((questions == 0) | (questions == answers)).all(axis=1)
    if not good.all():
        line, (_, question, answer, _) = pending[int(good.argmin())]
        raise DatasetError(f"{path}: row {line}: {_content_problem(question, answer, size)}")
    ratings = np.array([int(row[3]) for _, row in pending], dtype=np.int64)
    return Puzzles(questions, answers, ratings)


def _digits(texts: list[str], size: int) -> np.ndarray:
    table = np.full(256, _NO_DIGIT, dtype=np.uint8)
    table[ord(".")] = 0
    table[ord("0") : ord("0") + size + 1] = np.arange(size + 1)
    characters = np.frombuffer("".join(texts).encode("ascii", "replace"), dtype=np.uint8)
    return table[characters].reshape(-1, size * size)


def _content_problem(question: str, answer: str, size: int) -> str:
    digits = "123456789"[:size]
    for name, text, accepted, also in (
        ("question", question, digits + ".0", ", and '.' or '0' for an empty cell"),
        ("answer", answer, digits, ""),
    ):
        for number, character in enumerate(text, start=1):
            if character not in accepted:
                return f"{name} has {character!r} in cell {number}; accepted: 1 to {size}{also}"
    conflict = find_conflict(_digits([answer], size).reshape(size, size))
    if conflict is not None:
        return f"answer breaks the rules: {conflict}"
    pairs = enumerate(zip(question, answer, strict=True), start=1)
    number, (clue, given) = next(
        (number, pair) for number, pair in pairs if pair[0] not in ".0" and pair[0] != pair[1]
    )
    return f"answer contradicts the question: {clue} became {given} in cell {number}"


# Building


def build(options: Options) -> str:
    """Build the data set in `options.output_dir`; return a line that says what was written.

    Raises: DatasetError, NoPuzzleError, or an OSError about the output folder: it is as it was.
    """
    source = None
    if options.source == "hf":
        source = csv_source(hub_paths(options.source_repo), options)
    elif options.source != "generate":
        source = csv_source(folder_paths(Path(options.source)), options)
    with atomic_build(options.output_dir) as directory:
        # Generated in here, where it is known that DIR can be written: a search may take long.
        source = source or generated_source(options)
        rows = len(source.train.ratings) * (1 + options.num_aug) + len(source.test.ratings)
        _require_room(directory, 2 * rows * options.size**2)
        for split, puzzles, num_aug in (
            ("train", source.train, options.num_aug),
            ("test", source.test, 0),
        ):
            _write_puzzles(directory / split, puzzles, num_aug, options)
            source.counts[split] |= {
                "puzzles": len(puzzles.ratings),
                "examples": len(puzzles.ratings) * (1 + num_aug),
                "mean_clues": round(float((puzzles.questions != 0).sum(axis=1).mean()), 3),
                "mean_rating": round(float(puzzles.ratings.mean()), 3),
            }
        write_json(directory / "identifiers.json", ["<blank>"])
        write_manifest(
            directory,
            command=options.command(),
            seed=options.seed,
            sources=source.files,
            counts=source.counts,
        )
    return _summary(options, source.counts)


def _write_puzzles(split_dir: Path, puzzles: Puzzles, num_aug: int, options: Options) -> None:
    questions, answers = puzzles.questions + EMPTY_TOKEN, puzzles.answers + EMPTY_TOKEN
    num_groups = len(questions)
    num_puzzles = num_groups * (1 + num_aug)
    with _progress(num_puzzles if num_aug else 0, "augment", "examples") as bar:
        inputs, labels = augment_sudoku(questions, answers, num_aug, options.seed, bar.update)
    metadata = PuzzleDatasetMetadata(
        pad_id=0,
        ignore_label_id=0,
        blank_identifier_id=0,
        vocab_size=options.size + EMPTY_TOKEN + 1,
        seq_len=options.size**2,
        num_puzzle_identifiers=1,
        total_groups=num_groups,
        mean_puzzle_examples=1.0,
        sets=("all",),
        total_puzzles=num_puzzles,
    )
    arrays = PuzzleSet(
        inputs=inputs,
        labels=labels,
        puzzle_identifiers=np.zeros(num_puzzles, dtype=np.int32),
        puzzle_indices=np.arange(num_puzzles + 1, dtype=np.int32),
        group_indices=np.arange(0, num_puzzles + 1, 1 + num_aug, dtype=np.int32),
    )
    write_split(split_dir, metadata, {"all": arrays})


def _require_room(directory: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(directory).free
    if num_bytes > free:
        raise DatasetError(
            f"{directory.parent}: the data set takes {num_bytes / 1e9:,.1f} GB, and"
            f" {free / 1e9:,.1f} GB are free; lower --subsample-size or --num-aug"
        )


def _progress(total: int, what: str, unit: str) -> tqdm:
    """A bar on stderr, shown where that is a terminal and there is something to wait for."""
    return tqdm(
        total=total, desc=what, unit=f" {unit}", disable=None if total else True, leave=False
    )


def _summary(options: Options, counts: dict[str, dict[str, Any]]) -> str:
    train, test = counts["train"], counts["test"]
    notes = []
    if options.subsample_size is not None and train["puzzles"] < options.subsample_size:
        notes.append(f"fewer training puzzles than the {options.subsample_size:,} asked for exist")
    if options.test_size is not None and test["puzzles"] < options.test_size:
        notes.append(f"fewer test puzzles than the {options.test_size:,} asked for exist")
    if train.get("dropped_as_in_test"):
        notes.append(
            f"{train['dropped_as_in_test']:,} training rows dropped that are test rows too"
        )
    return (
        f"{options.output_dir}: {train['examples']:,} training examples"
        f" ({train['puzzles']:,} puzzles, {options.num_aug:,} augmentations each)"
        f" and {test['examples']:,} test puzzles written" + "".join(f"; {note}" for note in notes)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line asks for; return the exit code, the reason being on stderr."""
    options = parse_options(arguments)
    try:
        summary = build(options)
    except DatasetError as error:
        return _fail(EXIT_DATA, error)
    except NoPuzzleError as error:
        return _fail(EXIT_CONFIGURATION, error)
    except MemoryError as error:
        return _fail(EXIT_DATA, f"{error}; lower --subsample-size or --num-aug")
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        return _fail(EXIT_CONFIGURATION if refused else EXIT_DATA, f"{options.output_dir}: {error}")
    except KeyboardInterrupt:
        return _fail(EXIT_INTERRUPTED, f"interrupted; {options.output_dir} is as it was")
    sys.stdout.write(summary + "\n")
    return 0


def _fail(code: int, reason: object) -> int:
    sys.stderr.write(f"error: {reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
