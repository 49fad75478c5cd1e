"""Noise of ACT's halting rule, keyed so that it depends neither on the number of ranks nor on the
past.
"""

import numpy as np

_STREAM = 0x68616C74  # "halt": keeps this stream apart from the data's.


def min_halt_steps(
    seed: int, step: int, num_rows: int, *, probability: float, halt_max_steps: int
) -> np.ndarray:
    """Draw the number of ACT steps before which each row must not halt early.

    With `probability` a row gets a uniform number in [2, halt_max_steps], otherwise 0
    (arXiv:2506.21734, 2.2).

    Args:
        seed: the run's seed. step: optimizer step, from 0. num_rows: rows of the global batch.
    Returns:
        int32 [num_rows]; a pure function of the arguments, the same in all versions of numpy (raw
        Philox words).
    """
    if halt_max_steps < 2:
        return np.zeros(num_rows, np.int32)
    key = np.array([seed, _STREAM], np.uint64)
    words = np.random.Philox(key=key, counter=(0, step, 0, 0)).random_raw(2 * num_rows)
    explores, where = (words >> np.uint64(11)).astype(np.float64).reshape(2, num_rows) * 2.0**-53
    steps = 2 + np.floor(where * (halt_max_steps - 1))
    return np.where(explores < probability, steps, 0).astype(np.int32)
