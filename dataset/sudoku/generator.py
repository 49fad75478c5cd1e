"""Random Sudokus with exactly one solution, no two of them images of each other.

Attempt i of a stream is a pure function of (seed, stream, i). Attempts are made in order and kept
unless they fail or repeat an earlier puzzle, so that a longer list starts with a shorter one.

What counts as a repetition: at size 9, a puzzle whose solution may be an image of an earlier
solution (`solution_key`: equal for all images, hardly ever for others: one pair in 50,000).
Sizes 4 and 6 have only 2 and 49 solutions that are no images of each other, so there it is a
puzzle that is an image of an earlier puzzle (`puzzle_key`).
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from dataset.sources import GeneratedPuzzle
from dataset.sudoku.kernels import draw_puzzle, solution_key
from dataset.sudoku.rules import DIGIT_OF_BIT, layout_of
from dataset.sudoku.symmetries import sudoku_symmetries
from runtime.errors import ConfigError
from runtime.streams import Stream, random_words

MAX_STEPS = 5000  # of the search for one hard puzzle, before it starts from another solution
_MAX_EFFORT = 50_000  # attempts, plus steps of searches, before it is held that there is none
_WORDS_PER_BLOCK = 1024


def generate_puzzles(
    *,
    seed: int,
    stream: Stream,
    size: int,
    min_clues: int,
    max_clues: int,
    min_rating: int,
    taken: set[Any],
) -> Iterator[GeneratedPuzzle]:
    """Yield puzzles without end.

    With `min_rating` 0 the number of clues is drawn uniformly and they are removed at random until
    so many are left. Attempts that cannot get there are given up: half of them at 24 clues of a 9x9
    puzzle, nearly all below 22. Otherwise a search among minimal puzzles looks for the rating.

    Args:
        min_rating: backtracks of our solver, see `dataset.sudoku.rules.solve`.
        taken: keys of the puzzles that must not be repeated; receives those of the new ones.
    Raises:
        ConfigError: none was found for long; the message says what was asked for.
    """
    asked = min_clues, max_clues, min_rating, MAX_STEPS
    effort = 0
    for attempts, state in enumerate(_attempt_states(seed, stream), start=1):
        success, rating, steps, *boards = draw_puzzle(layout_of(size), state, *asked)
        effort += 1 + steps
        question, answer = (DIGIT_OF_BIT[board] for board in boards)
        if success and (key := image_key(question, answer, size)) not in taken:
            taken.add(key)
            effort = 0
            yield GeneratedPuzzle(question, answer, rating, attempts)
        if effort >= _MAX_EFFORT:
            break
    raise ConfigError(
        f"no other {size}x{size} puzzle with {min_clues} to {max_clues} clues rated {min_rating} or"
        " more was found in a long search; ask for fewer puzzles, other clues, or a lower rating"
    )


def image_key(question: np.ndarray, answer: np.ndarray, size: int) -> Any:
    """Return what a puzzle, uint8 [cells] digits each, shares with those that repeat it."""
    return solution_key(answer) if size == 9 else puzzle_key(question, size)


def puzzle_key(digits: np.ndarray, size: int) -> bytes:
    """Return what all symmetric images of a puzzle, [cells] digits, share, and no other puzzle has:
    the least of them, digits being renamed in the order in which they appear.
    """
    images = digits.astype(np.uint8)[sudoku_symmetries(size).cells()]
    # [digits, moves]: where each digit appears first, or behind all; 0 keeps its name.
    seen = [images == digit for digit in range(size + 1)]
    first = np.array([np.where(cells.any(1), cells.argmax(1), size * size) for cells in seen])
    first[0] = -1
    names = first.argsort(axis=0).argsort(axis=0).astype(np.uint8)
    return min(map(bytes, np.take_along_axis(names.T, images, 1)))


def _attempt_states(seed: int, stream: Stream) -> Iterator[np.ndarray]:
    """Yield the random state, uint64 [1], that each attempt starts from."""
    for block in count():
        words = random_words(seed, stream, (0, 0, block, 0), _WORDS_PER_BLOCK)
        for attempt in range(_WORDS_PER_BLOCK):
            yield words[attempt : attempt + 1]
