"""Build a maze data set: from the Hugging Face data set, from CSV files, or from the generator.

    python dataset/build_maze_dataset.py
    python dataset/build_maze_dataset.py --aug --output-dir data/maze-30x30-hard-1k-aug
    python dataset/build_maze_dataset.py --source generate --pixels --output-dir data/maze-new

The first command is the published one. docs/data_format.md describes the files.
`dataset.puzzle_build` has the parts shared with the Sudoku builder.
"""

import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dataset.command_line import Parser, flag, integer
from dataset.dihedral import NUM_VIEWS, all_views, view_keys
from dataset.format.schema import LabelField
from dataset.format.writing import Fields
from dataset.maze import rules
from dataset.maze.pieces import cut_pieces
from dataset.maze.rules import CHARACTERS, PATH, WALL, text_to_tokens
from dataset.puzzle_build import PuzzleBuild
from dataset.sources import CsvRow, GeneratedPuzzle, Puzzles
from runtime.errors import DatasetError
from runtime.text import many

_PUBLISHED_SIZE, _PUBLISHED_MIN_LENGTH = 30, 109
_MAX_SIZE = 362  # Fields of Python's csv module have at most 2**17 characters.


class MazeBuild(PuzzleBuild):
    """A build of mazes. Questions and answers are tokens. A rating counts the cells on the path."""

    program, kind, puzzle = "build_maze_dataset.py", "maze", "maze"
    csv_contents = (
        f"; question and answer are in the characters '{CHARACTERS}' (wall, free, start, goal,"
        " path), row by row; rating is the number of cells on the path, or empty"
    )
    repository = "sapientinc/maze-30x30-hard-1k"
    output_dir = "data/maze-30x30-hard-1k"
    needs_rating = False
    own_flags = {
        "--size": flag("rows and columns of a maze", integer(2, _MAX_SIZE), _PUBLISHED_SIZE),
        "--aug": {
            "action": BooleanOptionalAction,
            "default": False,
            "help": "write all eight turned and mirrored views of each training maze",
        },
        "--pixels": {
            "action": "store_true",
            "help": "also write the field `pixels`, the colours of the answers: 3 bytes a cell",
        },
        "--closer": {
            "action": "store_true",
            "help": "also write the fields `closer`, each cell's neighbours that are closer to the"
            " goal, and `arrivals`, the time before a cell's labels can be known",
        },
        "--cut": flag(
            "use pieces of this many rows and columns of the source's mazes, with new starts and"
            " goals: as many as would lie side by side, from random places",
            integer(2, _MAX_SIZE),
        ),
        "--min-length": flag(
            "fewest moves from start to goal in a generated maze"
            f" (default at size {_PUBLISHED_SIZE}: {_PUBLISHED_MIN_LENGTH}) or a piece (default 1)",
            integer(1),
        ),
    }

    @staticmethod
    def complete(parser: Parser, options: Namespace) -> None:
        if options.cut is not None and options.source == "generate":
            parser.error("--cut is for mazes of a source: use --size for generated ones")
        if options.cut is not None and options.selection_size is not None:
            parser.error("--cut and --selection-size do not go together: pieces of a maze overlap")
        if (options.cut or 0) > options.size:
            parser.error(f"--cut {options.cut} is more than --size {options.size}")
        if options.source != "generate":
            if options.min_length is not None and options.cut is None:
                parser.error("--min-length is for --source generate and for --cut")
            return
        # A shortest path has at most three cells in each 2 x 2 square.
        longest = 3 * ((options.size + 1) // 2) ** 2 - 1
        if options.min_length is None and options.size == _PUBLISHED_SIZE:
            options.min_length = _PUBLISHED_MIN_LENGTH
        if not 1 <= (options.min_length or 0) <= longest:
            parser.error(f"--min-length is needed at size {options.size}; accepted: 1 to {longest}")

    @property
    def views(self) -> int:
        return NUM_VIEWS if self.options.aug else 1

    def generate(self, **how: Any) -> Iterator[GeneratedPuzzle]:
        # Imported here because it loads the slow compiler.
        from dataset.maze.generator import generate_mazes

        return generate_mazes(min_length=self.options.min_length, **how)

    def read_splits(
        self, paths: Mapping[str, Path], counts: Mapping[str, dict[str, Any]]
    ) -> dict[str, Puzzles]:
        mazes, size = super().read_splits(paths, counts), self.options.cut
        if size is None:
            return mazes
        for split, read in mazes.items():
            counts[split]["mazes"] = len(read.ratings)
        # Pieces of one maze overlap, so no maze may be cut for both splits.
        new = self.are_new(mazes["train"], mazes["test"])
        mazes["train"] = mazes["train"].rows(new)
        counts["train"]["mazes_dropped_as_in_test"] = int((~new).sum())
        if not len(mazes["train"].ratings):
            raise DatasetError(f"{paths['train']}: all mazes are in {paths['test'].name}, too")
        least = self.options.min_length or 1
        for split, path in paths.items():
            pieces = cut_pieces(mazes[split].questions, size, least, self.options.seed)
            if not len(pieces.ratings):
                raise DatasetError(f"{path}: no piece has a path of {many(least, 'move')} or more")
            mazes[split] = pieces
        return mazes

    def parsed(self, rows: list[CsvRow]) -> tuple[Puzzles, dict[str, np.ndarray]]:
        """Turn rows into tokens. Check for one S, one G, a shortest path and its rating."""
        questions = text_to_tokens([row.question for row in rows])
        answers = text_to_tokens([row.answer for row in rows])
        good = rules.are_mazes(questions)
        moves, least = np.full((2, len(rows)), -1, dtype=np.int64)
        moves[good], least[good], _ = rules.measure_paths(questions[good], answers[good])
        rated = [row.rating in (None, cells) for row, cells in zip(rows, moves + 1, strict=True)]
        return Puzzles(questions, answers, moves + 1), {
            "question: it must consist of '#', ' ', one 'S' and one 'G'": good,
            "answer: it must be the question with one path of 'o' from S to G": moves >= 0,
            "answer: its path is not a shortest one": moves == least,
            "rating: it must be the number of cells on the path, or empty": np.array(rated),
        }

    def keys(self, questions: np.ndarray) -> list[bytes]:
        return view_keys(questions)

    def similar_build(self, puzzles: Puzzles) -> "MazeBuild":
        min_length = int(puzzles.ratings.min()) - 1
        return MazeBuild(Namespace(**vars(self.options) | {"min_length": min_length}))

    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        return {
            "mean_walls": (puzzles.questions == WALL).sum(axis=1).mean(),
            "mean_moves": (puzzles.answers == PATH).sum(axis=1).mean() + 1,
        }

    def examples(self, puzzles: Puzzles, views: int) -> tuple[np.ndarray, np.ndarray, Fields]:
        inputs, labels = puzzles.questions, puzzles.answers
        if views > 1:
            inputs, labels = all_views(inputs), all_views(labels)
        fields = {"actions": (LabelField(rules.NUM_ACTIONS), rules.path_actions(labels))}
        if self.options.closer:
            moves = rules.moves_to_goal(inputs)
            fields["closer"] = (LabelField(rules.NUM_CLOSER), rules.closer_neighbours(moves))
            fields["arrivals"] = (LabelField(256, channels=2), rules.arrivals(moves, labels))
        if self.options.pixels:
            fields["pixels"] = (LabelField(256, channels=3), rules.maze_pixels(labels))
        return inputs, labels, fields


main, make = MazeBuild.main, MazeBuild.make

if __name__ == "__main__":
    sys.exit(main())
