"""The shared parts of the Sudoku and maze builders: flags, sources, selection, writing, summary.

Each training puzzle makes one group: the original, then its augmentations. Every puzzle holds one
example and has the identifier 0. The same command gives the same bytes in any output folder.
"""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dataset import sources
from dataset.command_line import SEED, Flags, Parser, command_of, flag, integer, run_tool
from dataset.format.files import file_sha256, write_json
from dataset.format.schema import BLANK_NAME, IDENTIFIERS_NAME
from dataset.format.writing import (
    Fields,
    atomic_build,
    require_place,
    write_manifest,
    write_puzzles,
)
from dataset.kinds.base import kind_named
from dataset.sources import CsvRow, GeneratedPuzzle, Puzzles
from runtime.errors import DatasetError
from runtime.progress import bar
from runtime.streams import Stream

_DEFAULT_COUNT = 1000  # generated puzzles of each split
_ROWS_AT_A_TIME = 16_384

FoundPuzzles = tuple[dict[str, Puzzles], dict[str, str], dict[str, dict[str, Any]]]
"""(puzzles by split, sha256 of each source file by name, counts by split)."""


class PuzzleBuild(ABC):
    """One build of a data set; each kind of puzzle has a subclass.

    Attributes:
        options: the parsed command line; with --source generate, missing numbers are filled in.
        size: rows of a puzzle.
    """

    program: ClassVar[str]
    """The name of the builder's file."""
    kind: str
    puzzle: str
    """The word for one puzzle; its plural ends in s."""
    csv_contents: ClassVar[str] = ""
    """Help on the contents of the CSV files."""
    repository: ClassVar[str | None] = None
    """The published data set on the hub; None: there is none, and puzzles are generated."""
    output_dir: ClassVar[str] = ""
    """The folder of the published data set."""
    needs_rating: ClassVar[bool]
    own_flags: ClassVar[Flags]
    """The flags of this kind alone, and --size."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.size = options, int(options.size)

    @staticmethod
    @abstractmethod
    def complete(parser: Parser, options: Namespace) -> None:
        """Check `own_flags` and fill in their defaults; call `parser.error` for a mistake."""

    @property
    @abstractmethod
    def views(self) -> int:
        """The number of examples made from each training puzzle."""

    @abstractmethod
    def generate(self, **how: Any) -> Iterator[GeneratedPuzzle]:
        """Yield new puzzles.

        Args:
            how: seed, stream and size, and `taken`: the keys of puzzles that must not be made
                again. The keys of the new ones are added to it.
        Raises:
            ConfigError: there are no more puzzles, or they are too hard to find.
        """

    def generate_split(
        self, split: str, number: int, stream: Stream, taken: set[Any]
    ) -> tuple[Puzzles, int]:
        """Generate `number` puzzles for a split; return them and the number of attempts."""
        how = {"seed": self.options.seed, "stream": stream, "size": self.size, "taken": taken}
        new = islice(self.generate(**how), number)
        made = [*bar(new, f"generate {split}", f"{self.puzzle}s", total=number)]
        questions, answers, ratings, attempts = map(np.array, zip(*made, strict=True))
        return Puzzles(questions, answers, ratings), int(attempts[-1])

    @abstractmethod
    def parsed(self, rows: list[CsvRow]) -> tuple[Puzzles, dict[str, np.ndarray]]:
        """Return rows as puzzles, and for each error message bool [N]: whether a row is right."""

    @abstractmethod
    def keys(self, questions: np.ndarray) -> list[bytes]:
        """Return a key for each question, uint8 [N, cells]; equal keys mean the same puzzle."""

    def image_keys(self, puzzles: Puzzles) -> list[Any]:
        """Return a key for each puzzle; all symmetric images of a puzzle have the same key."""
        return self.keys(puzzles.questions)

    def similar_build(self, puzzles: Puzzles) -> Self | None:
        """Return a build that generates similar puzzles, or None if no generator can."""
        return None

    def filtered(self, puzzles: Puzzles, counts: dict[str, Any]) -> Puzzles:
        """Drop the puzzles excluded by the flags, and add their number to `counts`."""
        return puzzles

    @staticmethod
    def without_easy(puzzles: Puzzles, least: float, counts: dict[str, Any]) -> Puzzles:
        """Drop the puzzles with a lower rating, and count them."""
        hard = puzzles.rows(puzzles.ratings >= least)
        counts["dropped_as_too_easy"] = len(puzzles.ratings) - len(hard.ratings)
        return hard

    def enlarged(self, train: Puzzles, others: Sequence[Puzzles]) -> Puzzles:
        """Return the training puzzles, with more if the flags ask for them.

        Args:
            others: the puzzles of the other splits; none of them is added.
        """
        return train

    @abstractmethod
    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        """Return the statistics of a split for the manifest, which rounds them to three digits."""

    @abstractmethod
    def examples(self, puzzles: Puzzles, views: int) -> tuple[np.ndarray, np.ndarray, Fields]:
        """Return inputs and labels, uint8 [N * views, cells] tokens, and the label fields.

        The `views` examples of a puzzle stand together, the original first.
        """

    @classmethod
    def main(cls, arguments: Sequence[str] | None = None) -> int:
        """Parse the command line and build; return the exit code."""
        return run_tool(lambda: cls.make(arguments))

    @classmethod
    def make(cls, arguments: Sequence[str] | None) -> str:
        """Build with this command line and return a summary; raise what `build` raises."""
        return cls.parse(arguments).build()

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> Self:
        """Parse and check the command line; for a mistake, print one line and exit with code 2."""
        description = f"Build a {cls.puzzle} data set. Test puzzles are never augmented."
        parser = Parser(prog=cls.program, description=description, allow_abbrev=False)
        for name, settings in cls._flags().items():
            parser.add_argument(name, **settings)
        options = parser.parse_all(arguments)
        if options.source == "hf" and cls.repository is None:
            parser.error("no such data set is published; use --source generate or FOLDER")
        if options.source == "hf":
            options.source_repo = options.source_repo or cls.repository
            options.output_dir = options.output_dir or Path(cls.output_dir)
        elif options.output_dir is None:
            parser.error(f"--output-dir is needed with --source {options.source}")
        elif getattr(options, "source_repo", None) is not None:
            parser.error(f"--source-repo is for --source hf, not for --source {options.source}")
        cls.complete(parser, options)
        if options.source == "generate":
            options.subsample_size = options.subsample_size or _DEFAULT_COUNT
            options.test_size = options.test_size or _DEFAULT_COUNT
        return cls(options)

    @classmethod
    def _flags(cls) -> Flags:
        number, default = integer(1), f"(default: all; with --source generate {_DEFAULT_COUNT})"
        hub, of_hub = "", dict[str, Mapping[str, Any]]()
        if cls.repository:
            hub = "hf: a data set on the Hugging Face hub; "
            repository = f"the data set for --source hf (default: {cls.repository})"
            of_hub = {"--source-repo": flag(repository)}
        folder = f"folder to write (default with --source hf: {cls.output_dir})"
        return {
            "--output-dir": flag(folder if cls.repository else "folder to write", Path),
            "--source": flag(
                f"{hub}generate: new puzzles; FOLDER: its"
                " train.csv and test.csv, or else train.csv.gz and test.csv.gz, with the columns"
                f" {','.join(sources.CSV_COLUMNS)}{cls.csv_contents}",
                default="hf" if cls.repository else "generate",
                metavar="hf|generate|FOLDER" if cls.repository else "generate|FOLDER",
            ),
            **of_hub,
            "--size": cls.own_flags["--size"],
            "--subsample-size": flag(f"training puzzles, chosen at random {default}", number),
            "--test-size": flag(f"test puzzles {default}", number),
            "--selection-size": flag(
                "also write this many puzzles as the split `selection`, for choosing a checkpoint:"
                " unused training puzzles, or else unused test puzzles, or else generated ones",
                number,
            ),
            **cls.own_flags,
            "--seed": flag("seed of all random choices", SEED, 0),
        }

    def command(self) -> list[str]:
        """Return the command for the manifest."""
        return command_of(self.program, self.options)

    def build(self) -> str:
        """Build the data set in `options.output_dir`; return a summary line.

        If it fails, the folder is unchanged.

        Raises:
            DatasetError: a source is malformed, or the disk is full.
            ConfigError: too few puzzles could be generated, or the folder is not writable.
        """
        require_place(self.options.output_dir)
        source = None if self.options.source == "generate" else self._read_all()
        with atomic_build(self.options.output_dir) as directory:
            # Generate only after the folder proved writable, because it may take long.
            puzzles, files, counts = source or self._generate_all()
            others = [some for split, some in puzzles.items() if split != "train"]
            found = len(puzzles["train"].ratings)
            puzzles["train"] = self.enlarged(puzzles["train"], others)
            if more := len(puzzles["train"].ratings) - found:
                counts["train"]["variants"] = more
            for split, chosen in puzzles.items():
                number, views = len(chosen.ratings), self.views if split == "train" else 1
                counts[split] |= {"puzzles": number, "examples": number * views}
                for name, value in self.statistics(chosen).items():
                    counts[split][name] = round(float(value), 3)
                inputs, labels, fields = self.examples(chosen, views)
                write_puzzles(
                    directory / split,
                    inputs,
                    labels,
                    vocab_size=kind_named(self.kind).vocab_size(self.size),
                    views=views,
                    fields=fields,
                    ratings=chosen.ratings,
                    kind=self.kind,
                )
            write_json(directory / IDENTIFIERS_NAME, [BLANK_NAME])
            command, seed = self.command(), self.options.seed
            write_manifest(directory, command=command, seed=seed, sources=files, counts=counts)
        return self._summary(counts)

    def _generate_all(self) -> FoundPuzzles:
        """Generate all splits, the test puzzles first: --subsample-size must not change them."""
        puzzles, counts, taken = {}, {}, set[Any]()
        for split, stream, number in (
            ("test", Stream.NEW_TEST, self.options.test_size),
            ("train", Stream.NEW_TRAIN, self.options.subsample_size),
            ("selection", Stream.NEW_SELECTION, self.options.selection_size),
        ):
            if number is None:
                continue
            puzzles[split], attempts = self.generate_split(split, number, stream, taken)
            counts[split] = {"attempts": attempts}
        return puzzles, {}, counts

    def _read_all(self) -> FoundPuzzles:
        """Read and subsample both files; drop training puzzles that are also test puzzles."""
        options = self.options
        paths = sources.csv_paths(options.source, vars(options).get("source_repo", ""))
        counts: dict[str, Any] = {split: {} for split in paths}
        puzzles = self.read_splits(paths, counts)
        for split, read in puzzles.items():
            counts[split]["rows"] = len(read.ratings)
        new = self.are_new(puzzles["train"], puzzles["test"])
        puzzles["train"] = puzzles["train"].rows(new)
        counts["train"]["dropped_as_in_test"] = int((~new).sum())
        found = dict[str, Puzzles]()
        for split, stream, number in (
            ("train", Stream.SUBSAMPLE, options.subsample_size),
            ("test", Stream.TEST, options.test_size),
        ):
            found[split] = self.filtered(puzzles[split], counts[split])
            if not len(found[split].ratings):
                left = ", ".join(
                    f"{n} {name.replace('_', ' ')}" for name, n in counts[split].items()
                )
                asked = " ".join(self.command())
                raise DatasetError(f"{paths[split]}: no {self.puzzle} is left of {left}: {asked}")
            puzzles[split] = sources.subsample(found[split], number, options.seed, stream)
        if options.selection_size is not None:
            puzzles["selection"], source = self._selection(puzzles, found)
            counts["selection"] = {"source": source}
        return puzzles, {path.name: file_sha256(path) for path in paths.values()}, counts

    def _selection(
        self, chosen: dict[str, Puzzles], found: dict[str, Puzzles]
    ) -> tuple[Puzzles, str]:
        """Return the selection puzzles and their source: unused training puzzles, or else unused
        test puzzles, or else new ones. None is an image of a chosen or another selection puzzle.

        Raises:
            DatasetError: there are too few.
        """
        number, seed, left = self.options.selection_size, self.options.seed, dict[str, int]()
        taken = {key for puzzles in chosen.values() for key in self.image_keys(puzzles)}
        for split, puzzles in found.items():
            seen, rows = set(taken), list[int]()
            for row in sources.shuffled(len(puzzles.ratings), seed, Stream.SELECTION):
                (key,) = self.image_keys(puzzles.rows(row[None]))
                if key not in seen:
                    seen.add(key)
                    rows.append(row)
                    if len(rows) == number:
                        return puzzles.rows(np.sort(rows)), split
            left[split] = len(rows)
        if generator := self.similar_build(chosen["train"]):
            stream = Stream.NEW_SELECTION
            return generator.generate_split("selection", number, stream, taken)[0], "generator"
        raise DatasetError(
            f"--selection-size {number}: only {left['train']} training {self.puzzle}s and"
            f" {left['test']} test {self.puzzle}s are neither chosen nor an image of a chosen one;"
            " lower --test-size, --subsample-size or --selection-size"
        )

    def are_new(self, train: Puzzles, test: Puzzles) -> np.ndarray:
        """Return bool [N]: whether each training puzzle is no test puzzle."""
        tested = set(self.keys(test.questions))
        return np.array([key not in tested for key in self.keys(train.questions)])

    def read_splits(
        self, paths: Mapping[str, Path], counts: Mapping[str, dict[str, Any]]
    ) -> dict[str, Puzzles]:
        """Read and check all CSV files, by split. A kind may add to the `counts` of a split."""
        return {split: self.read(path) for split, path in paths.items()}

    def read(self, path: Path) -> Puzzles:
        """Read and check a CSV file; raise DatasetError with the file and the line."""
        rated, parts = self.needs_rating, []
        rows = sources.read_rows(path, self.size, self.options.size, needs_rating=rated)
        while some := list(islice(rows, _ROWS_AT_A_TIME)):
            puzzles, rules = self.parsed(some)
            right = np.all([*rules.values()], axis=0)
            if not right.all():
                row = int(right.argmin())
                broken = next(rule for rule, kept in rules.items() if not kept[row])
                raise DatasetError(f"{path}: row {some[row].line}: {broken}")
            parts.append(puzzles)
        if not parts:
            raise DatasetError(f"{path}: no puzzle below the header")
        return Puzzles(*map(np.concatenate, zip(*parts, strict=True)))

    def _summary(self, counts: dict[str, dict[str, Any]]) -> str:
        """Return the line with the numbers of puzzles written, missing and dropped."""
        train, test, many = counts["train"], counts["test"], f"{self.puzzle}s"
        parts = [
            f"{self.options.output_dir}: {train['examples']:,} training examples of"
            f" {train['puzzles']:,} {many} and {test['examples']:,} test {many} written"
        ]
        if selection := counts.get("selection"):
            new = f"{selection['puzzles']:,} {many} for the selection of checkpoints"
            parts.append(f"{new} from {selection.get('source', 'generator')}")
        for name, found, asked in (
            ("training", train["puzzles"] - train.get("variants", 0), self.options.subsample_size),
            ("test", test["puzzles"], self.options.test_size),
        ):
            if asked is not None and found < asked:
                parts.append(f"fewer {name} {many} exist than the {asked:,} asked for")
        for name, rows in ((f"{many}_dropped_as_in_test", many), ("dropped_as_in_test", "rows")):
            if dropped := train.get(name):
                same = f"dropped because they are test {rows} too"
                parts.append(f"{dropped:,} training {rows} {same}")
        return "; ".join(parts) + "\n"
