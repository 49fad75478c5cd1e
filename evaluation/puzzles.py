"""Puzzles as people give and judge them: Sudokus, mazes and ARC test inputs. Imports no torch.

A grid is a square array: of a Sudoku digits (0 where empty), of a maze tokens, of an ARC puzzle the
tokens of its canvas, in which the grid of colours lies in a corner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataset.arc.augmentation import IDENTITY, parse_identifier, undo_grid
from dataset.arc.tasks import BLANK_NAME, Task, encode_canvas, parse_task
from dataset.dihedral import INVERSE_VIEWS, dihedral_view
from dataset.format.files import read_json
from dataset.format.layout import IDENTIFIERS_NAME, METADATA_NAME
from dataset.format.reading import load_metadata
from dataset.format.schema import (
    ARC_FIRST_COLOUR_TOKEN,
    ARC_PALETTE,
    ARC_VOCAB_SIZE,
    IGNORE_LABEL_ID,
)
from dataset.kinds import kinds_with
from dataset.kinds.board import BoardLook, TokenLook, colour_tokens, plain_colours
from dataset.maze import rules as maze
from dataset.sudoku import rules as sudoku
from evaluation.arc import crop_grids, parse_names
from evaluation.views import DihedralViews, SudokuViews, Views
from models.config import DataFacts
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError
from runtime.streams import Stream
from runtime.text import many


class Verdict(NamedTuple):
    """What an answer is: right, wrong or (None) neither, since nobody knows; and in words."""

    solved: bool | None
    words: str


class Kind:
    """What belongs to one kind of puzzle.

    Attributes:
        name: for people.
    """

    name: str

    def vocab_size(self, size: int) -> int:
        """Return the tokens of grids of `size` rows."""
        raise NotImplementedError

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        """Turn [cells] tokens into a grid [size, size].

        Raises:
            ValueError: they are none of this kind.
        """
        raise NotImplementedError

    def to_tokens(self, grid: np.ndarray) -> np.ndarray:
        """Turn a grid into uint8 [cells] tokens."""
        return grid.reshape(-1).astype(np.uint8)

    def board(self, size: int) -> BoardLook:
        """Return how boards of `size` rows look."""
        return plain_colours(self.vocab_size(size))

    def seen(
        self, puzzle: "Puzzle", grid: np.ndarray, values: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the tokens of a grid as people look at it, [h, w]; or `values` [size, size, ...]
        of its cells, in the same places.
        """
        return self.to_tokens(grid).reshape(grid.shape) if values is None else values

    def parse(self, text: str) -> "Puzzle":
        """Read a puzzle that was typed: its board's characters, in rows or in one line.

        Raises:
            ValueError: it is none of this kind.
        """
        cells = text.replace("\n", "")
        tokens = {one.text: one.token for one in self.board(isqrt(len(cells))).tokens}
        if unknown := [cell for cell in cells if cell not in tokens]:
            raise ValueError(f"a cell is {unknown[0]!r}; accepted: {' '.join(tokens)}")
        return Puzzle(self, self.to_grid(np.array([tokens[cell] for cell in cells], np.uint8)))

    def example(self, size: int, seed: int) -> "Puzzle | None":
        """Make a puzzle of `size` rows that can be solved; None: no program here makes them."""
        return None

    def views(self, size: int) -> Views | None:
        """Return the symmetries of grids of `size` rows, None where none are known."""
        return None

    def solution(self, question: np.ndarray) -> np.ndarray | None:
        """Return the answer that a plain program finds; None: there is none, or no such program."""
        return None

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark the cells of an answer that cannot stay, bool [size, size]."""
        raise NotImplementedError

    def changed(self, question: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Mark the cells in which two answers differ, bool [size, size]."""
        return before != after

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        """Say what an answer is; `target` is the right one, where it is known."""
        raise NotImplementedError


class SudokuKind(Kind):
    """By the rules of Sudoku; a target is not needed."""

    name = "Sudoku"

    def vocab_size(self, size: int) -> int:
        return size + 1 + sudoku.EMPTY_TOKEN

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        return sudoku.tokens_to_grid(tokens)

    def to_tokens(self, grid: np.ndarray) -> np.ndarray:
        return sudoku.grid_to_tokens(grid)

    def board(self, size: int) -> BoardLook:
        digits = {digit + sudoku.EMPTY_TOKEN: str(digit) for digit in range(1, size + 1)}
        return BoardLook(
            (
                *(TokenLook(token, text, text, keys=(text,)) for token, text in digits.items()),
                TokenLook(sudoku.EMPTY_TOKEN, "empty", ".", keys=(*sudoku.EMPTY_MARKS, " ")),
            ),
            cells="written",
            open=sudoku.EMPTY_TOKEN,
            box=sudoku.BOX_SHAPES.get(size),
            hint="Arrow keys move, digits fill, Backspace clears; paste a whole puzzle as text.",
        )

    def parse(self, text: str) -> "Puzzle":
        return parse_sudoku(text)

    def example(self, size: int, seed: int) -> "Puzzle":
        from dataset.sudoku.generator import generate_puzzles

        made = generate_puzzles(
            1,
            seed=seed,
            stream=Stream.NEW_TEST,
            size=size,
            min_clues=size**2 // 3,
            max_clues=size**2 // 2,
            min_rating=0,
            taken=set(),
        )
        return Puzzle(self, made.questions[0].reshape(size, size))

    def views(self, size: int) -> Views:
        return SudokuViews(size)

    def solution(self, question: np.ndarray) -> np.ndarray | None:
        return sudoku.solve(question)[0]

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark what is empty, repeated digits, and changed clues."""
        changed_clue = (question != 0) & (question != answer)
        return repeated_digits(answer) | (answer == 0) | changed_clue

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        valid = sudoku.is_valid_solution(answer, len(answer))
        if valid and sudoku.keeps_clues(question, answer):
            return Verdict(True, "a valid Sudoku that keeps the clues")
        return Verdict(False, _not("a solution", self.wrong(question, answer, target)))


def repeated_digits(grid: np.ndarray) -> np.ndarray:
    """Mark the cells whose digit stands again in their row, column or box; bool [size, size]."""
    layout = sudoku.layout_of(len(grid))
    cells = grid.reshape(-1)
    has_digit = cells[:, None] == np.arange(1, layout.size + 1)  # [cells, digits]
    unit_counts = has_digit[layout.unit_cells].sum(axis=1)  # [units, digits]
    repeated = (unit_counts[layout.cell_units] > 1).any(axis=1)  # [cells, digits]
    return (has_digit & repeated).any(axis=1).reshape(grid.shape)


class MazeKind(Kind):
    """By the drawn path; any shortest one is right, as the evaluator of mazes has it."""

    name = "maze"

    def vocab_size(self, size: int) -> int:
        return maze.VOCAB_SIZE

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        size = maze.grid_size(tokens.size)
        maze.tokens_to_text(tokens)
        return tokens.reshape(size, size).astype(np.int8)

    def board(self, size: int) -> BoardLook:
        wall, free, start, goal, path = maze.PALETTE
        return BoardLook(
            (
                TokenLook(maze.WALL, "wall", "#", wall, style="48;5;244", keys=("#",)),
                TokenLook(maze.FREE, "free", " ", free, style="0", keys=(" ", ".")),
                TokenLook(maze.START, "start", "S", start, "S", "42;30", ("S",), once=True),
                TokenLook(maze.GOAL, "goal", "G", goal, "G", "41;97", ("G",), once=True),
                TokenLook(maze.PATH, "path", "o", path, style="44;97", drawn=True),
            ),
            cells="filled",
            open=maze.FREE,
            pen=maze.WALL,
            hint="Arrow keys move; # wall, Space or . free, S start, G goal; drag to draw walls; "
            "paste rows as text.",
        )

    def parse(self, text: str) -> "Puzzle":
        return parse_maze(text)

    def example(self, size: int, seed: int) -> "Puzzle":
        from dataset.maze.generator import generate_mazes

        stream = Stream.NEW_TEST
        made = generate_mazes(1, seed=seed, stream=stream, size=size, min_length=size, taken=set())
        return Puzzle(self, self.to_grid(made.mazes[0]))

    def views(self, size: int) -> Views:
        return DihedralViews(size)

    def solution(self, question: np.ndarray) -> np.ndarray | None:
        labels, moves = maze.solve(question.reshape(1, -1))
        return self.to_grid(labels[0]) if moves[0] > 0 else None

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark changed walls and ends, and where the path ends early, forks or touches itself."""
        kept = (answer == question) | ((answer == maze.PATH) & (question == maze.FREE))
        drawn = np.pad(answer >= maze.START, 1)
        beside = drawn[2:, 1:-1] + 0 + drawn[:-2, 1:-1] + drawn[1:-1, 2:] + drawn[1:-1, :-2]
        due = np.where(answer == maze.PATH, 2, 1)
        return ~kept | ((answer >= maze.START) & (beside != due))

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        inputs, preds = question.reshape(1, -1), answer.reshape(1, -1)
        (moves,), (least,) = maze.path_lengths(inputs, preds)
        if moves < 0:
            return Verdict(False, _not("a path from S to G", self.wrong(question, answer, target)))
        if moves == least:
            return Verdict(True, f"a shortest path from S to G, {many(int(moves), 'move')}")
        return Verdict(
            False, f"a path from S to G of {many(int(moves), 'move')}; the shortest has {least}"
        )


class ArcKind(Kind):
    """By the right output, where it is known: as the votes have it, the cropped grids are equal."""

    name = "ARC"

    def vocab_size(self, size: int) -> int:
        return ARC_VOCAB_SIZE

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        size = maze.grid_size(tokens.size)
        if tokens.min() < 0 or tokens.max() >= ARC_VOCAB_SIZE:
            found = f"tokens from {tokens.min()} to {tokens.max()}"
            raise ValueError(f"{found}; accepted: 0 to {ARC_VOCAB_SIZE - 1}")
        return tokens.reshape(size, size).astype(np.int8)

    def board(self, size: int) -> BoardLook:
        return BoardLook(tuple(colour_tokens(ARC_PALETTE, ARC_FIRST_COLOUR_TOKEN)), canvas=True)

    def seen(
        self, puzzle: "Puzzle", grid: np.ndarray, values: np.ndarray | None = None
    ) -> np.ndarray:
        """Cut the grid of colours out of its canvas, and undo the augmentation."""
        view, colours = 0, IDENTITY
        if puzzle.name:
            _, view, colours = parse_identifier(puzzle.name)
        found, (row, column) = cropped(puzzle.question, grid), _corner(puzzle.question)
        if values is None:
            return undo_grid(found, view, colours) + ARC_FIRST_COLOUR_TOKEN
        height, width = found.shape
        return dihedral_view(
            values[row : row + height, column : column + width], INVERSE_VIEWS[view]
        )

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark what differs from the target where that has a label; without one nothing."""
        if target is None:
            return np.zeros(answer.shape, bool)
        return (target > 0) & (answer != target)

    def changed(self, question: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Mark them in the grids alone: nothing is asked of the canvas around these."""
        changed, (row, column) = np.zeros(after.shape, bool), _corner(question)
        for canvas in (before, after):
            height, width = cropped(question, canvas).shape
            grid = slice(row, row + height), slice(column, column + width)
            changed[grid] = before[grid] != after[grid]
        return changed

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        given = cropped(question, answer)
        shape = f"a grid of {given.shape[0]} x {given.shape[1]} cells"
        if target is None:
            return Verdict(None, f"{shape}; the right one is not known")
        if np.array_equal(given, cropped(question, target)):
            return Verdict(True, f"{shape}, the right one")
        differ = int(self.wrong(question, answer, target).sum())
        return Verdict(False, f"{shape}, not the right one: it differs in {many(differ, 'cell')}")


def cropped(question: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    """Return the grid of colours, uint8 [h, w], that lies on a canvas where the question's does: in
    training data that may be anywhere.
    """
    row, column = _corner(question)
    moved = np.zeros_like(canvas)
    there = canvas[row:, column:]
    moved[: there.shape[0], : there.shape[1]] = there
    return crop_grids(moved.reshape(1, -1))[0]


def _corner(question: np.ndarray) -> tuple[int, int]:
    """Return the row and the column at which the question's grid begins."""
    row, column = (int((question > 0).any(axis).argmax()) for axis in (1, 0))
    return row, column


def _not(what: str, wrong: np.ndarray) -> str:
    return f"not {what}: {many(int(wrong.sum()), 'cell')} cannot stay"


SUDOKU, MAZE, ARC = SudokuKind(), MazeKind(), ArcKind()
KINDS = {kind.name.lower(): kind for kind in (SUDOKU, MAZE, ARC)}
"""By the names that data sets and evaluators give them."""


@dataclass(frozen=True)
class Puzzle:
    """A puzzle, and what is known of it.

    Attributes:
        kind: which one it is.
        question: its grid.
        target: the right answer's; None: not known. Where a cell has no label it is 0.
        identifier: by which the puzzle embedding knows it.
        name: of an ARC puzzle that of its identifier, with the augmentation.
        row: its number in its set, from 0.
        place: how people call a puzzle of a data set: "puzzle 198", of one of several sets
            "easy, puzzle 198"; "" of others.
    """

    kind: Kind
    question: np.ndarray
    target: np.ndarray | None = None
    identifier: int = 0
    name: str = ""
    row: int = 0
    place: str = ""

    @property
    def tokens(self) -> np.ndarray:
        """What the model reads, uint8 [cells]."""
        return self.kind.to_tokens(self.question)


def kind_of(facts: DataFacts, evaluators: Sequence[str] = ()) -> Kind | None:
    """Return what kind of puzzles these facts are of; None: Sudokus or mazes of 4 x 4 cells, and
    neither the facts nor `evaluators`, by name, tell which.

    Raises:
        ValueError: of none that is known.
    """
    names = [facts.kind] if facts.kind else kinds_with(facts.seq_len, facts.vocab_size)
    if not names:
        raise ValueError(
            f"{facts.vocab_size} tokens and {facts.seq_len} cells are no Sudoku, maze or ARC task"
        )
    if len(names) > 1:
        names = [name for name in names if name in evaluators]
    return KINDS[names[0]] if len(names) == 1 else None


def kind_of_data(dataset: PuzzleDataset) -> Kind:
    """Return what kind of puzzles a data set has.

    Raises:
        DatasetError: none that is known, or they do not tell.
    """
    metadata, place = dataset.metadata, dataset.split_dirs[0]
    facts = DataFacts(metadata.vocab_size, metadata.seq_len, 1, kind=dataset.kind)
    try:
        kind = kind_of(facts)
    except ValueError as error:
        raise DatasetError(f"{place}: {error}") from None
    if kind is None:
        told = "its first rows are neither Sudokus nor mazes of 4 x 4 cells, or could be both"
        raise DatasetError(f"{place}: {told}")
    return kind


def parse_sudoku(text: str) -> Puzzle:
    """Read a Sudoku, as `dataset.sudoku.rules.parse_puzzle` does."""
    return Puzzle(SUDOKU, sudoku.parse_puzzle(text))


def parse_puzzle(text: str, kind: Kind | None) -> Puzzle:
    """Read a puzzle; of an unknown kind, a maze is what has walls or ends, the rest a Sudoku.

    Raises:
        ValueError: it is none.
    """
    guessed = MAZE if any(symbol in text for symbol in "#SG") else SUDOKU
    return (kind or guessed).parse(text)


def parse_maze(text: str) -> Puzzle:
    """Read a maze, in rows or in one line: `#` a wall, a space or `.` free, `S` and `G` its ends.

    Spaces at the end of a row may be left out.

    Raises:
        ValueError: another character, no square, or not one S and one G; it says where.
    """
    rows = text.strip("\r\n").splitlines()
    size = max(len(rows), *map(len, rows)) if len(rows) > 1 else 0
    cells = "".join(row.ljust(size) for row in rows).replace(".", " ")
    question = maze.text_to_tokens([cells])[0]
    accepted = "'#' wall, ' ' or '.' free, 'S' start, 'G' goal"
    unknown = np.flatnonzero((question == 0) | (question == maze.PATH))
    if len(unknown):
        at = int(unknown[0])
        raise ValueError(f"cell {at + 1} is {cells[at]!r}; accepted: {accepted}")
    grid = MAZE.to_grid(question)
    if not maze.are_mazes(question[None])[0]:
        starts, goals = ((question == end).sum() for end in (maze.START, maze.GOAL))
        raise ValueError(f"{starts} S and {goals} G; accepted: one of each")
    return Puzzle(MAZE, grid)


def arc_puzzles(task: Task, identifiers: Sequence[str] | None) -> list[Puzzle]:
    """Return the test inputs of a task.

    Args:
        identifiers: names of the puzzles that a model knows; None: it has no puzzle embedding.
    Raises:
        DatasetError: the task is not among them.
    """
    identifier = 0
    if identifiers is not None:
        if task.name not in identifiers:
            raise DatasetError(
                f"{task.source}: the model has not seen task {task.name} in training, and knows a "
                "task by its puzzle embedding only"
            )
        identifier = identifiers.index(task.name)
    return [
        Puzzle(
            ARC,
            ARC.to_grid(encode_canvas(question)),
            None if output is None else ARC.to_grid(encode_canvas(output)),
            identifier,
            task.name,
        )
        for question, output in task.test
    ]


def read_arc_task(path: Path) -> Task:
    """Read a task's JSON file, which has its name; test outputs may be missing.

    Raises:
        DatasetError: it is none; names the place.
    """
    content = read_json(path)
    return parse_task(path.stem, content, str(path), is_evaluation=True, outputs_may_lack=True)


def identifiers_of(dataset: PuzzleDataset) -> list[str]:
    """Return the name of each puzzle identifier of a data set.

    Raises:
        DatasetError: a file of names is missing or broken.
    """
    names = [BLANK_NAME] * dataset.metadata.num_puzzle_identifiers
    for folder, offset in zip(dataset.split_dirs, dataset.identifier_offsets, strict=True):
        path = folder.parent / IDENTIFIERS_NAME
        found = parse_names(read_json(path), path)
        expected = load_metadata(folder).num_puzzle_identifiers
        if len(found) != expected:
            counted = f"num_puzzle_identifiers is {expected} in {folder / METADATA_NAME}"
            raise DatasetError(f"{path}: {len(found)} names, but {counted}")
        names[offset : offset + len(found)] = found
    return names


def puzzles_of(
    dataset: PuzzleDataset, kind: Kind, rows: slice | Sequence[int] | None = None
) -> Iterator[Puzzle]:
    """Yield the puzzles of a data set, all or those of some rows, counted over its sets; rows that
    are given one by one must be in ascending order.

    Raises:
        DatasetError: they are not of this kind, or an identifier's name is missing.
    """
    place = dataset.split_dirs[0]
    names = identifiers_of(dataset) if kind is ARC else []
    counts = [arrays.num_examples for arrays in dataset.sets.values()]
    wanted = rows if isinstance(rows, Sequence) else range(sum(counts))[rows or slice(None)]
    first = 0
    for (set_name, arrays), count in zip(dataset.sets.items(), counts, strict=True):
        own = np.array([row - first for row in wanted if first <= row < first + count], np.int64)
        first += count
        if not len(own):
            continue
        puzzles = np.searchsorted(arrays.puzzle_indices, own, side="right") - 1
        batch = dataset.read(set_name, own, arrays.puzzle_identifiers[puzzles])
        of_set = f"{set_name}, " if len(counts) > 1 else ""
        for row, inputs, labels, identifier in zip(
            own.tolist(), batch.inputs, batch.labels, batch.puzzle_identifiers.tolist(), strict=True
        ):
            try:
                question = kind.to_grid(inputs)
                known = (labels != IGNORE_LABEL_ID).any()
                target = kind.to_grid(np.maximum(labels, 0)) if known else None
            except ValueError as error:
                raise DatasetError(f"{place}: not {kind.name} puzzles: {error}") from None
            name = names[identifier] if kind is ARC else ""
            yield Puzzle(kind, question, target, identifier, name, row, f"{of_set}puzzle {row}")
