"""The random draws of a lattice."""

from typing import Any

import numpy as np

from apps.lattice.config import LatticeConfig
from apps.lattice.model import guesses_and_views
from dataset.sudoku.symmetries import sudoku_symmetries
from runtime.streams import Address

ROWS = 20000


def drawn(seed: int, step: int, rows: int = 64, size: int = 9, **settings: Any) -> Any:
    at = Address(seed, step, rows, range(rows), num_parts=1, seq_len=size**2)
    return guesses_and_views(at, LatticeConfig(**settings), sudoku_symmetries(size))


def test_guesses_and_views_depend_on_seed_step_and_row_alone() -> None:
    found, again = drawn(3, 7, views="dihedral"), drawn(3, 7, views="dihedral")
    shapes = {"guesses": (64, 2), "cells": (64, 81), "tokens": (64, 11)}
    assert {name: values.shape for name, values in found.items()} == shapes
    for other in ((4, 7), (3, 8)):
        different = drawn(*other, views="dihedral")
        for name, values in found.items():
            assert np.array_equal(values, again[name])
            assert not np.array_equal(values, different[name])
    assert len(np.unique(found["cells"], axis=0)) == 8
    plain = drawn(3, 7, views="none")
    assert plain.keys() == {"guesses"}
    assert np.array_equal(plain["guesses"], found["guesses"])


def test_guesses_are_uniform_and_a_share_of_the_rows_is_guided() -> None:
    settings: Any = {"rows": ROWS, "size": 4, "views": "none"}
    found = drawn(3, 7, guided_guesses=0.75, **settings)
    guesses, guided = found["guesses"], found["guided"]
    assert np.array_equal(drawn(3, 7, **settings)["guesses"], guesses)
    assert (guided.shape, guided.dtype) == ((ROWS, 1), bool)
    # Six standard deviations of counts.
    assert abs(guided.sum() - 0.75 * ROWS) < 6 * (ROWS * 0.75 * 0.25) ** 0.5
    assert not np.array_equal(drawn(3, 8, guided_guesses=0.75, **settings)["guided"], guided)
    assert 0 <= guesses.min() <= guesses.max() < 1
    counts, _ = np.histogram(guesses, bins=20, range=(0, 1))
    assert np.abs(counts - ROWS / 10).max() < 6 * (ROWS / 10) ** 0.5
