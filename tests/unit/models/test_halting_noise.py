"""The halting noise: a pure function with the distribution of the paper."""

import numpy as np
import pytest

from models.act import min_halt_steps
from runtime.streams import Address


def draw(
    seed: int = 0, step: int = 0, rows: int = 8, probability: float = 0.5, halt_max_steps: int = 16
) -> np.ndarray:
    at = Address(seed, step, rows, range(rows), num_parts=1, seq_len=0)
    return min_halt_steps(at, probability, halt_max_steps)


def test_the_numbers_are_pinned_and_each_seed_and_step_has_its_own() -> None:
    """A resumed run must find the noise it left, also after an update of numpy."""
    drawn = draw(seed=1, step=2, rows=10, probability=0.6, halt_max_steps=9)
    assert drawn.tolist() == [3, 9, 0, 8, 0, 0, 0, 0, 0, 5]
    seeds = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    others = {draw(seed=s, step=t, rows=64).tobytes() for s in seeds for t in (0, 1, 2, 2**40)}
    assert len(others) == len(seeds) * 4


@pytest.mark.parametrize("halt_max_steps", [2, 3, 9, 16])
def test_explored_rows_are_uniform_from_two_to_the_last_step(halt_max_steps: int) -> None:
    drawn = draw(rows=60_000, probability=1.0, halt_max_steps=halt_max_steps)
    counts, choices = np.bincount(drawn), halt_max_steps - 1
    assert len(counts) == halt_max_steps + 1
    assert not counts[:2].any()
    expected = 60_000 / choices
    statistic = ((counts[2:] - expected) ** 2 / expected).sum()
    # Five deviations of a chi-square with choices - 1 degrees of freedom.
    assert statistic <= choices - 1 + 5 * np.sqrt(2 * (choices - 1))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.9])
def test_the_share_of_explored_rows(probability: float) -> None:
    drawn = draw(rows=40_000, probability=probability)
    error = 5 * np.sqrt(probability * (1 - probability) / 40_000)
    assert (drawn > 0).mean() == pytest.approx(probability, abs=error)
    # With one step there is nothing to delay.
    assert not draw(probability=1.0, halt_max_steps=1).any()
