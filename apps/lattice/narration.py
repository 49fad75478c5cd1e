"""What a chain of a search did with a puzzle, in words."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from apps.lattice.model import CONTRADICTION, DECIDED
from apps.lattice.search import Round
from dataset.sudoku.rules import EMPTY_TOKEN
from runtime.text import many


class Told(NamedTuple):
    """A round of a chain: what was open, what was struck, and how it ended, "" if in no way."""

    left: str
    struck: list[str]
    ending: str


def tell(rounds: Sequence[Round], chain: int) -> Iterator[str]:
    """Yield lines on what a chain struck, decided and guessed in each round, until it was done."""
    for number, told in enumerate(tell_rounds(rounds, chain), start=1):
        yield f"round {number}: {told.left}"
        yield from (f"  {line}" for line in (*told.struck, told.ending) if line)


def tell_rounds(rounds: Sequence[Round], chain: int) -> Iterator[Told]:
    """Yield what happened in each round of a chain, until it was done."""
    guesses: list[str] = []
    for number, one in enumerate(rounds, start=1):
        before, after = one.before[chain], one.after[chain]
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
                    others = _symbols(rounds[number].before[chain, cell])
                    then += f" but {others[0]}" if len(others) == 1 else ""
            ending = f"contradiction: {why}; {then}"
        elif verdict == DECIDED:
            ending = "all cells are decided"
        elif guess >= 0:
            guesses += _symbols(after[guess])
            ending = f"guess {_place(guess, before)} = {guesses[-1]}"
        yield Told(left, list(_struck(before, after, guess)), ending)
        if verdict == DECIDED:
            return


def _struck(before: np.ndarray, after: np.ndarray, guess: int) -> Iterator[str]:
    """Yield what was struck, cell by cell where that decides it."""
    further = 0
    for cell in np.flatnonzero((before != after).any(-1)).tolist():
        gone = _symbols(before[cell] & ~after[cell])
        left = _symbols(after[cell])
        if cell == guess:
            continue
        if len(left) != 1:
            further += len(gone)
            continue
        yield f"{_place(cell, before)} is {left[0]}: struck {', '.join(gone)}"
    if further:
        yield f"struck elsewhere: {many(further, 'candidate')}"


def _symbols(cell: np.ndarray) -> list[str]:
    return [str(token - EMPTY_TOKEN) for token in np.flatnonzero(cell).tolist()]


def _place(cell: int, candidates: np.ndarray) -> str:
    row, column = divmod(cell, round(len(candidates) ** 0.5))
    return f"r{row + 1}c{column + 1}"
