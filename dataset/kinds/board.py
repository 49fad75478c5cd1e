"""How the boards of a kind look, as plain data: what draws pictures, writes text or takes typed
puzzles reads it here, and names no kind.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dataset.format.schema import ARC_PALETTE

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

    def __contains__(self, token: int) -> bool:
        return token in self._by_token

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
