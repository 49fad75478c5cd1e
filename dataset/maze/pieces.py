"""Small mazes cut out of large ones."""

from math import isqrt

import numpy as np

from dataset.maze import rules
from dataset.sources import Puzzles
from runtime.streams import Stream, random_words

_TRIALS = 100  # draws of a start and a goal before a piece is left out


def cut_pieces(questions: np.ndarray, size: int, min_length: int, seed: int) -> Puzzles:
    """Cut pieces of `size` rows out of mazes, each with a new start and a new goal.

    Args:
        questions: tokens of mazes, uint8 [N, cells]. Each gives as many pieces as would lie in it
            side by side, from random places, so that they may overlap.
        min_length: fewest moves from start to goal. A piece in which no draw gives as many is left
            out.
    """
    N, side = len(questions), isqrt(questions.shape[1])
    pieces, places = (side // size) ** 2, np.uint64(side - size + 1)
    words = random_words(seed, Stream.PIECES, (0, 0, 0, 0), 2 * N * pieces)
    rows, columns = (words % places).astype(np.int64).reshape(2, N, pieces)
    mazes = questions.reshape(N, side, side)
    views = np.lib.stride_tricks.sliding_window_view(mazes, (size, size), axis=(1, 2))
    empty = views[np.arange(N)[:, None], rows, columns].reshape(N * pieces, size * size)
    empty = np.where(empty == rules.WALL, rules.WALL, rules.FREE).astype(np.uint8)
    empty = empty[(empty == rules.FREE).sum(axis=1) >= 2]
    inputs, labels, moves = empty.copy(), empty.copy(), np.zeros(len(empty), np.int64)
    for trial in range(1, _TRIALS + 1):
        left = np.flatnonzero(moves < min_length)
        if not len(left):
            break
        drawn = empty[left]
        words = random_words(seed, Stream.PIECES, (0, trial, 0, 0), drawn.size)
        # The start and the goal are the two free cells with the largest words.
        order = np.where(drawn == rules.FREE, words.reshape(drawn.shape), 0).argsort(axis=1)
        np.put_along_axis(drawn, order[:, -2:], np.array([[rules.START, rules.GOAL]]), axis=1)
        inputs[left] = drawn
        labels[left], moves[left] = rules.solve(drawn)
    found = moves >= min_length
    return Puzzles(inputs[found], labels[found], moves[found] + 1)
