"""What decoders promise for any logits, with and without a constraint."""

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import are_valid_solutions, find_conflict
from evaluation.constraints import Constraint
from evaluation.decoding import (
    Decoded,
    answer_confidence,
    decode_beam,
    decode_greedy,
    decode_sampled,
)

seeds = st.integers(0, 2**63 - 1)


def rng_of(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def sudokus(draw: st.DrawFn) -> dict[str, Any]:
    """Two 4x4 puzzles without contradiction between clues, often with no or several solutions."""
    grids = np.zeros((2, 4, 4), np.int8)
    rng = rng_of(draw(seeds))
    for grid in grids:
        for _ in range(draw(st.integers(0, 12))):
            cell, before = tuple(rng.integers(4, size=2)), grid.copy()
            grid[cell] = rng.integers(1, 5)
            if find_conflict(grid) is not None:
                grid[:] = before
    inputs = torch.from_numpy(grids.reshape(2, 16)).long() + 1
    return {"inputs": inputs, "constraint": Constraint(SUDOKU)}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, dict[str, Any]]:
    """Logits [2, 16, V] of any scale, with ties and excluded tokens; a constraint or none."""
    vocab_size = draw(st.integers(6, 9))
    rng = rng_of(draw(seeds))
    logits = rng.standard_normal((2, 16, vocab_size))
    if draw(st.booleans()):
        logits = logits.round()
    logits *= 10.0 ** draw(st.integers(-3, 4))
    excluded = rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.3]))
    excluded[..., 3] = False  # Every cell keeps a token.
    logits[excluded] = -math.inf
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    kept = draw(st.one_of(st.just({}), sudokus()))
    return torch.from_numpy(logits).to(dtype), kept


def assert_equal(first: Decoded, second: Decoded) -> None:
    assert all(torch.equal(*values) for values in zip(first, second, strict=True))


@settings(deadline=None)
@given(cases(), seeds, st.integers(1, 9), st.floats(0.01, 1), st.floats(0.01, 10))
def test_answers_are_tokens_and_keep_the_constraint(
    case: tuple[Tensor, dict[str, Any]], seed: int, k: int, p: float, temperature: float
) -> None:
    logits, kept = case
    for decoded in (
        decode_greedy(logits, **kept),
        decode_sampled(logits, temperature, seeded(seed), **kept),
        decode_sampled(logits, temperature, seeded(seed), top_k=k, **kept),
        decode_sampled(logits, temperature, seeded(seed), top_p=p, **kept),
        decode_beam(logits, k, **kept),
    ):
        tokens = decoded.tokens
        assert tokens.shape == (2, 16)
        assert tokens.min() >= 0
        assert tokens.max() < logits.shape[-1]
        assert (decoded.cell_log_probs <= 0).all()
        if not kept:
            assert decoded.feasible.all()
            assert logits.gather(-1, tokens.unsqueeze(-1)).isfinite().all()
        else:
            inputs = kept["inputs"]
            assert ((inputs == 1) | (tokens == inputs)).all()
            assert ((tokens >= 2) & (tokens <= 5)).all()
            valid = are_valid_solutions(tokens.numpy() - 1, 4)
            assert decoded.feasible.tolist() == valid.tolist()


@settings(deadline=None)
@given(cases(), seeds, st.floats(0.01, 10))
def test_cuts_that_keep_all_are_plain_sampling_to_the_bit(
    case: tuple[Tensor, dict[str, Any]], seed: int, temperature: float
) -> None:
    logits, kept = case
    plain = decode_sampled(logits, temperature, seeded(seed), **kept)
    for cut in ({"top_k": logits.shape[-1]}, {"top_p": 1.0}):
        assert_equal(plain, decode_sampled(logits, temperature, seeded(seed), **cut, **kept))


@settings(deadline=None)
@given(cases(), seeds)
def test_the_smallest_cuts_and_a_beam_of_one_are_greedy(
    case: tuple[Tensor, dict[str, Any]], seed: int
) -> None:
    logits, kept = case
    greedy = decode_greedy(logits, **kept)
    assert_equal(decode_beam(logits, 1, **kept), greedy)
    for cut in ({"top_k": 1}, {"top_p": 1e-9}):
        assert_equal(decode_sampled(logits, 1.0, seeded(seed), **cut, **kept), greedy)


@settings(deadline=None)
@given(st.data(), seeds, seeds, st.integers(6, 9))
def test_temperature_towards_0_is_greedy(
    data: st.DataObject, seed: int, order_seed: int, vocab_size: int
) -> None:
    # No two tokens of a cell are equally likely: their logits are 0, 1, 2, ... in some order.
    rng = rng_of(order_seed)
    logits = torch.from_numpy(np.stack([rng.permutation(vocab_size) for _ in range(32)]))
    logits = logits.view(2, 16, vocab_size).float()
    kept = data.draw(st.one_of(st.just({}), sudokus()))
    drawn = decode_sampled(logits, 1e-4, seeded(seed), **kept)
    assert_equal(drawn, decode_greedy(logits, **kept))


@settings(deadline=None)
@given(cases())
def test_confidence_is_a_share(case: tuple[Tensor, dict[str, Any]]) -> None:
    logits, _ = case
    confidence = answer_confidence(logits, logits[:, 0, 3], logits[:, 1, 3])
    assert ((confidence >= 0) & (confidence <= 1)).all()
