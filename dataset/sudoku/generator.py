"""Random Sudokus with exactly one solution; none is a symmetric image of another.

Attempt i of a stream is a pure function of (seed, stream, i). Attempts are made in order and kept
unless they fail or repeat an earlier puzzle. So a longer list begins with any shorter one.

At size 9, a puzzle is a repetition if its solution has the `solution_key` of an earlier one. Images
have equal keys; other solutions hardly ever do (one pair in 50,000). Sizes 4 and 6 have only 2 and
49 solutions that are not images of each other. There a puzzle is a repetition if it is an image of
an earlier puzzle (`puzzle_key`).
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from dataset.compiled import in_order
from dataset.sources import GeneratedPuzzle, Puzzles
from dataset.sudoku.kernels import draw_puzzle, solution_key, solve_board, vary_puzzle
from dataset.sudoku.rules import DIGIT_OF_BIT, layout_of
from dataset.sudoku.symmetries import sudoku_symmetries
from runtime.errors import ConfigError
from runtime.streams import Stream, random_words

MAX_STEPS = 5000  # Steps of a vicinity search before it starts again with another solution.
_MAX_EFFORT = 50_000  # Attempts plus steps without a new puzzle before giving up.
_HARD = 64  # Backtracks that are enough for a variant of a harder puzzle.
_MAX_CLIMB = 2_000  # Steps to make one variant harder.
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

    With `min_rating` 0, the number of clues is drawn uniformly, and clues are removed at random
    down to it. An attempt that gets stuck is dropped: half of them at 24 clues in 9x9 cells, nearly
    all below 22. With a higher `min_rating`, a vicinity search among minimal puzzles is used.

    Args:
        min_rating: backtracks of our solver, see `dataset.sudoku.rules.solve`.
        taken: keys of puzzles that must not be repeated; keys of new puzzles are added.
    Raises:
        ConfigError: no new puzzle was found for a long time.
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
        f"no new {size}x{size} puzzle with {min_clues} to {max_clues} clues and a rating of"
        f" {min_rating} or more was found; ask for fewer puzzles, other clues, or a lower rating"
    )


def vary_puzzles(
    puzzles: Puzzles, copies: int, size: int, *, seed: int, taken: set[Any]
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield up to `copies` variants of each puzzle: question, answer and the puzzle's rating.

    The first is made from the puzzle, each further one from the one before it; after a failure, the
    next starts at the puzzle again. A variant is minimal, has exactly one solution, and needs as
    many backtracks as the puzzle, or 64, at least. Threads work on several puzzles at a time; their
    number changes nothing.

    Args:
        taken: keys of puzzles that must not be repeated; keys of the variants are added.
    """

    def variants_of(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        question = puzzles.questions[number]
        start = board = (1 << question.astype(np.int64)) >> 1
        min_rating = np.int64(min(solve_board(start, layout, np.int64(1))[1], _HARD))
        made = []
        for copy in range(copies if question.any() else 0):
            state = random_words(seed, Stream.VARIANTS, (0, copy, number, 0), 1)
            success, board, solution = vary_puzzle(board, min_rating, _MAX_CLIMB, layout, state)
            if success:
                made.append((DIGIT_OF_BIT[board], DIGIT_OF_BIT[solution]))
            else:
                board = start
        return made

    layout = layout_of(size)
    made = in_order(variants_of, range(len(puzzles.questions)))
    for variants, rating in zip(made, puzzles.ratings, strict=True):
        for question, answer in variants:
            if (key := image_key(question, answer, size)) not in taken:
                taken.add(key)
                yield question, answer, rating


def image_key(question: np.ndarray, answer: np.ndarray, size: int) -> Any:
    """Return a key of a puzzle, uint8 [cells] digits; its repetitions have the same key."""
    return solution_key(answer) if size == 9 else puzzle_key(question, size)


def puzzle_key(digits: np.ndarray, size: int) -> bytes:
    """Return a key of a puzzle, [cells] digits: equal for its symmetric images and for no others.

    In each image, digits are renamed in order of appearance; the key is the smallest result.
    """
    images = digits.astype(np.uint8)[sudoku_symmetries(size).cells()]
    # [digits, moves]: the first cell of each digit, or the number of cells; 0 is not renamed.
    seen = [images == digit for digit in range(size + 1)]
    first = np.array([np.where(cells.any(1), cells.argmax(1), size * size) for cells in seen])
    first[0] = -1
    names = first.argsort(axis=0).argsort(axis=0).astype(np.uint8)
    return min(map(bytes, np.take_along_axis(names.T, images, 1)))


def _attempt_states(seed: int, stream: Stream) -> Iterator[np.ndarray]:
    """Yield the initial random state of each attempt, uint64 [1]."""
    for block in count():
        words = random_words(seed, stream, (0, 0, block, 0), _WORDS_PER_BLOCK)
        for attempt in range(_WORDS_PER_BLOCK):
            yield words[attempt : attempt + 1]
