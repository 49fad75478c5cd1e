"""Build a Sudoku data set: from the Hugging Face data sets, from CSV files, or from the generator.

    python dataset/build_sudoku_dataset.py --output-dir data/sudoku-extreme-1k-aug-1000 \\
        --subsample-size 1000 --num-aug 1000
    python dataset/build_sudoku_dataset.py --source generate --output-dir data/sudoku-new

The first command is the published one. docs/data_format.md describes the files.
`dataset.puzzle_build` has the parts shared with the maze builder.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from dataset.command_line import Parser, command_of, flag, integer
from dataset.format.writing import Fields
from dataset.puzzle_build import PuzzleBuild
from dataset.sources import CsvRow, GeneratedPuzzle, Puzzles
from dataset.sudoku.rules import EMPTY_CELL_HELP, EMPTY_MARKS, EMPTY_TOKEN, are_valid_solutions
from dataset.sudoku.symmetries import augment_sudoku
from runtime.progress import bar

_DEFAULT_CLUES = {4: (5, 10), 6: (12, 20), 9: (30, 40)}
_FEWEST_CLUES = {4: 4, 6: 8, 9: 17}  # No puzzle with fewer has one solution; 9: arXiv:1201.0749.
_NO_DIGIT = 255


class SudokuBuild(PuzzleBuild):
    """A build of Sudokus. Questions and answers hold digits here; 0 is an empty cell."""

    program, kind, puzzle = "build_sudoku_dataset.py", "sudoku", "puzzle"
    repository = "sapientinc/sudoku-extreme"
    output_dir = "data/sudoku-extreme-full"
    needs_rating = True
    own_flags = {
        "--size": flag("rows of the grid", int, 9, choices=(4, 6, 9)),
        "--num-aug": flag("random images to add to each training puzzle", integer(0), 0),
        "--variants": flag(
            "puzzles to make from each training puzzle that is read: with another solution, as hard"
            " for our solver or of 64 backtracks, and with the same rating in the set",
            integer(1),
        ),
        "--min-difficulty": flag(
            "drop puzzles with a lower rating: the rating column of a file, or the backtracks of"
            " our solver for generated puzzles (20 in a published file is about 100 backtracks)",
            integer(0),
        ),
        "--min-clues": flag(
            "fewest clues of generated puzzles (default: 5 at size 4, 12 at 6, 30 at 9)", integer(1)
        ),
        "--max-clues": flag(
            "most clues of generated puzzles (default: 10 at size 4, 20 at 6, 40 at 9)", integer(1)
        ),
    }

    @staticmethod
    def complete(parser: Parser, options: Namespace) -> None:
        has_clues = options.min_clues is not None or options.max_clues is not None
        if has_clues and (options.source != "generate" or options.min_difficulty):
            accepted = "--source generate without --min-difficulty"
            parser.error(f"--min-clues and --max-clues are for {accepted}")
        if options.source != "generate":
            return
        if options.variants is not None:
            parser.error("--variants is for puzzles that are read; --source generate makes more")
        fewest, most = _FEWEST_CLUES[options.size], options.size**2 - 1
        low, high = (fewest, most) if options.min_difficulty else _DEFAULT_CLUES[options.size]
        if options.min_clues is None:
            options.min_clues = min(low, options.max_clues or low)
        if options.max_clues is None:
            options.max_clues = max(high, options.min_clues)
        low, high = options.min_clues, options.max_clues
        if not (low <= high and fewest <= high <= most):
            parser.error(
                f"--min-clues {low} and --max-clues {high}; accepted at size {options.size}:"
                f" --max-clues from {fewest} to {most}, --min-clues up to --max-clues"
            )

    @property
    def views(self) -> int:
        return 1 + self.options.num_aug

    def command(self) -> list[str]:
        options = vars(self.options)
        if self.options.min_difficulty:  # `complete` refuses the clues that it filled in.
            options = options | {"min_clues": None, "max_clues": None}
        return command_of(self.program, Namespace(**options))

    def generate(self, **how: Any) -> Iterator[GeneratedPuzzle]:
        # Imported here because it loads the slow compiler.
        from dataset.sudoku.generator import generate_puzzles

        return generate_puzzles(
            min_clues=self.options.min_clues,
            max_clues=self.options.max_clues,
            min_rating=self.options.min_difficulty or 0,
            **how,
        )

    def parsed(self, rows: list[CsvRow]) -> tuple[Puzzles, dict[str, np.ndarray]]:
        """Turn rows into digits. A puzzle may have several solutions: this is not checked."""
        questions = _digits([row.question for row in rows], self.size)
        answers = _digits([row.answer for row in rows], self.size)
        valid = f"answer: not every row, column and box holds 1 to {self.size} once"
        known = f"question: a cell is neither 1 to {self.size} nor {EMPTY_CELL_HELP}"
        kept = (questions == 0) | (questions == answers)
        ratings = np.array([row.rating for row in rows], dtype=np.int64)
        return Puzzles(questions, answers, ratings), {
            known: (questions != _NO_DIGIT).all(axis=1),
            valid: are_valid_solutions(answers, self.size),
            "answer: it changes a digit of the question": kept.all(axis=1),
        }

    def keys(self, questions: np.ndarray) -> list[bytes]:
        return [question.tobytes() for question in questions]

    def image_keys(self, puzzles: Puzzles) -> list[Any]:
        from dataset.sudoku.generator import image_key  # It loads the compiler.

        pairs = zip(puzzles.questions, puzzles.answers, strict=True)
        return [image_key(question, answer, self.size) for question, answer in pairs]

    def filtered(self, puzzles: Puzzles, counts: dict[str, Any]) -> Puzzles:
        least = self.options.min_difficulty
        return self.without_easy(puzzles, -inf if least is None else least, counts)

    def enlarged(self, train: Puzzles, others: Sequence[Puzzles]) -> Puzzles:
        if self.options.variants is None:
            return train
        from dataset.sudoku.generator import vary_puzzles  # It loads the compiler.

        taken = {key for puzzles in (train, *others) for key in self.image_keys(puzzles)}
        how = {"seed": self.options.seed, "size": self.size, "taken": taken}
        total = self.options.variants * len(train.ratings)
        made = vary_puzzles(train, self.options.variants, **how)
        more = [*zip(*bar(made, "make variants", "puzzles", total=total), strict=True)]
        return Puzzles(*map(np.concatenate, zip(train, more, strict=True))) if more else train

    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        clues = (puzzles.questions != 0).sum(axis=1)
        return {"mean_clues": clues.mean(), "mean_rating": puzzles.ratings.mean()}

    def examples(self, puzzles: Puzzles, views: int) -> tuple[np.ndarray, np.ndarray, Fields]:
        tokens = puzzles.questions + EMPTY_TOKEN, puzzles.answers + EMPTY_TOKEN
        return *augment_sudoku(*tokens, views - 1, self.options.seed), {}


def _digits(texts: list[str], size: int) -> np.ndarray:
    """Return texts of equal length as uint8 [N, cells]: digits, 0 if empty, _NO_DIGIT otherwise."""
    table = np.full(256, _NO_DIGIT, dtype=np.uint8)
    table[list(EMPTY_MARKS.encode())] = 0
    table[ord("0") : ord("0") + size + 1] = np.arange(size + 1)
    characters = np.frombuffer("".join(texts).encode("ascii", "replace"), dtype=np.uint8)
    return table[characters].reshape(-1, size * size)


main, make = SudokuBuild.main, SudokuBuild.make

if __name__ == "__main__":
    sys.exit(main())
