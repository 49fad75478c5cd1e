"""The halting noise: a pure function with the distribution of the paper."""

from typing import Any

import numpy as np
import pytest

from models.config import DataFacts, HRMConfig, LatticeConfig
from training.exploration import (
    anchor_sources,
    min_halt_steps,
    noise_of_lattice,
    rows_ahead,
    torch_seed,
)


def draw(
    seed: int = 0, step: int = 0, rows: int = 8, probability: float = 0.5, halt_max_steps: int = 16
) -> np.ndarray:
    return min_halt_steps(seed, step, rows, probability=probability, halt_max_steps=halt_max_steps)


def test_same_arguments_same_numbers_whatever_was_drawn_before() -> None:
    first = draw(seed=3, step=7, rows=100)
    draw(seed=4, step=8)
    np.testing.assert_array_equal(draw(seed=3, step=7, rows=100), first)
    assert (first.dtype, first.shape) == (np.int32, (100,))


def test_the_numbers_are_pinned() -> None:
    """A resumed run must find the noise it left, also after an update of numpy."""
    drawn = draw(seed=1, step=2, rows=10, probability=0.6, halt_max_steps=9)
    assert drawn.tolist() == [3, 9, 0, 8, 0, 0, 0, 0, 0, 5]


def test_every_seed_and_step_has_its_own_numbers() -> None:
    seeds = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    drawn = {draw(seed=s, step=t, rows=64).tobytes() for s in seeds for t in (0, 1, 2, 2**40)}
    assert len(drawn) == len(seeds) * 4


@pytest.mark.parametrize("halt_max_steps", [2, 3, 9, 16])
def test_explored_rows_are_uniform_from_two_to_the_last_step(halt_max_steps: int) -> None:
    drawn = draw(rows=60_000, probability=1.0, halt_max_steps=halt_max_steps)
    counts = np.bincount(drawn, minlength=halt_max_steps + 1)
    assert len(counts) == halt_max_steps + 1
    assert not counts[:2].any()
    choices = halt_max_steps - 1
    expected = 60_000 / choices
    statistic = ((counts[2:] - expected) ** 2 / expected).sum()
    # Five deviations of a chi-square with choices - 1 degrees of freedom.
    assert statistic <= choices - 1 + 5 * np.sqrt(2 * (choices - 1))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_of_explored_rows(probability: float) -> None:
    drawn = draw(rows=40_000, probability=probability)
    error = 5 * np.sqrt(probability * (1 - probability) / 40_000)
    assert (drawn > 0).mean() == pytest.approx(probability, abs=error)
    # Whether a row explores says nothing about where its neighbour halts.
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / np.sqrt(40_000)


def test_the_bounds_of_the_probability_are_exact() -> None:
    assert not draw(rows=10_000, probability=0.0).any()
    assert (draw(rows=10_000, probability=1.0) >= 2).all()
    # With one step there is nothing to delay.
    assert not draw(probability=1.0, halt_max_steps=1).any()


def test_every_part_of_every_step_has_a_seed_of_its_own() -> None:
    places = [(seed, step, part) for seed in (0, 1) for step in range(50) for part in range(5)]
    seeds = [torch_seed(*place) for place in places]
    # torch's generator on a CPU takes the lower half alone.
    assert len({seed % 2**32 for seed in seeds}) == len(places)
    assert [torch_seed(*place) for place in reversed(places)] == seeds[::-1]
    assert all(0 <= seed < 2**64 for seed in seeds)


# Rows that look ahead


def ahead(step: int, rows: int = 64, every: int = 4, q_target: str = "rows", seed: int = 0) -> Any:
    arch = HRMConfig.model_validate({"q_target": q_target, "q_target_every": every})
    return rows_ahead(seed, step, rows, arch)


def test_the_rows_that_look_ahead_are_pinned() -> None:
    """A resumed run must go on with the rows that it would have taken."""
    assert ahead(2, 20, seed=1).tolist() == [3, 4, 10, 12, 19]
    assert len({ahead(step, seed=seed).tobytes() for step in range(9) for seed in (0, 1)}) == 18


def test_one_of_each_few_neighbours_looks_ahead_however_the_batch_is_cut() -> None:
    for step in range(20):
        rows = ahead(step)
        assert (rows // 4).tolist() == [*range(16)]


def test_every_row_looks_ahead_as_often() -> None:
    counts = np.bincount(np.concatenate([ahead(step, 12) for step in range(4000)]), minlength=12)
    # Five deviations of a binomial count.
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(4000 * 0.25 * 0.75)


def test_all_rows_look_ahead_at_every_few_steps() -> None:
    found = [ahead(step, 3, 3, "steps").tolist() for step in range(5)]
    assert found == [[0, 1, 2], [], [], [0, 1, 2], []]
    assert ahead(0, q_target="full") is None


# Corrupted solutions to start from


def anchors(
    step: int = 0, rows: int = 4000, cells: int = 30, seed: int = 0, **share: float
) -> np.ndarray:
    shares = {"probability": 0.25, "corruption": 0.4} | share
    found = anchor_sources(seed, step, rows, range(rows), cells, **shares)
    assert found is not None
    assert (found.dtype, found.shape) == (np.int32, (rows, cells))
    return found


def test_the_anchors_are_pinned() -> None:
    """A resumed run must start where it would have started."""
    found = anchors(2, 4, 6, seed=1, probability=0.5, corruption=1.0)
    assert found[[0, 2, 3]].tolist() == [[2, 1, 2, 5, 4, 3], [0, 1, 4, 3, 4, 5], [1, 5, 2, 5, 4, 5]]
    assert (found[1] == -1).all()
    # A rank draws its own rows alone.
    own = anchor_sources(1, 2, 4, range(2, 4), 6, probability=0.5, corruption=1.0)
    assert own is not None
    assert own.tolist() == found[2:].tolist()
    drawn = {anchors(step, 9, seed=seed).tobytes() for step in range(9) for seed in (0, 1)}
    assert len(drawn) == 18


def test_a_share_of_the_rows_is_anchored_whole() -> None:
    found = anchors()
    anchored = (found >= 0).all(1)
    assert ((found >= 0).any(1) == anchored).all()
    assert abs(anchored.sum() - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75)
    assert (anchors(rows=50, probability=1.0) >= 0).all()
    assert anchor_sources(0, 0, 5, range(5), 9, probability=0.0, corruption=0.5) is None


def test_a_row_has_a_share_of_its_own_and_every_cell_is_as_likely() -> None:
    found = anchors(probability=1.0)
    wrong = found != np.arange(30)
    # One corrupted cell in 30 takes its own token.
    shares = wrong.mean(1) * 30 / 29
    # Uniform up to 0.4, plus what the few cells of a row add to its spread.
    assert shares.mean() == pytest.approx(0.2, abs=0.01)
    spread = 0.4**2 / 12 + (0.2 - 0.4**2 / 3) / 30
    assert shares.var() == pytest.approx(spread, rel=0.1)
    assert wrong.mean(0) == pytest.approx(np.full(30, 0.2 * 29 / 30), abs=5 * np.sqrt(0.2 / 4000))
    taken = np.bincount(found[wrong], minlength=30) / wrong.sum()
    assert taken == pytest.approx(np.full(30, 1 / 30), abs=0.005)
    assert (anchors(probability=1.0, corruption=0.0) == np.arange(30)).all()


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
