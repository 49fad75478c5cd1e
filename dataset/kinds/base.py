"""What belongs to a kind of puzzles, and a puzzle as people give and judge it. Imports no torch.

A grid is a square array: of a Sudoku digits (0 where empty), of a maze tokens, of an ARC puzzle the
tokens of its canvas, in which the grid of colours lies in a corner. Each kind is one file, which
`dataset.kinds.KINDS` names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np

from dataset.dihedral import NUM_VIEWS, dihedral_view
from dataset.kinds import KINDS
from dataset.kinds.board import BoardLook, plain_colours
from runtime.text import many


class Verdict(NamedTuple):
    """What an answer is: right, wrong or (None) neither, since nobody knows; and in words."""

    solved: bool | None
    words: str


class Views:
    """The views of one kind of puzzle, numbered; 0 is the puzzle itself.

    Attributes:
        number: how many there are.
    """

    number: int

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return for views, int64 [N], which cell of the board each cell shows, int64 [N, cells],
        and the token that each token becomes, uint8 [N, tokens]; None: all stay.
        """
        raise NotImplementedError

    def apply(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        """Return each of the boards, uint8 [N, cells] tokens, in its view, int64 [N]."""
        cells, tokens = self.moves(views)
        turned = np.take_along_axis(boards, cells, 1)
        return turned if tokens is None else np.take_along_axis(tokens, turned, 1)

    def undo(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        """Return the boards of which `apply` made these."""
        cells, tokens = self.moves(views)
        if tokens is not None:
            boards = np.take_along_axis(tokens.argsort(1).astype(np.uint8), boards, 1)
        turned_back = np.empty_like(boards)
        np.put_along_axis(turned_back, cells, boards, 1)
        return turned_back

    def sources(self, views: np.ndarray) -> np.ndarray:
        """Return which cell of the board each cell of a view shows, int64 [N, cells]."""
        return self.moves(views)[0]


class DihedralViews(Views):
    """A square grid turned and mirrored."""

    number = NUM_VIEWS

    def __init__(self, size: int) -> None:
        self._size = size

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return turned_cells(views, self._size).astype(np.int64), None


def turned_cells(
    moves: np.ndarray, size: int, views: Sequence[int] = range(NUM_VIEWS)
) -> np.ndarray:
    """Return for each cell of a turned grid the one that it was, int32 [N, cells]; a move, int64
    [N], taken modulo the number of views, chooses a view.
    """
    grid = np.arange(size * size, dtype=np.int32).reshape(size, size)
    cells = np.stack([dihedral_view(grid, view).ravel() for view in views])
    return cells[moves % len(cells)]


class Kind:
    """What belongs to one kind of puzzle.

    Attributes:
        name: for people; in lower case it must be the name in `KINDS`, which dataset.json holds.
        rating: what data sets rate their puzzles by, for people.
        is_named: whether identifiers.json names its puzzles.
        instead_of_views: what does for its puzzles what views do, where they have none.
    """

    name: str
    rating = "rating"
    is_named = False
    instead_of_views = ""

    @property
    def key(self) -> str:
        """The name by which it is registered."""
        return self.name.lower()

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        """Return whether its puzzles may have so many cells and tokens."""
        return False

    def are(self, inputs: np.ndarray, labels: np.ndarray) -> bool:
        """Return whether these may be its puzzles: integers [N, seq_len], labels 0 or less where
        ignored. Only asked if another kind fits as well.
        """
        return True

    def vocab_size(self, size: int) -> int:
        """Return the tokens of grids of `size` rows."""
        raise NotImplementedError

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        """Turn [cells] tokens into a grid [size, size]; raise ValueError for those of no grid."""
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
        """Return the tokens of a grid as people look at it, [h, w], or `values` of its cells."""
        return self.to_tokens(grid).reshape(grid.shape) if values is None else values

    def recognises(self, text: str) -> bool:
        """Return whether a typed puzzle can only be of this kind; asked where nothing tells it."""
        return False

    def parse(self, text: str) -> "Puzzle":
        """Read a typed puzzle, its board's characters, in rows or in one line; raise ValueError
        for what is none.
        """
        cells = text.replace("\n", "")
        tokens = {one.text: one.token for one in self.board(isqrt(len(cells))).tokens}
        if unknown := [cell for cell in cells if cell not in tokens]:
            raise ValueError(f"a cell is {unknown[0]!r}; accepted: {' '.join(tokens)}")
        return Puzzle(self, self.to_grid(np.array([tokens[cell] for cell in cells], np.uint8)))

    def example(self, size: int, seed: int) -> "Puzzle | None":
        """Make a puzzle of `size` rows that can be solved; None: no program here makes them."""
        return None

    def answer_sizes(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return how large answers [N, cells] are, int64 [N] by name; {}: all are alike."""
        return {}

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


def not_so(what: str, wrong: np.ndarray) -> str:
    return f"not {what}: {many(int(wrong.sum()), 'cell')} cannot stay"


def kind_named(name: str) -> Kind:
    """Return the kind of this name.

    Raises:
        ValueError: none is registered, or the one that is has another name.
    """
    if name not in KINDS:
        known = ", ".join(KINDS)
        raise ValueError(f"kind {name!r} is not known (known: {known}); name its module in plugins")
    return KINDS.load(name)


def kinds_with(seq_len: int, vocab_size: int) -> list[Kind]:
    """Return the kinds whose puzzles may have so many cells and tokens.

    Of 4 x 4 cells and 6 tokens there are Sudokus and mazes.
    """
    return [kind for kind in map(KINDS.load, KINDS) if kind.fits(seq_len, vocab_size)]
