"""The base class of kinds of puzzles, the look of their boards, and a puzzle. Imports no torch.

A grid is a square array. For a Sudoku it holds digits (0 is an empty cell), for a maze tokens, and
for ARC the tokens of the whole canvas, with the grid of colours in one corner. Each kind has its
own file, registered in `dataset.kinds.KINDS`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

from dataset.dihedral import NUM_VIEWS, view_cells
from dataset.format.schema import ARC_PALETTE
from dataset.kinds import KINDS
from dataset.kinds.making import Clauses, Draws, filled, make_puzzles
from runtime.streams import Stream
from runtime.text import many

_FEW_VIEWS = 16
_MOST_COUNTED = 10_000
_COLOURS = (*ARC_PALETTE, "#9AA5B1", "#5B2C6F", "#117A65", "#7E5109", "#78281F", "#1B4F72")


@dataclass(frozen=True)
class TokenLook:
    """How one token looks.

    Attributes:
        text: its character in a puzzle written as text.
        fill: colour of its cell, #RRGGBB; "" for the background colour.
        letter: the letter written on the filled cell.
        style: style of its cell in a terminal, as numbers of an ANSI escape; "" to use `fill`.
        keys: keys that type it; the first one represents it in a typed puzzle.
        once: each board has one; answers always show it where the puzzle has it.
        drawn: models draw it: paler if they are less sure, and in another colour if it is new.
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
    """How the boards of one kind and size look; pages get it as JSON, by `dataclasses.asdict`.

    Attributes:
        tokens: the tokens to draw, in the order of a keypad.
        cells: "written": the token's text on plain paper, coloured by its status, with small
            candidates in the corners. "filled": the token's colour, possibly mixed with others.
            "coloured": the token's pure colour; the cell is smaller if a model is less sure.
        open: the token of a cell that is to be answered.
        empty: the token of each cell of a puzzle without clues; (): `open` everywhere.
        box: rows and columns between thick lines.
        canvas: the boards are canvases with smaller grids on them. Input, answer and right answer
            are shown side by side, and cells outside the right answer's grid do not count.
        pen: the token that the pointer draws, or None.
        hint: tells people how to type a puzzle; "" if it is loaded from a file instead.
    """

    tokens: tuple[TokenLook, ...]
    cells: Literal["written", "filled", "coloured"] = "coloured"
    open: int = 0
    empty: tuple[int, ...] = ()
    box: tuple[int, int] | None = None
    canvas: bool = False
    pen: int | None = None
    hint: str = ""

    @cached_property
    def _by_token(self) -> dict[int, TokenLook]:
        return {each.token: each for each in self.tokens}

    def token(self, token: int) -> TokenLook:
        """Return the look of a token, even of one that the kind does not have."""
        return self._by_token.get(token) or TokenLook(token, f"token {token}")

    def text(self, tokens: np.ndarray) -> str:
        """Return tokens [h, w] as people type them: digits in one line, other cells in rows."""
        rows = ("".join(self.token(token).text for token in row) for row in tokens.tolist())
        return ("" if self.cells == "written" else "\n").join(rows)


def plain_colours(vocab_size: int) -> BoardLook:
    """Return a look for unknown tokens: each has its own colour."""
    return BoardLook(tuple(colour_tokens(_COLOURS[i % len(_COLOURS)] for i in range(vocab_size))))


def colour_tokens(palette: Iterable[str], first: int = 0) -> list[TokenLook]:
    """Return a token for each colour, numbered from `first`; `.` is the text of colour 0."""
    return [
        TokenLook(first + number, str(number), str(number or ".")[-1], fill)
        for number, fill in enumerate(palette)
    ]


class Verdict(NamedTuple):
    """Whether an answer is right (None if unknown), and a phrase for it."""

    solved: bool | None
    words: str


class Views:
    """The symmetries of one kind of puzzle, numbered from 0; view 0 is the puzzle itself.

    Attributes:
        number: the number of views.
    """

    number: int

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (cells, tokens) of views, int64 [N].

        cells, int64 [N, cells]: [n, i] is the old position of cell i. tokens, uint8 [N, tokens]:
        [n, t] is the new token for t; None if no token changes.
        """
        raise NotImplementedError

    def apply(self, views: np.ndarray, *boards: np.ndarray) -> list[np.ndarray]:
        """Return boards, uint8 [N, cells] tokens each, in the views, int64 [N]."""
        cells, tokens = self.moves(views)
        turned = [np.take_along_axis(each, cells, 1) for each in boards]
        if tokens is None:
            return turned
        return [np.take_along_axis(tokens, each, 1) for each in turned]

    def undo(self, views: np.ndarray, boards: np.ndarray) -> np.ndarray:
        """Return the boards before `apply`."""
        cells, tokens = self.moves(views)
        if tokens is not None:
            boards = np.take_along_axis(tokens.argsort(1).astype(np.uint8), boards, 1)
        turned_back = np.empty_like(boards)
        np.put_along_axis(turned_back, cells, boards, 1)
        return turned_back


class DihedralViews(Views):
    """The eight ways to turn or mirror a square grid."""

    number = NUM_VIEWS

    def __init__(self, size: int) -> None:
        self._cells = view_cells(size)

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return self._cells[views], None


class DrawnViews(Views):
    """Symmetries that are too many to list: each number stands for one that is drawn at random."""

    number = 2**40
    stream: int

    def drawn(self, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Draw a view: int64 [cells] and integers [tokens], as in `moves`."""
        raise NotImplementedError

    def moves(self, views: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        drawn = [self.drawn(Draws(0, self.stream, view)) for view in views.tolist()]
        cells, tokens = (np.stack(parts) for parts in zip(*drawn, strict=True))
        for parts in (cells, tokens):
            parts[views == 0] = np.arange(parts.shape[1])
        return cells, tokens.astype(np.uint8)


class Kind:
    """One kind of puzzle: its cells and tokens, its text, its look, its rules, its generator.

    A subclass needs `name`, `sizes`, `board` and `broken`; with `rules` and `draw`, puzzles can be
    made and solved. For tokens other than those of the board, and for grids that do not hold
    tokens, it overrides `vocab_size`, `fits`, `to_grid` and `to_tokens`.

    Attributes:
        name: its name for people; see `key`.
        sizes: the sizes of its puzzles.
        goal: a phrase for a right answer.
        rating: the meaning of a puzzle's rating, for people.
        many_answers: whether a puzzle may have several right answers.
        is_published: whether data sets that name no kind may be of it.
        is_named: whether identifiers.json names its puzzles.
        shares: the figures of its evaluator, the shares of the answers for which `holds` is true.
            An answer for which all are true is right.
    """

    name: str
    sizes: Sequence[int] = ()
    goal = "a solution"
    rating = "cells that simple steps leave open"
    many_answers = False
    is_published = False
    is_named = False
    shares: tuple[str, ...] = ("valid", "keeps_clues")

    @property
    def key(self) -> str:
        """The name in `KINDS` and in dataset.json: in lower case, with _ for spaces."""
        return self.name.lower().replace(" ", "_")

    def rows(self, size: int) -> int:
        """Return the rows of the grid of puzzles of one of `sizes`."""
        return size

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        """Return whether its puzzles can have `seq_len` cells and `vocab_size` tokens."""
        fitting = (rows for rows in map(self.rows, self.sizes) if rows**2 == seq_len)
        return any(self.vocab_size(rows) == vocab_size for rows in fitting)

    def vocab_size(self, size: int) -> int:
        """Return the number of tokens, padding included, for grids of `size` rows."""
        return 1 + len(self.board(size).tokens)

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        """Return tokens [cells] as a grid [size, size]; raise ValueError if they form none."""
        size = isqrt(tokens.size)
        if size * size != tokens.size or size < 2:
            raise ValueError(f"{tokens.size} cells do not form a square grid of 2 x 2 or more")
        last = self.vocab_size(size) - 1
        if tokens.min() < 0 or tokens.max() > last:
            raise ValueError(f"tokens from {tokens.min()} to {tokens.max()}; accepted: 0 to {last}")
        return tokens.reshape(size, size).astype(np.int8)

    def to_tokens(self, grid: np.ndarray) -> np.ndarray:
        """Return a grid as tokens, uint8 [cells]."""
        return grid.reshape(-1).astype(np.uint8)

    def board(self, size: int) -> BoardLook:
        """Return the look of boards of `size` rows."""
        raise NotImplementedError

    def seen(
        self, puzzle: "Puzzle", grid: np.ndarray, values: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the tokens, or the `values`, of the cells that people see, [h, w]."""
        return self.to_tokens(grid).reshape(grid.shape) if values is None else values

    def recognises(self, text: str) -> bool:
        """Return whether a typed puzzle must be of this kind, if nothing else tells its kind."""
        return False

    def parse(self, text: str) -> "Puzzle":
        """Parse a typed puzzle, in rows or in one line; raise ValueError if it is not valid."""
        lines = text.strip("\r\n").splitlines()
        width = max(len(lines), *map(len, lines)) if len(lines) > 1 else 0
        cells = "".join(line.ljust(width) for line in lines)
        looks = self.board(isqrt(len(cells))).tokens
        tokens = {text: one.token for one in looks for text in (*one.keys, one.text)}
        for number, cell in enumerate(cells, start=1):
            if cell not in tokens:
                raise ValueError(f"cell {number} is {cell!r}; accepted: {', '.join(tokens)}")
        return Puzzle(self, self.to_grid(np.array([tokens[cell] for cell in cells], np.uint8)))

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray] | None:
        """Draw a puzzle of one of `sizes`: tokens of the question and of an answer, each in a grid.
        Return None if these draws give no puzzle.
        """
        raise NotImplementedError

    def rules(self, question: np.ndarray) -> Clauses | None:
        """Return the rules that a question [size, size] sets, without its clues; None: they are not
        written as clauses.
        """
        return None

    def rating_of(self, question: np.ndarray) -> int:
        """Rate a question by its `rules`; answers are counted up to 10,000."""
        if self.many_answers:
            return sum(1 for _ in islice(self.solutions(question), _MOST_COUNTED))
        rules = self.rules(question)
        assert rules is not None
        return rules.open_cells(
            rules.given(self.to_tokens(question), self.board(len(question)).open)
        )

    def key_of(self, question: np.ndarray) -> bytes:
        """Return a key for tokens, uint8 [cells]; equal keys mean the same puzzle. If there are few
        views, all of them have the same key.
        """
        views = self.views(isqrt(question.size))
        if views is None or views.number > _FEW_VIEWS:
            return question.tobytes()
        numbers = np.arange(views.number)
        return min(map(bytes, views.apply(numbers, np.tile(question, (views.number, 1)))[0]))

    def example(self, size: int, seed: int) -> "Puzzle | None":
        """Make a solvable puzzle of `size` rows; return None if there is no generator."""
        chosen = next((one for one in self.sizes if self.rows(one) == size), None)
        if chosen is None or type(self).draw is Kind.draw:
            return None
        made = next(make_puzzles(self, chosen, seed=seed, stream=Stream.NEW_TEST, taken=set()))
        return Puzzle(self, self.to_grid(made.question))

    def answer_sizes(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the sizes of answers [N, cells], int64 [N] by name; {} if all sizes are equal."""
        return {}

    def views(self, size: int) -> Views | None:
        """Return the symmetries of grids of `size` rows, or None if they are unknown."""
        return None

    def solution(self, question: np.ndarray) -> np.ndarray | None:
        """Return the answer that a solver finds, or None if it finds none or no solver exists."""
        return next(self.solutions(question), None)

    def solutions(self, question: np.ndarray) -> Iterator[np.ndarray]:
        """Yield all right answers by `rules`; none if the rules are not written as clauses."""
        if (rules := self.rules(question)) is not None:
            tokens = self.to_tokens(question)
            for found in rules.solutions(rules.given(tokens, self.board(len(question)).open)):
                yield self.to_grid(filled(tokens, found))

    def broken(self, answer: np.ndarray) -> np.ndarray:
        """Mark the cells of an answer that break a rule, bool [size, size]; clues do not matter."""
        raise NotImplementedError

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark the cells of an answer that break a rule or change the question."""
        given = question != self.board(len(question)).open
        return (given & (question != answer)) | self.broken(answer)

    def changed(self, question: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Mark the cells that differ between two answers, bool [size, size]."""
        return before != after

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        """Judge an answer; `target` is the right one, or None if it is unknown."""
        wrong = self.wrong(question, answer, target)
        return wrong_verdict(self.goal, wrong) if wrong.any() else Verdict(True, self.goal)

    def holds(self, questions: np.ndarray, answers: np.ndarray) -> Sequence[np.ndarray]:
        """Return for each of `shares` the answers for which it is true, bool [N].

        Args:
            questions: tokens, integers [N, cells].
            answers: the same; they may be tokens that the kind does not have.
        """
        size = isqrt(questions.shape[1])
        boards = questions.reshape(-1, size, size), answers.reshape(-1, size, size)
        kept = (questions == self.board(size).open) | (questions == answers)
        valid = [not self.broken(answer).any() for answer in boards[1]]
        return np.array(valid, bool) & kept.all(axis=1), kept.all(axis=1)


@dataclass(frozen=True, eq=False)
class Puzzle:
    """A puzzle with its answer and its names. Two puzzles are never equal.

    Attributes:
        kind: its kind.
        question: its grid.
        target: the grid of the right answer, or None if unknown; cells without a label are 0.
        identifier: its index in the puzzle embedding.
        name: for ARC, the name of its identifier, with the augmentation.
        row: its number in its set, from 0.
        place: its place in a data set, for people: "puzzle 198", or with several sets "easy,
            puzzle 198"; "" if it is not from a data set.
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
        """The input of the model, uint8 [cells]."""
        return self.kind.to_tokens(self.question)


def wrong_verdict(expected: str, wrong: np.ndarray) -> Verdict:
    """Return the verdict on an answer with wrong cells, bool [size, size]."""
    return Verdict(False, f"not {expected}: {many(int(wrong.sum()), 'cell')} cannot stay")


def kind_named(name: str) -> Kind:
    """Return the kind with this name; raise ValueError if it is unknown or registered wrongly."""
    if name not in KINDS:
        known = ", ".join(KINDS)
        raise ValueError(f"kind {name!r} is unknown (known: {known}); name its module in plugins")
    return KINDS.load(name)


def known_kind(name: str | None) -> Kind | None:
    """Return the kind with this name; None without a name, or if no module here registers it."""
    return kind_named(name) if name is not None and name in KINDS else None


def kinds_with(seq_len: int, vocab_size: int) -> list[Kind]:
    """Return the kinds that can have `seq_len` cells and `vocab_size` tokens, all that they know.

    There may be several: with 4 x 4 cells and 6 tokens, Sudoku and maze. Only kinds of published
    data sets are asked, because all other sets name their kind.
    """
    published = [kind for kind in map(KINDS.load, KINDS) if kind.is_published]
    fitting = [kind for kind in published if kind.fits(seq_len, vocab_size)]
    return [kind for kind in fitting if kind.vocab_size(isqrt(seq_len)) == vocab_size]


def only_kind_with(seq_len: int, vocab_size: int) -> str | None:
    """Return the name of the one kind in `kinds_with`, or None if there are several or none."""
    kinds = kinds_with(seq_len, vocab_size)
    return kinds[0].key if len(kinds) == 1 else None
