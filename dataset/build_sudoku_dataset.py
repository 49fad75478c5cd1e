"""Build a Sudoku data set: from the Hugging Face data sets, from CSV files, or from the generator.

    python dataset/build_sudoku_dataset.py --output-dir data/sudoku-extreme-1k-aug-1000 \\
        --subsample-size 1000 --num-aug 1000
    python dataset/build_sudoku_dataset.py --source generate --output-dir data/sudoku-new

The first is the published command line. `dataset.format.disk` describes what is written. Each
training puzzle makes one group: the original, then its images. Every puzzle holds one example and
has the identifier 0. The same command gives the same bytes, wherever they are written to.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataset.augmentation import (
    augment_sudoku,
)
from dataset.command_line import Parser, command_of, integer, progress, require_room, run
from dataset.format.arrays import file_sha256, write_json
from dataset.format.disk import IDENTIFIERS_NAME, atomic_build, write_manifest, write_puzzles
from dataset.sources import (
    CSV_COLUMNS,
    CsvRow,
    Puzzles,
    Source,
    csv_paths,
    read_batches,
    shortfalls,
    subsample,
    without_test_puzzles,
)
from dataset.sudoku.rules import EMPTY_TOKEN, are_valid_solutions, find_conflict
from runtime.errors import DatasetError
from runtime.streams import Stream

_PUBLISHED_REPOSITORY = "sapientinc/sudoku-extreme"
_PUBLISHED_OUTPUT_DIR = Path("data/sudoku-extreme-full")
_DEFAULT_COUNT = 1000  # of generated training and test puzzles
_DEFAULT_CLUES = {4: (5, 10), 6: (12, 20), 9: (30, 40)}
_FEWEST_CLUES = {4: 4, 6: 8, 9: 17}  # with fewer no puzzle has one solution; 9: arXiv:1201.0749
_NO_DIGIT = 255
_REMEDY = "lower --subsample-size or --num-aug"


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
        return command_of("build_sudoku_dataset.py", flags)


def _parser() -> Parser:
    parser = Parser(
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
        help=f"the data set for --source hf (default: {_PUBLISHED_REPOSITORY})",
    )
    add(
        "--subsample-size",
        type=integer(1),
        metavar="N",
        help="training puzzles, chosen at random without replacement"
        f" (default: all; with --source generate {_DEFAULT_COUNT})",
    )
    add(
        "--test-size",
        type=integer(1),
        metavar="N",
        help=f"test puzzles (default: all; with --source generate {_DEFAULT_COUNT})",
    )
    add(
        "--num-aug",
        type=integer(0),
        default=0,
        metavar="K",
        help="augmentations of each training puzzle, beside the original: digits, bands, rows,"
        " stacks and columns permuted and, except at size 6, transposed (default: 0)",
    )
    add(
        "--min-difficulty",
        type=integer(0),
        metavar="R",
        help="leave out puzzles of a lower rating. In a file that is its rating column; of"
        " generated puzzles it is the backtracks of the built-in solver, another scale"
        " (published puzzles with a mean rating of 20 have about 100), and they are searched for",
    )
    add("--size", type=int, choices=(4, 6, 9), default=9, help="rows of the grid (default: 9)")
    ranges = "; ".join(f"{size}: {low} to {high}" for size, (low, high) in _DEFAULT_CLUES.items())
    add(
        "--min-clues",
        type=integer(1),
        metavar="LOW",
        help="fewest clues of generated puzzles; their number is drawn uniformly, save that few"
        f" 9x9 puzzles get below 24 (default by size: {ranges}; any with --min-difficulty)",
    )
    add("--max-clues", type=integer(1), metavar="HIGH", help="most clues of generated puzzles")
    add("--seed", type=integer(0, 2**64 - 1), default=0, help="of all random choices (default: 0)")
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse and check the command line; a mistake prints one line and exits with code 2."""
    parser = _parser()
    namespace = parser.parse_all(arguments)
    if namespace.output_dir is None:
        if namespace.source != "hf":
            parser.error(f"--output-dir is needed with --source {namespace.source}")
        namespace.output_dir = _PUBLISHED_OUTPUT_DIR
    parser.choose_repository(namespace, _PUBLISHED_REPOSITORY)
    if namespace.source == "generate":
        _complete_generator_options(parser, namespace)
    elif namespace.min_clues is not None or namespace.max_clues is not None:
        parser.error("--min-clues and --max-clues are for --source generate")
    else:
        namespace.min_clues = namespace.max_clues = 0
    return Options(**vars(namespace))


def _complete_generator_options(parser: Parser, namespace: argparse.Namespace) -> None:
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
    from dataset.sudoku.generator import generate_puzzles

    taken: set[int] = set()
    puzzles, counts = {}, {}
    for split, stream, number in (
        ("test", Stream.NEW_TEST, options.test_size),
        ("train", Stream.NEW_TRAIN, options.subsample_size),
    ):
        assert number is not None
        with progress(number, f"generate {split}", "puzzles") as bar:
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
    puzzles = {split: read_puzzles(path, options.size) for split, path in paths.items()}
    counts = {split: {"rows": len(puzzles[split].ratings)} for split in puzzles}
    puzzles["train"] = without_test_puzzles(
        puzzles["train"],
        puzzles["test"],
        lambda questions: [question.tobytes() for question in questions],
    )
    counts["train"]["dropped_as_in_test"] = counts["train"]["rows"] - len(puzzles["train"].ratings)
    for split, stream, number in (
        ("train", Stream.SUBSAMPLE, options.subsample_size),
        ("test", Stream.TEST, options.test_size),
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
        puzzles[split] = subsample(puzzles[split], number, options.seed, stream)
    files = {path.name: file_sha256(path) for path in paths.values()}
    return Source(puzzles["train"], puzzles["test"], files, counts)


# CSV files


def read_puzzles(path: Path, size: int) -> Puzzles:
    """Read and check a CSV file, gzipped if its name ends in .gz.

    Empty lines are skipped. Whether a puzzle has only one solution is not checked.

    Returns: the puzzles as digits, 0 where empty.

    Raises: DatasetError: the file cannot be read, has no header or no puzzle, or a row is wrong:
        its fields, its length, a character, an answer against the rules or the question, a rating
        that is no integer. The message names the file and the line.
    """
    batches = read_batches(path, size, needs_rating=True)
    return Puzzles.joined([_checked_puzzles(batch, path, size) for batch in batches])


def _checked_puzzles(rows: list[CsvRow], path: Path, size: int) -> Puzzles:
    """Turn rows into digits; DatasetError naming the first that is no puzzle with its answer."""
    questions = _digits([row.question for row in rows], size)
    answers = _digits([row.answer for row in rows], size)
    good = (questions != _NO_DIGIT).all(axis=1) & are_valid_solutions(answers, size)
    good &= ((questions == 0) | (questions == answers)).all(axis=1)
    if not good.all():
        row = rows[int(good.argmin())]
        problem = _content_problem(row.question, row.answer, size)
        raise DatasetError(f"{path}: row {row.line}: {problem}")
    return Puzzles(questions, answers, np.array([row.rating for row in rows], dtype=np.int64))


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
    if options.source != "generate":
        source = csv_source(csv_paths(options.source, options.source_repo), options)
    with atomic_build(options.output_dir) as directory:
        # Generated in here, where it is known that DIR can be written: a search may take long.
        source = source or generated_source(options)
        rows = len(source.train.ratings) * (1 + options.num_aug) + len(source.test.ratings)
        require_room(directory, 2 * rows * options.size**2, _REMEDY)
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
        write_json(directory / IDENTIFIERS_NAME, ["<blank>"])
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
    num_puzzles = len(questions) * (1 + num_aug)
    with progress(num_puzzles if num_aug else 0, "augment", "examples") as bar:
        inputs, labels = augment_sudoku(questions, answers, num_aug, options.seed, bar.update)
    vocab_size = options.size + EMPTY_TOKEN + 1
    write_puzzles(split_dir, inputs, labels, vocab_size=vocab_size, views=1 + num_aug)


def _summary(options: Options, counts: dict[str, dict[str, Any]]) -> str:
    train, test = counts["train"], counts["test"]
    notes = shortfalls(counts, options.subsample_size, options.test_size, "puzzles")
    return (
        f"{options.output_dir}: {train['examples']:,} training examples"
        f" ({train['puzzles']:,} puzzles, {options.num_aug:,} augmentations each)"
        f" and {test['examples']:,} test puzzles written" + "".join(f"; {note}" for note in notes)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line asks for; return the exit code, the reason being on stderr."""
    options = parse_options(arguments)
    return run(lambda: build(options), options.output_dir, _REMEDY)


if __name__ == "__main__":
    sys.exit(main())
