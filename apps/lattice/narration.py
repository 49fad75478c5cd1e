"""What a chain of a search did with a puzzle, in words."""

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import NamedTuple

import numpy as np

from apps.lattice.model import CONTRADICTION, DECIDED
from apps.lattice.search import Round
from dataset.kinds.base import BoardLook, Kind
from dataset.kinds.sudoku import SUDOKU
from runtime.text import many


class Told(NamedTuple):
    """A round of a chain: what was open, what was struck, and how it ended, "" if in no way."""

    left: str
    struck: list[str]
    ending: str


def tell(rounds: Sequence[Round], chain: int, kind: Kind = SUDOKU) -> Iterator[str]:
    """Yield lines on what a chain struck, decided and guessed in each round, until it was done."""
    for number, told in enumerate(tell_rounds(rounds, chain, kind), start=1):
        yield f"round {number}: {told.left}"
        yield from (f"  {line}" for line in (*told.struck, told.ending) if line)


def tell_rounds(rounds: Sequence[Round], chain: int, kind: Kind) -> Iterator[Told]:
    """Yield what happened in each round of a chain, until it was done."""
    guesses: list[str] = []
    for number, one in enumerate(rounds, start=1):
        before, after = one.before[chain], one.after[chain]
        look = kind.board(isqrt(len(before)))
        guess, verdict = int(one.guessed[chain]), int(one.verdicts[chain])
        num_open = int((before.sum(-1) > 1).sum())
        left = f"{many(num_open, 'cell')} open, {many(int(before.sum()), 'candidate')}"
        ending = ""
        if verdict == CONTRADICTION:
            empty = [_place(cell, before) for cell in np.flatnonzero(~after.any(-1)).tolist()]
            why = f"nothing is left for {', '.join(empty)}" if empty else "the model sees no way on"
            then = "restart"
            if (cell := int(one.taken_back[chain])) >= 0:
                then = f"so {_place(cell, before)} is not {guesses.pop()}"
                if number < len(rounds):
                    then += _but(rounds[number].before[chain, cell], look)
            ending = f"contradiction: {why}; {then}"
        elif verdict == DECIDED:
            ending = "all cells are decided"
        elif guess >= 0:
            guesses += _symbols(after[guess], look)
            ending = f"guess {_place(guess, before)} = {guesses[-1]}"
        yield Told(left, list(_struck(before, after, guess, look)), ending)
        if verdict == DECIDED:
            return


def _but(others: np.ndarray, look: BoardLook) -> str:
    """Say what a cell is whose guess was taken back, where one token is left."""
    left = _symbols(others, look)
    return f" but {left[0]}" if len(left) == 1 else ""


def _struck(before: np.ndarray, after: np.ndarray, guess: int, look: BoardLook) -> Iterator[str]:
    """Yield what was struck, cell by cell where that decides it."""
    further = 0
    for cell in np.flatnonzero((before != after).any(-1)).tolist():
        gone = _symbols(before[cell] & ~after[cell], look)
        left = _symbols(after[cell], look)
        if cell == guess:
            continue
        if len(left) != 1:
            further += len(gone)
            continue
        yield f"{_place(cell, before)} is {left[0]}: struck {', '.join(gone)}"
    if further:
        yield f"struck elsewhere: {many(further, 'candidate')}"


def _symbols(cell: np.ndarray, look: BoardLook) -> list[str]:
    return [look.token(token).name for token in np.flatnonzero(cell).tolist()]


def _place(cell: int, candidates: np.ndarray) -> str:
    row, column = divmod(cell, round(len(candidates) ** 0.5))
    return f"r{row + 1}c{column + 1}"
