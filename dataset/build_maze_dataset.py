"""Build a maze data set: from the Hugging Face data set, from CSV files, or from the generator.

    python dataset/build_maze_dataset.py
    python dataset/build_maze_dataset.py --aug --output-dir data/maze-30x30-hard-1k-aug
    python dataset/build_maze_dataset.py --source generate --pixels --output-dir data/maze-new

The first is the published command line. `dataset.format.disk` describes what is written. Each
training maze makes one group: the original and, with --aug, its seven other views. Every puzzle
holds one example and has the identifier 0. The field `actions` holds the move along the answer's
path in each cell, with --pixels the field `pixels` the answer's colours. The same command gives the
same bytes, wherever they are written to.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataset.augmentation import (
    NUM_DIHEDRAL_VIEWS,
    augment_mazes,
    maze_keys,
)
from dataset.command_line import Parser, command_of, integer, progress, require_room, run
from dataset.format.arrays import file_sha256, write_json
from dataset.format.disk import IDENTIFIERS_NAME, atomic_build, write_manifest, write_puzzles
from dataset.format.schema import LabelField
from dataset.maze.rules import (
    CHARACTERS,
    NUM_ACTIONS,
    PATH,
    START,
    VOCAB_SIZE,
    WALL,
    are_mazes,
    grid_size,
    maze_pixels,
    path_actions,
    path_lengths,
    solve,
    text_to_tokens,
)
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
from runtime.errors import DatasetError
from runtime.streams import Stream

_PUBLISHED_REPOSITORY = "sapientinc/maze-30x30-hard-1k"
_PUBLISHED_OUTPUT_DIR = Path("data/maze-30x30-hard-1k")
_PUBLISHED_SIZE, _PUBLISHED_MIN_LENGTH = 30, 109
_MAX_SIZE = 362  # Python's csv module takes fields of 2**17 characters
_DEFAULT_COUNT = 1000  # of generated training and test mazes
_REMEDY = "lower --subsample-size or --size"


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
    aug: bool
    pixels: bool
    min_length: int | None
    seed: int

    @property
    def num_views(self) -> int:
        """Examples that each training maze becomes."""
        return NUM_DIHEDRAL_VIEWS if self.aug else 1

    def command(self) -> list[str]:
        """The flags that decide about the bytes written."""
        flags: dict[str, Any] = {"source": self.source}
        if self.source == "hf":
            flags["source-repo"] = self.source_repo
        flags["size"] = self.size
        flags["subsample-size"] = self.subsample_size
        flags["test-size"] = self.test_size
        flags["aug"] = self.aug
        flags["pixels"] = self.pixels
        flags["min-length"] = self.min_length
        flags["seed"] = self.seed
        return command_of("build_maze_dataset.py", flags)


def _parser() -> Parser:
    parser = Parser(
        prog="build_maze_dataset.py",
        description="Build a maze data set. Test mazes are never augmented.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="folder to write; a data set already there is replaced at the end"
        f" (default except with --source generate: {_PUBLISHED_OUTPUT_DIR})",
    )
    add(
        "--source",
        default="hf",
        metavar="hf|generate|FOLDER",
        help="hf: a data set of the Hugging Face hub; generate: new mazes; FOLDER: train.csv and"
        " test.csv in it, or the same as .csv.gz if those are missing, with the columns"
        f" {','.join(CSV_COLUMNS)}: question and answer row by row in the characters '{CHARACTERS}'"
        " (wall, free, start, goal, path), rating the number of cells on the path or empty"
        " (default: hf)",
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
        help="training mazes, chosen at random without replacement"
        f" (default: all; with --source generate {_DEFAULT_COUNT})",
    )
    add(
        "--test-size",
        type=integer(1),
        metavar="N",
        help=f"test mazes (default: all; with --source generate {_DEFAULT_COUNT})",
    )
    add(
        "--aug",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="write each training maze in its eight turned and mirrored views, the original first",
    )
    add(
        "--pixels",
        action="store_true",
        help="also write the answers' colours, as the field `pixels`: 3 bytes for each cell",
    )
    add(
        "--size",
        type=integer(2, _MAX_SIZE),
        default=_PUBLISHED_SIZE,
        metavar="ROWS",
        help=f"rows, and columns, of a maze (default: {_PUBLISHED_SIZE})",
    )
    add(
        "--min-length",
        type=integer(1),
        metavar="MOVES",
        help="moves that a shortest path of a generated maze has at least"
        f" (default at size {_PUBLISHED_SIZE}: {_PUBLISHED_MIN_LENGTH})",
    )
    add("--seed", type=integer(0, 2**64 - 1), default=0, help="of all random choices (default: 0)")
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse and check the command line; a mistake prints one line and exits with code 2."""
    parser = _parser()
    namespace = parser.parse_all(arguments)
    if namespace.output_dir is None:
        if namespace.source == "generate":
            parser.error("--output-dir is needed with --source generate")
        namespace.output_dir = _PUBLISHED_OUTPUT_DIR
    parser.choose_repository(namespace, _PUBLISHED_REPOSITORY)
    if namespace.source == "generate":
        _complete_generator_options(parser, namespace)
    elif namespace.min_length is not None:
        parser.error("--min-length is for --source generate")
    return Options(**vars(namespace))


def _complete_generator_options(parser: Parser, namespace: argparse.Namespace) -> None:
    size = namespace.size
    # A shortest path passes through at most three cells of every two by two.
    longest = 3 * ((size + 1) // 2) ** 2 - 1
    if namespace.min_length is None:
        if size != _PUBLISHED_SIZE:
            parser.error(f"--min-length is needed at size {size}; accepted: 1 to {longest}")
        namespace.min_length = _PUBLISHED_MIN_LENGTH
    elif namespace.min_length > longest:
        parser.error(
            f"--min-length {namespace.min_length}; accepted at size {size}: 1 to {longest}"
        )
    namespace.subsample_size = namespace.subsample_size or _DEFAULT_COUNT
    namespace.test_size = namespace.test_size or _DEFAULT_COUNT


# Sources


def generated_source(options: Options) -> Source:
    """Generate the test mazes first, so that they do not depend on how many train.

    Raises: NoPuzzleError: there are not as many as asked for, or they are too hard to find.
    """
    # Imported here because it loads the compiler: mistakes are answered without it.
    from dataset.maze.generator import generate_mazes

    taken: set[bytes] = set()
    puzzles, counts = {}, {}
    for split, stream, number in (
        ("test", Stream.NEW_TEST, options.test_size),
        ("train", Stream.NEW_TRAIN, options.subsample_size),
    ):
        assert number is not None
        assert options.min_length is not None
        with progress(number, f"generate {split}", "mazes") as bar:
            made = generate_mazes(
                number,
                seed=options.seed,
                stream=stream,
                size=options.size,
                min_length=options.min_length,
                taken=taken,
                advance=bar.update,
            )
        answers, moves = solve(made.mazes)
        puzzles[split] = Puzzles(made.mazes, answers, moves + 1)
        counts[split] = {"attempts": made.attempts}
    return Source(puzzles["train"], puzzles["test"], {}, counts)


def csv_source(paths: dict[str, Path], options: Options) -> Source:
    """Read train and test files, and choose: no training maze is a view of a test maze."""
    puzzles = {split: read_mazes(path, options.size) for split, path in paths.items()}
    counts = {split: {"rows": len(puzzles[split].ratings)} for split in puzzles}
    puzzles["train"] = without_test_puzzles(puzzles["train"], puzzles["test"], maze_keys)
    left = len(puzzles["train"].ratings)
    counts["train"]["dropped_as_in_test"] = counts["train"]["rows"] - left
    if left == 0:
        raise DatasetError(
            f"{paths['train']}: no maze is left of {counts['train']['rows']}: all are views of"
            f" mazes in {paths['test']}"
        )
    for split, stream, number in (
        ("train", Stream.SUBSAMPLE, options.subsample_size),
        ("test", Stream.TEST, options.test_size),
    ):
        puzzles[split] = subsample(puzzles[split], number, options.seed, stream)
    files = {path.name: file_sha256(path) for path in paths.values()}
    return Source(puzzles["train"], puzzles["test"], files, counts)


# CSV files


def read_mazes(path: Path, size: int) -> Puzzles:
    """Read and check a CSV file, gzipped if its name ends in .gz; every answer is checked.

    Returns: the mazes as tokens; their ratings are the cells on the path, S and G included.

    Raises: DatasetError: the file cannot be read, has no header or no maze, or a row is wrong: its
        fields, its length, a character, not one S and one G, an answer that is not the question
        with the `o` cells of a shortest path (see `dataset.maze.rules`), a rating that is not their
        number and 2. The message names the file and the line.
    """
    batches = read_batches(path, size, needs_rating=False)
    return Puzzles.joined([_checked_mazes(batch, path) for batch in batches])


def _checked_mazes(rows: list[CsvRow], path: Path) -> Puzzles:
    """Turn rows into tokens; DatasetError naming the first that is no maze with its answer."""
    questions = text_to_tokens([row.question for row in rows])
    answers = text_to_tokens([row.answer for row in rows])
    good = are_mazes(questions)
    moves, least = np.full((2, len(rows)), -1, dtype=np.int64)
    moves[good], least[good] = path_lengths(questions[good], answers[good])
    given = [
        cells if row.rating is None else row.rating
        for row, cells in zip(rows, moves + 1, strict=True)
    ]
    ratings = np.array(given, dtype=np.int64)
    good &= (moves >= 0) & (moves == least) & (ratings == moves + 1)
    if not good.all():
        first = int(good.argmin())
        problem = _content_problem(rows[first], int(moves[first]), int(least[first]))
        raise DatasetError(f"{path}: row {rows[first].line}: {problem}")
    return Puzzles(questions, answers, ratings)


def _content_problem(row: CsvRow, moves: int, least: int) -> str:
    for name, text, accepted in (
        ("question", row.question, CHARACTERS.replace("o", "")),
        ("answer", row.answer, CHARACTERS),
    ):
        for number, character in enumerate(text, start=1):
            if character not in accepted:
                return f"{name} has {character!r} in cell {number}; accepted: {accepted!r}"
    for end in "SG":
        count = row.question.count(end)
        if count != 1:
            return f"question has {count} {end}; accepted: exactly one"
    pairs = zip(row.question, row.answer, strict=True)
    for number, (before, after) in enumerate(pairs, start=1):
        if before != after and (before, after) != (" ", "o"):
            return (
                f"answer contradicts the question: {before!r} became {after!r} in cell {number};"
                " accepted: 'o' in place of ' '"
            )
    if moves < 0:
        return f"answer is no path: {_drawing_problem(row.answer)}"
    if moves != least:
        return f"answer has a path of {moves} moves; a shortest one has {least}"
    return f"rating is {row.rating}; accepted: {moves + 1}, the cells on the path, or nothing"


def _drawing_problem(answer: str) -> str:
    tokens = text_to_tokens([answer])[0]
    size = grid_size(len(tokens))
    drawn = np.pad((tokens >= START).reshape(size, size), 1).astype(int)
    neighbours = drawn[:-2, 1:-1] + drawn[2:, 1:-1] + drawn[1:-1, :-2] + drawn[1:-1, 2:]
    for number, (character, found) in enumerate(zip(answer, neighbours.flat, strict=True), start=1):
        expected = {"o": 2, "S": 1, "G": 1}.get(character, found)
        if found != expected:
            return (
                f"{character!r} in cell {number} has {found} neighbours among S, G and 'o';"
                f" accepted: {expected}"
            )
    return "there are 'o' in a ring apart from it"


# Building


def build(options: Options) -> str:
    """Build the data set in `options.output_dir`; return a line that says what was written.

    Raises: DatasetError, NoPuzzleError, or an OSError about the output folder: it is as it was.
    """
    source = None
    if options.source != "generate":
        source = csv_source(csv_paths(options.source, options.source_repo), options)
    with atomic_build(options.output_dir) as directory:
        # Generated in here, where it is known that DIR can be written: a search takes minutes.
        source = source or generated_source(options)
        rows = len(source.train.ratings) * options.num_views + len(source.test.ratings)
        bytes_per_cell = 6 if options.pixels else 3
        require_room(directory, bytes_per_cell * rows * options.size**2, _REMEDY)
        for split, puzzles, num_views in (
            ("train", source.train, options.num_views),
            ("test", source.test, 1),
        ):
            _write_mazes(directory / split, puzzles, num_views, with_pixels=options.pixels)
            source.counts[split] |= {
                "puzzles": len(puzzles.ratings),
                "examples": len(puzzles.ratings) * num_views,
                "mean_walls": round(float((puzzles.questions == WALL).sum(axis=1).mean()), 3),
                "mean_moves": round(float((puzzles.answers == PATH).sum(axis=1).mean()) + 1, 3),
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


def _write_mazes(split_dir: Path, puzzles: Puzzles, num_views: int, *, with_pixels: bool) -> None:
    inputs, labels = puzzles.questions, puzzles.answers
    if num_views > 1:
        inputs, labels = augment_mazes(inputs), augment_mazes(labels)
    fields = {"actions": (LabelField(NUM_ACTIONS), path_actions(labels))}
    if with_pixels:
        fields["pixels"] = (LabelField(num_classes=256, channels=3), maze_pixels(labels))
    write_puzzles(
        split_dir,
        inputs,
        labels,
        vocab_size=VOCAB_SIZE,
        views=num_views,
        fields=fields,
    )


def _summary(options: Options, counts: dict[str, dict[str, Any]]) -> str:
    train, test = counts["train"], counts["test"]
    notes = shortfalls(counts, options.subsample_size, options.test_size, "mazes")
    views = f", {options.num_views} views each" if options.aug else ""
    return (
        f"{options.output_dir}: {train['examples']:,} training examples"
        f" ({train['puzzles']:,} mazes{views}) and {test['examples']:,} test mazes written"
        + "".join(f"; {note}" for note in notes)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line asks for; return the exit code, the reason being on stderr."""
    options = parse_options(arguments)
    return run(lambda: build(options), options.output_dir, _REMEDY)


if __name__ == "__main__":
    sys.exit(main())
