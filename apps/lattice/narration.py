"""Describe the rounds of a search chain in words."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from apps.lattice.model import CONTRADICTION, DECIDED
from apps.lattice.search import Round
from dataset.sudoku.rules import EMPTY_TOKEN
from runtime.text import many


class RoundText(NamedTuple):
    """A round of a chain in words."""

    left: str  # the open cells and candidates
    struck: list[str]  # a line for each cell decided by striking, and one for the rest
    ending: str  # guess, decision or contradiction; "" for none of them


def describe_chain(rounds: Sequence[Round], chain: int) -> Iterator[str]:
    """Yield lines that describe each round of a chain, until the chain is done."""
    for number, text in enumerate(describe_rounds(rounds, chain), start=1):
        yield f"round {number}: {text.left}"
        yield from (f"  {line}" for line in (*text.struck, text.ending) if line)


def describe_rounds(rounds: Sequence[Round], chain: int) -> Iterator[RoundText]:
    """Yield the description of each round of a chain, until the chain is done."""
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
            if one.fell[chain]:
                why = "the answer did not stand the checks"
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
        yield RoundText(left, list(_struck(before, after, guess)), ending)
        if verdict == DECIDED:
            return


def _struck(before: np.ndarray, after: np.ndarray, guess: int) -> Iterator[str]:
    """Yield a line for each cell that was decided by striking, and one for all other strikes."""
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
