"""What a lattice draws."""

from math import isqrt

import numpy as np

from apps.lattice.config import LatticeConfig
from apps.lattice.model import guesses_and_views
from dataset.kinds.sudoku import SUDOKU
from models.config import DataFacts
from runtime.streams import Address


def noise_of_lattice(
    seed: int, step: int, rows: int, config: LatticeConfig, facts: DataFacts
) -> dict[str, np.ndarray]:
    at = Address(seed, step, rows, range(rows), num_parts=1, seq_len=facts.seq_len)
    return guesses_and_views(at, config, SUDOKU.views(isqrt(facts.seq_len)), facts.vocab_size)


def test_guesses_and_views_of_a_lattice_depend_on_seed_step_and_row_alone() -> None:
    facts = DataFacts(11, 81, 1)
    lattice = LatticeConfig(views="all")
    drawn = noise_of_lattice(3, 7, 64, lattice, facts)
    assert {name: values.shape for name, values in drawn.items()} == {
        "guesses": (64, 2),
        "cells": (64, 81),
        "tokens": (64, 11),
    }
    again = noise_of_lattice(3, 7, 64, lattice, facts)
    for other in ((4, 7), (3, 8)):
        different = noise_of_lattice(*other, 64, lattice, facts)
        for name, values in drawn.items():
            assert np.array_equal(values, again[name])
            assert not np.array_equal(values, different[name])
    assert len(np.unique(drawn["cells"], axis=0)) == 64
    plain = noise_of_lattice(3, 7, 64, LatticeConfig(views="none"), facts)
    assert plain.keys() == {"guesses"}
    assert np.array_equal(plain["guesses"], drawn["guesses"])


def test_a_share_of_the_rows_is_guided() -> None:
    facts, lattice = DataFacts(6, 16, 1), LatticeConfig(views="none", guided_guesses=0.75)
    drawn = noise_of_lattice(3, 7, 20000, lattice, facts)
    plain = noise_of_lattice(3, 7, 20000, LatticeConfig(views="none"), facts)
    assert np.array_equal(plain["guesses"], drawn["guesses"])
    assert (drawn["guided"].shape, drawn["guided"].dtype) == ((20000, 1), bool)
    # Six standard deviations of a count of 20,000 * 0.75.
    assert abs(drawn["guided"].sum() - 15000) < 6 * (20000 * 0.75 * 0.25) ** 0.5
    assert not np.array_equal(
        noise_of_lattice(3, 8, 20000, lattice, facts)["guided"], drawn["guided"]
    )


def test_guesses_are_uniform() -> None:
    guesses = noise_of_lattice(0, 0, 20000, LatticeConfig(views="none"), DataFacts(6, 16, 1))
    values = guesses["guesses"]
    assert values.min() >= 0
    assert values.max() < 1
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    # Six standard deviations of a count of 40,000 / 20.
    assert np.abs(counts - 2000).max() < 6 * 2000**0.5
