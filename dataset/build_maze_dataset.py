"""Build a maze data set: from the Hugging Face data set, from CSV files, or from the generator.

    python dataset/build_maze_dataset.py
    python dataset/build_maze_dataset.py --aug --output-dir data/maze-30x30-hard-1k-aug
    python dataset/build_maze_dataset.py --source generate --pixels --output-dir data/maze-new

The first is the published command line. `dataset.format.layout` describes what is written, and
`dataset.puzzle_build` has what it shares with the Sudoku builder.
"""

import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataset.command_line import Parser, integer
from dataset.dihedral import NUM_VIEWS, all_views, view_keys
from dataset.format.schema import LabelField
from dataset.format.writing import write_puzzles
from dataset.maze import rules
from dataset.maze.rules import CHARACTERS, PATH, START, WALL, text_to_tokens
from dataset.puzzle_build import PuzzleBuild
from dataset.sources import CsvRow, Puzzles
from runtime.errors import DatasetError
from runtime.streams import Stream

_PUBLISHED_SIZE, _PUBLISHED_MIN_LENGTH = 30, 109
_MAX_SIZE = 362  # Python's csv module takes fields of 2**17 characters


@dataclass(frozen=True)
class MazeBuild(PuzzleBuild):
    """A maze data set. Questions and answers are tokens; a rating is the cells on the path."""

    program = "build_maze_dataset.py"
    description = "Build a maze data set. Test mazes are never augmented."
    puzzle = "maze"
    csv_contents = (
        f": question and answer row by row in the characters '{CHARACTERS}' (wall, free, start,"
        " goal, path), rating the number of cells on the path or empty"
    )
    published_repository = "sapientinc/maze-30x30-hard-1k"
    published_output_dir = Path("data/maze-30x30-hard-1k")
    folders_need_output_dir = False
    needs_rating = False
    remedy = "lower --subsample-size or --size"
    else_selected = ", or else new ones with paths as long as the shortest of training, or longer"

    aug: bool
    pixels: bool
    min_length: int | None

    @staticmethod
    def add_flags(parser: Parser) -> None:
        add, size = parser.add_argument, _PUBLISHED_SIZE
        aug = "write each training maze in its eight turned and mirrored views, the original first"
        add("--aug", action=BooleanOptionalAction, default=False, help=aug)
        pixels = "also write the answers' colours, as the field `pixels`: 3 bytes for each cell"
        add("--pixels", action="store_true", help=pixels)
        sizes, rows = integer(2, _MAX_SIZE), f"rows, and columns, of a maze (default: {size})"
        add("--size", type=sizes, default=size, metavar="ROWS", help=rows)
        moves = (
            "moves that a shortest path of a generated maze has at least"
            f" (default at size {size}: {_PUBLISHED_MIN_LENGTH})"
        )
        add("--min-length", type=integer(1), metavar="MOVES", help=moves)

    @staticmethod
    def complete(parser: Parser, options: Namespace) -> None:
        if options.source != "generate":
            if options.min_length is not None:
                parser.error("--min-length is for --source generate")
            return
        size = options.size
        # A shortest path passes through at most three cells of every two by two.
        longest = 3 * ((size + 1) // 2) ** 2 - 1
        if options.min_length is None:
            if size != _PUBLISHED_SIZE:
                parser.error(f"--min-length is needed at size {size}; accepted: 1 to {longest}")
            options.min_length = _PUBLISHED_MIN_LENGTH
        elif options.min_length > longest:
            asked = f"--min-length {options.min_length}"
            parser.error(f"{asked}; accepted at size {size}: 1 to {longest}")

    def flags(self) -> dict[str, Any]:
        return {"aug": self.aug, "pixels": self.pixels, "min-length": self.min_length}

    @property
    def examples_per_puzzle(self) -> int:
        return NUM_VIEWS if self.aug else 1

    @property
    def bytes_per_cell(self) -> int:
        return super().bytes_per_cell + (4 if self.pixels else 1)

    @property
    def augmented(self) -> str:
        return f", {NUM_VIEWS} views each" if self.aug else ""

    def generate(
        self, number: int, *, stream: Stream, taken: set[Any], advance: Callable[[int], object]
    ) -> tuple[Puzzles, int]:
        # Imported here because it loads the compiler: only who generates waits for it.
        from dataset.maze.generator import generate_mazes

        assert self.min_length is not None
        mazes, attempts = generate_mazes(
            number,
            seed=self.seed,
            stream=stream,
            size=self.size,
            min_length=self.min_length,
            taken=taken,
            advance=advance,
        )
        answers, moves = rules.solve(mazes)
        return Puzzles(mazes, answers, moves + 1), attempts

    def checked(self, rows: list[CsvRow], path: Path) -> Puzzles:
        """Turn rows into tokens: one S, one G, and an answer with a shortest path between them."""
        questions = text_to_tokens([row.question for row in rows])
        answers = text_to_tokens([row.answer for row in rows])
        good = rules.are_mazes(questions)
        moves, least = np.full((2, len(rows)), -1, dtype=np.int64)
        moves[good], least[good] = rules.path_lengths(questions[good], answers[good])
        ratings = moves + 1
        good &= (moves >= 0) & (moves == least)
        good &= [row.rating in (None, cells) for row, cells in zip(rows, ratings, strict=True)]
        if not good.all():
            first = int(good.argmin())
            problem = _content_problem(rows[first], int(moves[first]), int(least[first]))
            raise DatasetError(f"{path}: row {rows[first].line}: {problem}")
        return Puzzles(questions, answers, ratings)

    def keys(self, questions: np.ndarray) -> list[bytes]:
        return view_keys(questions)

    def more_like(self, puzzles: Puzzles) -> "MazeBuild":
        return replace(self, min_length=int(puzzles.ratings.min()) - 1)

    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        return {
            "mean_walls": (puzzles.questions == WALL).sum(axis=1).mean(),
            "mean_moves": (puzzles.answers == PATH).sum(axis=1).mean() + 1,
        }

    def write(self, split_dir: Path, puzzles: Puzzles, views: int) -> None:
        inputs, labels = puzzles.questions, puzzles.answers
        if views > 1:
            inputs, labels = all_views(inputs), all_views(labels)
        fields = {"actions": (LabelField(rules.NUM_ACTIONS), rules.path_actions(labels))}
        if self.pixels:
            fields["pixels"] = (LabelField(256, channels=3), rules.maze_pixels(labels))
        write_puzzles(
            split_dir,
            inputs,
            labels,
            vocab_size=rules.VOCAB_SIZE,
            views=views,
            fields=fields,
            ratings=puzzles.ratings,
            kind="maze",
        )


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
            became = f"{before!r} became {after!r} in cell {number}; accepted: 'o' in place of ' '"
            return f"answer contradicts the question: {became}"
    if moves < 0:
        return f"answer is no path: {_drawing_problem(row.answer)}"
    if moves != least:
        return f"answer has a path of {moves} moves; a shortest one has {least}"
    return f"rating is {row.rating}; accepted: {moves + 1}, the cells on the path, or nothing"


def _drawing_problem(answer: str) -> str:
    tokens = text_to_tokens([answer])[0]
    size = rules.grid_size(len(tokens))
    drawn = np.pad((tokens >= START).reshape(size, size), 1).astype(int)
    neighbours = drawn[:-2, 1:-1] + drawn[2:, 1:-1] + drawn[1:-1, :-2] + drawn[1:-1, 2:]
    for number, (character, found) in enumerate(zip(answer, neighbours.flat, strict=True), start=1):
        expected = {"o": 2, "S": 1, "G": 1}.get(character, found)
        if found != expected:
            place = f"{character!r} in cell {number}"
            return f"{place} has {found} neighbours among S, G and 'o'; accepted: {expected}"
    return "there are 'o' in a ring apart from it"


main = MazeBuild.main

if __name__ == "__main__":
    sys.exit(main())
