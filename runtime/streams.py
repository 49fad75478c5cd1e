"""Random words that depend only on a key and a counter, not on earlier draws.

They are the raw 64-bit words of the counter-based generator Philox4x64 (Salmon et al. 2011). NumPy
promises the same words from `random_raw` in all its versions, but not the same results from
`Generator.permutation` and similar methods.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Stream(IntEnum):
    """The uses of random words. A number is the second half of a key; never change it, because data
    sets and resumed runs depend on it. Techniques have their own numbers.
    """

    # Building data sets.
    SUBSAMPLE = 0
    TEST = 1
    AUGMENTATION = 2
    NEW_TRAIN = 3
    NEW_TEST = 4
    SELECTION = 5
    NEW_SELECTION = 6
    PIECES = 7
    VARIANTS = 8
    ARC_AUGMENTATION = 16
    ARC_HASH = 17
    ARC_UNSHIFTED = 18
    ARC_SHIFT = 19
    # Training.
    BATCHES = 0x9A22_1E5D_A7A5_E7B0
    HALT = 0x68616C74
    TORCH = 0x746F7263
    GUESSES = 0x67756573
    TURNS = 0x7475726E
    # Evaluations.
    VIEWS = 0x76696577
    CHAINS = 0x63686169
    ROWS = 0x726F7773
    SEARCH = 0x73656172


def random_words(
    seed: int, stream: int, counter: tuple[int, int, int, int], count: int
) -> np.ndarray:
    """Return words, uint64 [count], of the stream with key (seed, stream), starting at `counter`.

    Args:
        seed: 0 to 2**64 - 1.
        stream: 0 to 2**64 - 1; ours are in `Stream`.
        counter: four words of 64 bits, the lowest first. Each step of the lowest gives four words;
            draws that differ in the other three never share words.
    """
    key, start = np.array([seed, stream], np.uint64), np.array(counter, np.uint64)
    return np.random.Philox(key=key, counter=start).random_raw(count)


def torch_seed(seed: int, step: int, part: int) -> int:
    """Return the seed for torch's draws (dropout, a user's module), 0 to 2**64 - 1.

    Args:
        step: the number of optimizer steps before this one.
        part: the number of the shard or rank.
    """
    return int(random_words(seed, Stream.TORCH, (0, step, part, 0), 1)[0])


class Address(NamedTuple):
    """The position of a training step. The step's random draws depend on nothing else.

    Attributes:
        step: the number of optimizer steps before this one.
        num_rows: the number of rows of the global batch.
        own: this rank's rows.
        num_parts: the number of parts that these rows are split into for the model.
        seq_len: the number of cells of a puzzle.
    """

    seed: int
    step: int
    num_rows: int
    own: range
    num_parts: int
    seq_len: int

    def words(self, stream: int, count: int, counter: int = 0) -> np.ndarray:
        """Return random words, uint64 [count].

        Args:
            stream: the caller's own number, see `Stream`.
            counter: the number of the draw, if a step has several.
        """
        return random_words(self.seed, stream, (0, self.step, counter, 0), count)

    def uniform(self, stream: int) -> np.ndarray:
        """Draw two numbers in [0, 1) for each row of the global batch, float64 [2, num_rows]."""
        words = self.words(stream, 2 * self.num_rows)
        return (words >> np.uint64(11)).astype(np.float64).reshape(2, -1) * 2.0**-53

    def parts(self, rows: np.ndarray) -> np.ndarray:
        """Cut an array over this rank's rows [rows, ...] into parts, [num_parts, rows, ...]."""
        return rows.reshape(self.num_parts, len(rows) // self.num_parts, *rows.shape[1:])
