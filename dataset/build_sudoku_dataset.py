"""Build a Sudoku data set: from the Hugging Face data sets, from CSV files, or from the generator.

    python dataset/build_sudoku_dataset.py --output-dir data/sudoku-extreme-1k-aug-1000 \\
        --subsample-size 1000 --num-aug 1000
    python dataset/build_sudoku_dataset.py --source generate --output-dir data/sudoku-new

The first is the published command line. `dataset.format.layout` describes what is written, and
`dataset.puzzle_build` has what it shares with the maze builder.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataset.command_line import Parser, integer
from dataset.format.writing import write_puzzles
from dataset.puzzle_build import PuzzleBuild
from dataset.sources import CsvRow, Puzzles
from dataset.sudoku.rules import (
    EMPTY_MARKS,
    EMPTY_SAID,
    EMPTY_TOKEN,
    are_valid_solutions,
    find_conflict,
)
from dataset.sudoku.symmetries import augment_sudoku
from runtime.errors import DatasetError
from runtime.progress import bar
from runtime.streams import Stream

_DEFAULT_CLUES = {4: (5, 10), 6: (12, 20), 9: (30, 40)}
_FEWEST_CLUES = {4: 4, 6: 8, 9: 17}  # with fewer no puzzle has one solution; 9: arXiv:1201.0749
_NO_DIGIT = 255


@dataclass(frozen=True)
class SudokuBuild(PuzzleBuild):
    """A Sudoku data set. Questions and answers are digits here, 0 where empty.

    With other sources than the generator, `min_clues` and `max_clues` are 0.
    """

    program = "build_sudoku_dataset.py"
    description = "Build a Sudoku data set. Test puzzles are never augmented."
    puzzle = "puzzle"
    csv_contents = ""
    published_repository = "sapientinc/sudoku-extreme"
    published_output_dir = Path("data/sudoku-extreme-full")
    folders_need_output_dir = True
    needs_rating = True
    remedy = "lower --subsample-size or --num-aug"

    num_aug: int
    min_difficulty: int | None
    min_clues: int
    max_clues: int

    @staticmethod
    def add_flags(parser: Parser) -> None:
        add = parser.add_argument
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
            " (published puzzles with a mean rating of 20 have about 100), and they are searched"
            " for",
        )
        add("--size", type=int, choices=(4, 6, 9), default=9, help="rows of the grid (default: 9)")
        ranges = [f"{size}: {low} to {high}" for size, (low, high) in _DEFAULT_CLUES.items()]
        fewest = (
            "fewest clues of generated puzzles; their number is drawn uniformly, save that few 9x9"
            f" puzzles get below 24 (default by size: {'; '.join(ranges)}; any with"
            " --min-difficulty)"
        )
        add("--min-clues", type=integer(1), metavar="LOW", help=fewest)
        add("--max-clues", type=integer(1), metavar="HIGH", help="most clues of generated puzzles")

    @staticmethod
    def complete(parser: Parser, options: Namespace) -> None:
        if options.source != "generate":
            if options.min_clues is not None or options.max_clues is not None:
                parser.error("--min-clues and --max-clues are for --source generate")
            options.min_clues = options.max_clues = 0
            return
        size, rated = options.size, bool(options.min_difficulty)
        fewest, most = _FEWEST_CLUES[size], size * size - 1
        low, high = (fewest, most) if rated else _DEFAULT_CLUES[size]
        if options.min_clues is None:
            options.min_clues = min(low, options.max_clues or low)
        if options.max_clues is None:
            options.max_clues = max(high, options.min_clues)
        low, high = options.min_clues, options.max_clues
        if low > most:
            parser.error(f"--min-clues {low}; accepted at size {size}: 1 to {most}")
        if not fewest <= high <= most:
            parser.error(f"--max-clues {high}; accepted at size {size}: {fewest} to {most}")
        if low > high:
            parser.error(f"--min-clues {low} is above --max-clues {high}")

    def flags(self) -> dict[str, Any]:
        flags = {"num-aug": self.num_aug, "min-difficulty": self.min_difficulty}
        if self.source == "generate":
            flags |= {"min-clues": self.min_clues, "max-clues": self.max_clues}
        return flags

    @property
    def examples_per_puzzle(self) -> int:
        return 1 + self.num_aug

    @property
    def augmented(self) -> str:
        return f", {self.num_aug:,} augmentations each"

    def generate(
        self, number: int, *, stream: Stream, taken: set[Any], advance: Callable[[int], object]
    ) -> tuple[Puzzles, int]:
        # Imported here because it loads the compiler: only who generates waits for it.
        from dataset.sudoku.generator import generate_puzzles

        made = generate_puzzles(
            number,
            seed=self.seed,
            stream=stream,
            size=self.size,
            min_clues=self.min_clues,
            max_clues=self.max_clues,
            min_rating=self.min_difficulty or 0,
            taken=taken,
            advance=advance,
        )
        return Puzzles(made.questions, made.answers, made.ratings), made.attempts

    def checked(self, rows: list[CsvRow], path: Path) -> Puzzles:
        """Turn rows into digits. Whether a puzzle has only one solution is not checked."""
        questions = _digits([row.question for row in rows], self.size)
        answers = _digits([row.answer for row in rows], self.size)
        good = (questions != _NO_DIGIT).all(axis=1) & are_valid_solutions(answers, self.size)
        good &= ((questions == 0) | (questions == answers)).all(axis=1)
        if not good.all():
            row = rows[int(good.argmin())]
            problem = _content_problem(row.question, row.answer, self.size)
            raise DatasetError(f"{path}: row {row.line}: {problem}")
        return Puzzles(questions, answers, np.array([row.rating for row in rows], dtype=np.int64))

    def keys(self, questions: np.ndarray) -> list[bytes]:
        return [question.tobytes() for question in questions]

    def image_keys(self, puzzles: Puzzles) -> list[Any]:
        from dataset.sudoku.generator import image_key  # It loads the compiler, as above.

        questions, answers = puzzles.questions.astype(np.int64), puzzles.answers.astype(np.int64)
        return [image_key(*pair, self.size) for pair in zip(questions, answers, strict=True)]

    def wanted(self, puzzles: Puzzles, counts: dict[str, Any]) -> Puzzles:
        hard = puzzles
        if self.min_difficulty is not None:
            hard = puzzles.rows(puzzles.ratings >= self.min_difficulty)
        counts["dropped_as_too_easy"] = len(puzzles.ratings) - len(hard.ratings)
        return hard

    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        clues = (puzzles.questions != 0).sum(axis=1)
        return {"mean_clues": clues.mean(), "mean_rating": puzzles.ratings.mean()}

    def write(self, split_dir: Path, puzzles: Puzzles, views: int) -> None:
        questions, answers = puzzles.questions + EMPTY_TOKEN, puzzles.answers + EMPTY_TOKEN
        num_rows = len(questions) * views if views > 1 else 0
        with bar(None, "augment", "examples", total=num_rows) as shown:
            inputs, labels = augment_sudoku(questions, answers, views - 1, self.seed, shown.update)
        write_puzzles(
            split_dir,
            inputs,
            labels,
            vocab_size=self.size + EMPTY_TOKEN + 1,
            views=views,
            ratings=puzzles.ratings,
            kind="sudoku",
        )


def _digits(texts: list[str], size: int) -> np.ndarray:
    table = np.full(256, _NO_DIGIT, dtype=np.uint8)
    table[list(EMPTY_MARKS.encode())] = 0
    table[ord("0") : ord("0") + size + 1] = np.arange(size + 1)
    characters = np.frombuffer("".join(texts).encode("ascii", "replace"), dtype=np.uint8)
    return table[characters].reshape(-1, size * size)


def _content_problem(question: str, answer: str, size: int) -> str:
    digits = "123456789"[:size]
    for name, text, accepted, also in (
        ("question", question, digits + EMPTY_MARKS, f", and {EMPTY_SAID}"),
        ("answer", answer, digits, ""),
    ):
        for number, character in enumerate(text, start=1):
            if character not in accepted:
                return f"{name} has {character!r} in cell {number}; accepted: 1 to {size}{also}"
    conflict = find_conflict(_digits([answer], size).reshape(size, size))
    if conflict is not None:
        return f"answer breaks the rules: {conflict}"
    pairs = list(zip(question, answer, strict=True))
    cell = next(i for i, (clue, given) in enumerate(pairs) if clue not in (*EMPTY_MARKS, given))
    clue, given = pairs[cell]
    return f"answer contradicts the question: {clue} became {given} in cell {cell + 1}"


main = SudokuBuild.main

if __name__ == "__main__":
    sys.exit(main())
