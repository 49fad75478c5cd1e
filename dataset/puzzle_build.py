"""What the Sudoku and the maze builder have in common: options, sources, choice, writing, summary.

Each training puzzle makes one group: the original, then its augmentations. Every puzzle holds one
example and has the identifier 0. The same command gives the same bytes, wherever they are written.
"""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dataset import sources
from dataset.command_line import Parser, integer, require_room, run
from dataset.format.files import file_sha256, write_json
from dataset.format.layout import BLANK_NAME, IDENTIFIERS_NAME
from dataset.format.writing import atomic_build, write_manifest
from dataset.sources import CsvRow, Puzzles
from runtime.errors import DatasetError
from runtime.progress import bar
from runtime.streams import Stream

_DEFAULT_COUNT = 1000  # of generated training and test puzzles
_ROWS_AT_A_TIME = 4096

FoundPuzzles = tuple[dict[str, Puzzles], dict[str, str], dict[str, dict[str, Any]]]
"""Puzzles by split, sha256 by name of each file they are from, and counts by split."""


@dataclass(frozen=True)
class PuzzleBuild(ABC):
    """A build that the command line asks for; each kind of puzzle has its subclass.

    Args:
        source: "hf", "generate" or a folder.
        size: rows of a puzzle.
        subsample_size: training puzzles; None: all.
        test_size: test puzzles; None: all.
        selection_size: puzzles in neither, by which checkpoints are chosen; None: no such split.
    """

    program: ClassVar[str]
    description: ClassVar[str]
    puzzle: ClassVar[str]
    """What a puzzle is called; with an s, many."""
    csv_contents: ClassVar[str]
    published_repository: ClassVar[str]
    published_output_dir: ClassVar[Path]
    folders_need_output_dir: ClassVar[bool]
    """Whether --output-dir must be given with --source FOLDER, as it must with generate."""
    needs_rating: ClassVar[bool]
    remedy: ClassVar[str]
    else_selected: ClassVar[str] = ""
    """Where selection puzzles come from when the files have no others, for the help."""

    source: str
    source_repo: str
    output_dir: Path
    size: int
    subsample_size: int | None
    test_size: int | None
    selection_size: int | None
    seed: int

    @staticmethod
    @abstractmethod
    def add_flags(parser: Parser) -> None:
        """Add the flags that this kind alone has, and --size."""

    @staticmethod
    @abstractmethod
    def complete(parser: Parser, options: Namespace) -> None:
        """Complete and check these flags; `parser.error` says what is wrong."""

    @abstractmethod
    def flags(self) -> dict[str, Any]:
        """These flags as far as they decide about the bytes written, --size aside."""

    @property
    @abstractmethod
    def examples_per_puzzle(self) -> int:
        """Examples that each training puzzle becomes."""

    @property
    @abstractmethod
    def augmented(self) -> str:
        """How a puzzle was augmented, for the summary."""

    @property
    def bytes_per_cell(self) -> int:
        """What a cell takes on the disk: inputs, labels and fields."""
        return 2

    @abstractmethod
    def generate(
        self, number: int, *, stream: Stream, taken: set[Any], advance: Callable[[int], object]
    ) -> tuple[Puzzles, int]:
        """Generate `number` puzzles of `size`, drawn with `seed`; return them and the attempts.

        Args:
            stream: of the random draws.
            taken: keys of the puzzles so far, which are not made again; grows.
            advance: called with the number of puzzles found since the last call.
        Raises:
            NoPuzzleError: there are not as many, or they are too hard to find.
        """

    @abstractmethod
    def checked(self, rows: list[CsvRow], path: Path) -> Puzzles:
        """Turn rows into puzzles.

        Raises:
            DatasetError: a row is wrong; names the first, and what is wrong.
        """

    @abstractmethod
    def keys(self, questions: np.ndarray) -> list[bytes]:
        """Return a key of each question, uint8 [N, cells], equal for what counts as the same."""

    def image_keys(self, puzzles: Puzzles) -> list[Any]:
        """Return a key of each puzzle, equal for what is the same to a model that learns views."""
        return self.keys(puzzles.questions)

    def more_like(self, puzzles: Puzzles) -> Self | None:
        """Return a build that generates the kind of puzzles that these are; None: none does."""
        return None

    def wanted(self, puzzles: Puzzles, counts: dict[str, Any]) -> Puzzles:
        """Leave out what the flags do not want, and count it."""
        return puzzles

    @abstractmethod
    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        """Return numbers by name that the manifest gives for a split, to three digits."""

    @abstractmethod
    def write(self, split_dir: Path, puzzles: Puzzles, views: int) -> None:
        """Write a split with `views` examples of each puzzle, the original first."""

    @classmethod
    def main(cls, arguments: Sequence[str] | None = None) -> int:
        """Build what the command line asks for; return the exit code."""
        build = cls.parse(arguments)
        return run(build.build, build.output_dir, cls.remedy)

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> Self:
        """Parse and check the command line; a mistake prints one line and exits with code 2."""
        parser = cls._parser()
        options = parser.parse_all(arguments)
        source, generated = options.source, options.source == "generate"
        if options.output_dir is None:
            if generated or (cls.folders_need_output_dir and source != "hf"):
                parser.error(f"--output-dir is needed with --source {source}")
            options.output_dir = cls.published_output_dir
        if options.source_repo is None:
            options.source_repo = cls.published_repository
        elif source != "hf":
            parser.error(f"--source-repo is for --source hf, not for --source {source}")
        cls.complete(parser, options)
        if generated:
            options.subsample_size = options.subsample_size or _DEFAULT_COUNT
            options.test_size = options.test_size or _DEFAULT_COUNT
        return cls(**vars(options))

    @classmethod
    def _parser(cls) -> Parser:
        parser = Parser(prog=cls.program, description=cls.description, allow_abbrev=False)
        add, many = parser.add_argument, f"{cls.puzzle}s"
        default_with = "with --source hf"
        if not cls.folders_need_output_dir:
            default_with = "except with --source generate"
        positive = {"type": integer(1), "metavar": "N"}
        add(
            "--output-dir",
            type=Path,
            metavar="DIR",
            help="folder to write; a data set already there is replaced at the end"
            f" (default {default_with}: {cls.published_output_dir})",
        )
        add(
            "--source",
            default="hf",
            metavar="hf|generate|FOLDER",
            help=f"hf: a data set of the Hugging Face hub; generate: new {many}; FOLDER: train.csv"
            " and test.csv in it, or the same as .csv.gz if those are missing, with the columns"
            f" {','.join(sources.CSV_COLUMNS)}{cls.csv_contents} (default: hf)",
        )
        repository = f"the data set for --source hf (default: {cls.published_repository})"
        add("--source-repo", metavar="REPO", help=repository)
        default = f"(default: all; with --source generate {_DEFAULT_COUNT})"
        chosen = f"training {many}, chosen at random without replacement {default}"
        add("--subsample-size", **positive, help=chosen)
        add("--test-size", **positive, help=f"test {many} {default}")
        held_out = (
            f"also write the split selection: {many} by which a checkpoint is chosen, no images of"
            " training and test ones. They are training puzzles that were not chosen, or else such"
            f" test ones{cls.else_selected}"
        )
        add("--selection-size", **positive, help=held_out)
        cls.add_flags(parser)
        seeds = integer(0, 2**64 - 1)
        add("--seed", type=seeds, default=0, help="of all random choices (default: 0)")
        return parser

    def command(self) -> list[str]:
        """The command for the manifest: the flags that decide about the bytes written."""
        flags = {
            "source": self.source,
            "source-repo": self.source_repo if self.source == "hf" else None,
            "size": self.size,
            "subsample-size": self.subsample_size,
            "test-size": self.test_size,
            "selection-size": self.selection_size,
            **self.flags(),
            "seed": self.seed,
        }
        given = {name: v for name, v in flags.items() if v is not None and v is not False}
        texts = [f"--{name}" if v is True else f"--{name}={v}" for name, v in given.items()]
        return [self.program, *texts]

    def build(self) -> str:
        """Build the data set in `output_dir`; return a line that says what was written.

        Raises:
            DatasetError: a source is malformed, or the disk too small.
            NoPuzzleError: not as many puzzles could be generated.
            OSError: `output_dir` cannot be written. It is always as it was then.
        """
        source = None if self.source == "generate" else self._read()
        with atomic_build(self.output_dir) as directory:
            # Generated in here, where it is known that DIR can be written: a search may take long.
            puzzles, files, counts = source or self._generated()
            views = {"train": self.examples_per_puzzle, "test": 1, "selection": 1}
            for split, chosen in puzzles.items():
                number = len(chosen.ratings)
                counts[split] |= {"puzzles": number, "examples": number * views[split]}
                for name, value in self.statistics(chosen).items():
                    counts[split][name] = round(float(value), 3)
            rows = sum(of_split["examples"] for of_split in counts.values())
            require_room(directory, self.bytes_per_cell * rows * self.size**2, self.remedy)
            for split, chosen in puzzles.items():
                self.write(directory / split, chosen, views[split])
            write_json(directory / IDENTIFIERS_NAME, [BLANK_NAME])
            command, seed = self.command(), self.seed
            write_manifest(directory, command=command, seed=seed, sources=files, counts=counts)
        return self._summary(counts)

    def _generated(self) -> FoundPuzzles:
        """Generate the test puzzles first, so that they do not depend on how many train."""
        puzzles, counts, taken = {}, {}, set[Any]()
        for split, stream, number in (
            ("test", Stream.NEW_TEST, self.test_size),
            ("train", Stream.NEW_TRAIN, self.subsample_size),
            ("selection", Stream.NEW_SELECTION, self.selection_size),
        ):
            if number is None:
                continue
            with bar(None, f"generate {split}", f"{self.puzzle}s", total=number) as shown:
                puzzles[split], attempts = self.generate(
                    number, stream=stream, taken=taken, advance=shown.update
                )
            counts[split] = {"attempts": attempts}
        return puzzles, {}, counts

    def _read(self) -> FoundPuzzles:
        """Read train and test files, and choose: no training puzzle is a test puzzle too."""
        paths = sources.csv_paths(self.source, self.source_repo)
        puzzles = {split: self.read(path) for split, path in paths.items()}
        counts: dict[str, dict[str, Any]] = {
            split: {"rows": len(puzzles[split].ratings)} for split in puzzles
        }
        tested = set(self.keys(puzzles["test"].questions))
        kept = [key not in tested for key in self.keys(puzzles["train"].questions)]
        puzzles["train"] = puzzles["train"].rows(np.array(kept))
        counts["train"]["dropped_as_in_test"] = kept.count(False)
        found = dict[str, Puzzles]()
        for split, stream, number in (
            ("train", Stream.SUBSAMPLE, self.subsample_size),
            ("test", Stream.TEST, self.test_size),
        ):
            wanted = self.wanted(puzzles[split], counts[split])
            if not len(wanted.ratings):
                rows, *dropped = counts[split].items()
                why = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in dropped)
                raise DatasetError(
                    f"{paths[split]}: no {self.puzzle} is left of {rows[1]} ({why}) for"
                    f" {' '.join(self.command())}"
                )
            puzzles[split] = sources.subsample(wanted, number, self.seed, stream)
            found[split] = wanted
        if self.selection_size is not None:
            puzzles["selection"], source = self._selection(self.selection_size, puzzles, found)
            counts["selection"] = {"source": source}
        return puzzles, {path.name: file_sha256(path) for path in paths.values()}, counts

    def _selection(
        self, number: int, chosen: dict[str, Puzzles], found: dict[str, Puzzles]
    ) -> tuple[Puzzles, str]:
        """Choose puzzles that are no images of the chosen ones, nor of each other, and say from
        where: from those found for training, or else for the test, or else new ones.

        Raises:
            DatasetError: there are not as many.
        """
        taken = {key for puzzles in chosen.values() for key in self.image_keys(puzzles)}
        left = dict[str, int]()
        for split, puzzles in found.items():
            seen, rows = set(taken), list[int]()
            order = sources.shuffled(len(puzzles.ratings), self.seed, Stream.SELECTION)
            for first in range(0, len(order), _ROWS_AT_A_TIME):
                some = order[first : first + _ROWS_AT_A_TIME]
                for row, key in zip(some, self.image_keys(puzzles.rows(some)), strict=True):
                    if key not in seen:
                        seen.add(key)
                        rows.append(row)
                if len(rows) >= number:
                    return puzzles.rows(np.sort(rows[:number])), split
            left[split] = len(rows)
        if generator := self.more_like(chosen["train"]):
            with bar(None, "generate selection", f"{self.puzzle}s", total=number) as shown:
                stream, advance = Stream.NEW_SELECTION, shown.update
                new, _ = generator.generate(number, stream=stream, taken=taken, advance=advance)
            return new, "generator"
        raise DatasetError(
            f"--selection-size {number}: beside the {self.puzzle}s chosen and their images there"
            f" are {left['train']} for training and {left['test']} for the test; lower"
            " --test-size, --subsample-size or --selection-size"
        )

    def read(self, path: Path) -> Puzzles:
        """Read and check a CSV file.

        Raises:
            DatasetError: as `sources.read_batches` and `checked`; names the file and the line.
        """
        batches = sources.read_batches(path, self.size, needs_rating=self.needs_rating)
        return Puzzles.joined([self.checked(batch, path) for batch in batches])

    def _summary(self, counts: dict[str, dict[str, Any]]) -> str:
        """Say what was written, where fewer puzzles exist than asked for, and what was dropped."""
        train, test, many = counts["train"], counts["test"], f"{self.puzzle}s"
        parts = [
            f"{self.output_dir}: {train['examples']:,} training examples"
            f" ({train['puzzles']:,} {many}{self.augmented}) and {test['examples']:,} test {many}"
            " written"
        ]
        if selection := counts.get("selection"):
            of = {"train": "training", "test": "further test"}.get(
                selection.get("source", ""), "new"
            )
            parts.append(f"{selection['puzzles']:,} {of} {many} for the selection of checkpoints")
        for name, found, asked in (
            ("training", train["puzzles"], self.subsample_size),
            ("test", test["puzzles"], self.test_size),
        ):
            if asked is not None and found < asked:
                parts.append(f"fewer {name} {many} than the {asked:,} asked for exist")
        if dropped := train.get("dropped_as_in_test"):
            parts.append(f"{dropped:,} training rows dropped that are test rows too")
        return "; ".join(parts)
