"""Parts of the kinds with digits in rows and columns. Tokens: 1 is an open cell, digit + 1."""

from functools import cache

import numpy as np

from dataset.kinds.base import TokenLook
from dataset.kinds.making import Clauses

OPEN = 1
DIGITS = "123456789ABCDEFG"
"""The text of each digit; those from 10 on are letters."""


def digit_tokens(size: int) -> list[TokenLook]:
    """Return the looks of the open cell and of the digits 1 to `size`, in the order of tokens."""
    digits = enumerate(DIGITS[:size], start=OPEN + 1)
    return [
        TokenLook(OPEN, "open", ".", keys=(".", "0", "_")),
        *(TokenLook(token, text, text, keys=(text,)) for token, text in digits),
    ]


def line_rules(size: int, num_tokens: int, step: int = 1, first: int = 0) -> Clauses:
    """Return the rules that each digit is once in each row and column, of the size x size cells in
    every `step`th row and column from `first` on. As many rows are after the last one.
    """
    return _line_rules(size, num_tokens, step, first).copy()


@cache
def _line_rules(size: int, num_tokens: int, step: int, first: int) -> Clauses:
    rows = step * (size - 1) + 1 + 2 * first
    cells = np.arange(rows**2).reshape(rows, rows)[first::step, first::step]
    rules, tokens = Clauses(num_tokens), range(OPEN + 1, OPEN + 1 + size)
    for cell in cells.flat:
        rules.choose(cell, tokens)
    for line in (*cells, *cells.T):
        rules.permuted(line, tokens)
    return rules


def repeated_in_lines(answer: np.ndarray) -> np.ndarray:
    """Mark the open cells, and those with a digit that their row or column has twice; `answer`:
    tokens [size, size].
    """
    in_row = (answer[:, :, None] == answer[:, None, :]).sum(axis=2) > 1
    in_column = (answer[:, None, :] == answer[None, :, :]).sum(axis=1) > 1
    is_digit = (answer > OPEN) & (answer <= OPEN + len(answer))
    return in_row | in_column | ~is_digit
