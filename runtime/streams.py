"""Random words that depend on a key and a counter alone, not on what was drawn before.

They are the raw 64-bit words of the counter-based generator Philox4x64 (Salmon et al. 2011). NumPy
promises the same words from `random_raw` in all its versions, but not the same results from
`Generator.permutation` and similar methods.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Stream(IntEnum):
    """What random words are used for: the second half of the key. A number never changes: data
    sets and resumed runs depend on it. Techniques have numbers of their own.
    """

    # Building data sets.
    SUBSAMPLE = 0
    TEST = 1
    AUGMENTATION = 2
    NEW_TRAIN = 3
    NEW_TEST = 4
    SELECTION = 5
    NEW_SELECTION = 6
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
    """Return words, uint64 [count], of the stream keyed by (seed, stream), from `counter` on.

    Args:
        seed: 0 to 2**64 - 1.
        stream: 0 to 2**64 - 1; ours are in `Stream`.
        counter: four words of 64 bits, the lowest first. Each step of the lowest one gives four
            words; a caller that counts in the other three never draws the same words twice.
    """
    key, start = np.array([seed, stream], np.uint64), np.array(counter, np.uint64)
    return np.random.Philox(key=key, counter=start).random_raw(count)


def torch_seed(seed: int, step: int, part: int) -> int:
    """Return the seed of what torch draws (dropout, a user's module), 0 to 2**64 - 1.

    Args:
        step: optimizer steps before this one.
        part: of the batch: number of a shard, or of a rank.
    """
    return int(random_words(seed, Stream.TORCH, (0, step, part, 0), 1)[0])


class Address(NamedTuple):
    """Where a step's random numbers stand: they depend on nothing but this.

    Attributes:
        step: optimizer steps before this one.
        num_rows: of the global batch.
        own: rows of it that this rank has.
        num_parts: in which its rows pass through the model, one after the other.
        seq_len: cells of a puzzle.
    """

    seed: int
    step: int
    num_rows: int
    own: range
    num_parts: int
    seq_len: int

    def words(self, stream: int, count: int, counter: int = 0) -> np.ndarray:
        """Draw words, uint64 [count], the same in all versions of numpy (raw Philox words).

        Args:
            stream: a number that nothing else draws with.
            counter: of several draws in a step.
        """
        return random_words(self.seed, stream, (0, self.step, counter, 0), count)

    def uniform(self, stream: int) -> np.ndarray:
        """Draw two numbers in [0, 1) for each row of the global batch, float64 [2, num_rows]."""
        words = self.words(stream, 2 * self.num_rows)
        return (words >> np.uint64(11)).astype(np.float64).reshape(2, -1) * 2.0**-53

    def parts(self, rows: np.ndarray) -> np.ndarray:
        """Cut what this rank's rows have, [rows, ...], into its parts, [parts, rows, ...]."""
        return rows.reshape(self.num_parts, len(rows) // self.num_parts, *rows.shape[1:])
