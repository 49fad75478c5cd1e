"""Random Sudokus with exactly one solution, no two of them images of each other.

Attempt i of a stream is a pure function of (seed, stream, i). Attempts are made in order and kept
unless they fail or repeat an earlier puzzle, so that a longer list starts with a shorter one.

What counts as a repetition: at size 9, a puzzle whose solution may be an image of an earlier
solution (`solution_key`: equal for all images, hardly ever for others: one pair in 50,000).
Sizes 4 and 6 have only 2 and 49 solutions that are no images of each other, so there it is a
puzzle that is an image of an earlier puzzle (`puzzle_key`).
"""

import functools
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from dataset.sources import NoPuzzleError
from dataset.sudoku.kernels import draw_puzzle, puzzle_key, solution_key
from dataset.sudoku.rules import layout_of
from dataset.sudoku.symmetries import sudoku_symmetries
from runtime.streams import Stream, random_words

MAX_STEPS = 5000  # of the search for one hard puzzle, before it starts from another solution
_MAX_EFFORT = 50_000  # attempts, plus steps of searches, before it is held that there is none
_WORDS_PER_BLOCK = 1024


class GeneratedPuzzles(NamedTuple):
    """New puzzles, uint8 [N, cells] digits (0 where empty), int64 [N] ratings; attempts made."""

    questions: np.ndarray
    answers: np.ndarray
    ratings: np.ndarray
    attempts: int


def generate_puzzles(
    num_puzzles: int,
    *,
    seed: int,
    stream: Stream,
    size: int,
    min_clues: int,
    max_clues: int,
    min_rating: int,
    taken: set[int],
    advance: Callable[[int], object] = lambda puzzles: None,
) -> GeneratedPuzzles:
    """Generate `num_puzzles` puzzles.

    With `min_rating` 0 the number of clues is drawn uniformly and they are removed at random until
    so many are left. Attempts that cannot get there are given up: hardly any from 27 clues of a
    9x9 puzzle upwards, half of them at 24, nearly all below 22. Otherwise a search in the vicinity
    of minimal puzzles looks for the rating; clues are added where there are fewer than `min_clues`.
    Solutions are drawn by randomized search, not exactly uniformly.

    Args:
        seed: 0 to 2**64 - 1.
        size: 4, 6 or 9.
        min_clues: 1 to max_clues, which is at most size * size.
        min_rating: backtracks of our solver, see `dataset.sudoku.rules.solve`.
        taken: keys of the puzzles that must not be repeated; receives those of the new ones.
        advance: called with the number of puzzles found since the last call.
    Raises:
        NoPuzzleError: none was found for long; the message says what was asked for.
    """
    layout = layout_of(size)
    questions = np.zeros((num_puzzles, size * size), dtype=np.uint8)
    answers = np.zeros_like(questions)
    ratings = np.zeros(num_puzzles, dtype=np.int64)
    question = np.zeros(size * size, dtype=np.int64)
    answer = np.zeros_like(question)
    found = attempts = effort = 0
    states = _attempt_states(seed, stream)
    while found < num_puzzles:
        if effort >= _MAX_EFFORT:
            raise NoPuzzleError(
                f"no {size}x{size} puzzle with {min_clues} to {max_clues} clues rated {min_rating}"
                f" or more was found beside the first {found} of {num_puzzles}, in spite of a long"
                " search; ask for fewer puzzles, other clues, or a lower rating"
            )
        attempts += 1
        success, rating, steps = draw_puzzle(
            layout, next(states), min_clues, max_clues, min_rating, MAX_STEPS, question, answer
        )
        effort += 1 + steps
        if not success:
            continue
        key = image_key(question, answer, size)
        if key in taken:
            continue
        taken.add(key)
        effort = 0
        questions[found], answers[found], ratings[found] = question, answer, rating
        found += 1
        advance(1)
    return GeneratedPuzzles(questions, answers, ratings, attempts)


def image_key(question: np.ndarray, answer: np.ndarray, size: int) -> int:
    """Return what a puzzle, int64 [cells] digits each, shares with those that repeat it."""
    return solution_key(answer) if size == 9 else puzzle_key(question, _sources(size))


@functools.cache
def _sources(size: int) -> np.ndarray:
    return sudoku_symmetries(size).sources()


def _attempt_states(seed: int, stream: Stream) -> Iterator[np.ndarray]:
    """Yield the random state, uint64 [1], that each attempt starts from."""
    for block in count():
        words = random_words(seed, stream, (0, 0, block, 0), _WORDS_PER_BLOCK)
        for attempt in range(_WORDS_PER_BLOCK):
            yield words[attempt : attempt + 1]
