"""What belongs to a kind of puzzles, and a puzzle as people give and judge it. Imports no torch.

A grid is a square array: of a Sudoku digits (0 where empty), of a maze tokens, of an ARC puzzle the
tokens of its canvas, in which the grid of colours lies in a corner. Each kind is one file, which
`dataset.kinds.KINDS` names.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

from dataset.dihedral import NUM_VIEWS, view_cells
from dataset.format.schema import ARC_PALETTE
from dataset.kinds import KINDS
from runtime.text import many

_COLOURS = (*ARC_PALETTE, "#9AA5B1", "#5B2C6F", "#117A65", "#7E5109", "#78281F", "#1B4F72")


@dataclass(frozen=True)
class TokenLook:
    """How one token looks.

    Attributes:
        text: its character where a puzzle is written as text.
        fill: colour of its cell, #RRGGBB; "": that of the paper.
        letter: what is written on the filled cell.
        style: its cell in a terminal, numbers of an ANSI escape; "": as `fill` is.
        keys: keys that type it; the first stands for it in a typed puzzle.
        once: it stands once on a board, and where the puzzle has it, whatever is answered.
        drawn: models draw it: paler where they are less sure, and another colour where it is new.
    """

    token: int
    name: str
    text: str = "?"
    fill: str = ""
    letter: str = ""
    style: str = ""
    keys: tuple[str, ...] = ()
    once: bool = False
    drawn: bool = False


@dataclass(frozen=True)
class BoardLook:
    """How the boards of one kind and size look; `dataclasses.asdict` makes JSON of it for a page.

    Attributes:
        tokens: those that are drawn, in the order of a keypad.
        cells: "written": paper with the token's text, in colours that say what happened to it;
            candidates stand small in the corners. "filled": in the token's colour, which may be
            mixed with others. "coloured": in the token's colour alone, which means something: the
            cell is smaller where a model is less sure.
        open: the token of a cell that is to be answered.
        box: rows and columns between thick lines.
        canvas: the boards are canvases with smaller grids on them; input, answer and right answer
            are shown side by side, and nothing is asked of what lies outside of the right one.
        pen: the token that is drawn with the pointer; None: none.
        hint: how a puzzle is typed, for people; "": it is not typed, but loaded from a file.
    """

    tokens: tuple[TokenLook, ...]
    cells: Literal["written", "filled", "coloured"] = "coloured"
    open: int = 0
    box: tuple[int, int] | None = None
    canvas: bool = False
    pen: int | None = None
    hint: str = ""

    @cached_property
    def _by_token(self) -> dict[int, TokenLook]:
        return {each.token: each for each in self.tokens}

    def token(self, token: int) -> TokenLook:
        """Return how a token looks, one that the kind does not have among them."""
        return self._by_token.get(token) or TokenLook(token, f"token {token}")

    def text(self, tokens: np.ndarray) -> str:
        """Write a puzzle [h, w] as people type it: digits in one line, other cells in rows."""
        rows = ("".join(self.token(token).text for token in row) for row in tokens.tolist())
        return ("" if self.cells == "written" else "\n").join(rows)


def plain_colours(vocab_size: int) -> BoardLook:
    """Return a look for tokens of which nothing else is known: a colour each."""
    return BoardLook(tuple(colour_tokens(_COLOURS[i % len(_COLOURS)] for i in range(vocab_size))))


def colour_tokens(palette: Iterable[str], first: int = 0) -> list[TokenLook]:
    """Return tokens from `first` on that are numbered colours; `.` is the text of colour 0."""
    return [
        TokenLook(first + number, str(number), str(number or ".")[-1], fill)
        for number, fill in enumerate(palette)
    ]


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

    def apply(self, views: np.ndarray, *boards: np.ndarray) -> list[np.ndarray]:
        """Return each of the boards, uint8 [N, cells] tokens, in its view, int64 [N]."""
        cells, tokens = self.moves(views)
        turned = [np.take_along_axis(each, cells, 1) for each in boards]
        return (
            turned if tokens is None else [np.take_along_axis(tokens, each, 1) for each in turned]
        )

    def undo(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        """Return the boards of which `apply` made these."""
        cells, tokens = self.moves(views)
        if tokens is not None:
            boards = np.take_along_axis(tokens.argsort(1).astype(np.uint8), boards, 1)
        turned_back = np.empty_like(boards)
        np.put_along_axis(turned_back, cells, boards, 1)
        return turned_back


class DihedralViews(Views):
    """A square grid turned and mirrored."""

    number = NUM_VIEWS

    def __init__(self, size: int) -> None:
        self._cells = view_cells(size)

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return self._cells[views], None


class Kind:
    """What belongs to one kind of puzzle.

    Attributes:
        name: for people; in lower case it must be the name in `KINDS`, which dataset.json holds.
        rating: what data sets rate their puzzles by, for people.
        is_named: whether identifiers.json names its puzzles.
    """

    name: str
    rating = "rating"
    is_named = False

    @property
    def key(self) -> str:
        """The name by which it is registered."""
        return self.name.lower()

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        """Return whether its puzzles may have so many cells and tokens."""
        return False

    def vocab_size(self, size: int) -> int:
        """Return the tokens of grids of `size` rows."""
        raise NotImplementedError

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        """Turn [cells] tokens into a grid [size, size]; raise ValueError for those of no grid."""
        size = isqrt(tokens.size)
        if size * size != tokens.size or size < 2:
            raise ValueError(f"{tokens.size} cells are no square grid of 2 x 2 or more")
        last = self.vocab_size(size) - 1
        if tokens.min() < 0 or tokens.max() > last:
            raise ValueError(f"tokens from {tokens.min()} to {tokens.max()}; accepted: 0 to {last}")
        return tokens.reshape(size, size).astype(np.int8)

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
        for number, cell in enumerate(cells, start=1):
            if cell not in tokens:
                raise ValueError(f"cell {number} is {cell!r}; accepted: {', '.join(tokens)}")
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
