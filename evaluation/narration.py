"""What a chain of a search did with a Sudoku, in words."""

from collections.abc import Iterator, Sequence

import numpy as np

from dataset.sudoku.rules import EMPTY_TOKEN
from evaluation.search import Round
from models.lattice import CONTRADICTION, DECIDED


def tell(rounds: Sequence[Round], chain: int) -> Iterator[str]:
    """Yield lines on what a chain struck, decided and guessed in each round, until it was done."""
    guesses: list[int] = []
    for number, one in enumerate(rounds, start=1):
        before, after = one.before[chain], one.after[chain]
        guess, verdict = int(one.guessed[chain]), int(one.verdicts[chain])
        num_open = int((before.sum(-1) > 1).sum())
        left = f"{_many(num_open, 'cell')} open, {_many(int(before.sum()), 'candidate')}"
        yield f"round {number}: {left}"
        yield from _struck(before, after, guess)
        if verdict == CONTRADICTION:
            empty = [_place(cell, before) for cell in np.flatnonzero(~after.any(-1)).tolist()]
            why = f"nothing is left for {', '.join(empty)}" if empty else "the model sees no way on"
            then = "restart"
            if (cell := int(one.taken_back[chain])) >= 0:
                then = f"so {_place(cell, before)} is not {guesses.pop()}"
                left = _digits(rounds[number].before[chain, cell]) if number < len(rounds) else []
                then += f" but {left[0]}" if len(left) == 1 else ""
            yield f"  contradiction: {why}; {then}"
        elif verdict == DECIDED:
            yield "  all cells are decided"
            return
        elif guess >= 0:
            guesses += _digits(after[guess])
            yield f"  guess {_place(guess, before)} = {guesses[-1]}"


def _struck(before: np.ndarray, after: np.ndarray, guess: int) -> Iterator[str]:
    """Yield what was struck, cell by cell where that decides it."""
    further = 0
    for cell in np.flatnonzero((before != after).any(-1)).tolist():
        gone = _digits(before[cell] & ~after[cell])
        left = _digits(after[cell])
        if cell == guess:
            continue
        if len(left) != 1:
            further += len(gone)
            continue
        struck = ", ".join(map(str, gone))
        yield f"  {_place(cell, before)} is {left[0]}: struck {struck}"
    if further:
        yield f"  struck elsewhere: {_many(further, 'candidate')}"


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'s'[: number != 1]}"


def _digits(cell: np.ndarray) -> list[int]:
    return [int(token) - EMPTY_TOKEN for token in np.flatnonzero(cell)]


def _place(cell: int, candidates: np.ndarray) -> str:
    row, column = divmod(cell, round(len(candidates) ** 0.5))
    return f"r{row + 1}c{column + 1}"
