import math
from collections.abc import Callable
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dataset.kinds.sudoku import SUDOKU as KIND
from dataset.sudoku.generator import generate_puzzles
from dataset.sudoku.rules import are_valid_solutions
from evaluation.constraints import UNDECIDED, Constraint
from evaluation.decoding import (
    Decoded,
    answer_confidence,
    decode_beam,
    decode_greedy,
    decode_sampled,
)
from runtime.streams import Stream

SOLUTION = torch.tensor([2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2])
SUDOKU = Constraint(KIND)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampled(logits: Tensor, temperature: float = 1.0, **options: Any) -> Decoded:
    return decode_sampled(logits, temperature, seeded(), **options)


DECODERS: dict[str, Callable[..., Decoded]] = {
    "greedy": decode_greedy,
    "temperature": partial(sampled, temperature=0.7),
    "top_k": partial(sampled, top_k=3),
    "top_p": partial(sampled, top_p=0.8),
    "beam": partial(decode_beam, width=3),
}
by_every_decoder = pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)


def noisy(labels: Tensor, vocab_size: int, margin: float, seed: int = 0) -> Tensor:
    """Logits of normal noise, float32 [B, S, V], with those of the labels raised by `margin`."""
    noise = torch.randn(*labels.shape, vocab_size, generator=seeded(seed))
    return noise + margin * torch.nn.functional.one_hot(labels, vocab_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@by_every_decoder
def test_log_probs_are_those_of_the_softmax_at_temperature_1(
    decode: Callable[..., Decoded], dtype: torch.dtype
) -> None:
    logits = torch.randn(3, 5, 7, generator=seeded(), dtype=torch.float64).to(dtype)
    decoded = decode(logits)
    assert decoded.tokens.dtype == torch.int64
    assert decoded.tokens.shape == decoded.cell_log_probs.shape == (3, 5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert decoded.log_probs.dtype == decoded.cell_log_probs.dtype == wide
    log_probs = logits.double().log_softmax(-1).gather(-1, decoded.tokens.unsqueeze(-1))
    bound = 1e-13 if wide == torch.float64 else 1e-5
    torch.testing.assert_close(
        decoded.cell_log_probs.double(), log_probs.squeeze(-1), atol=bound, rtol=0
    )
    assert torch.equal(decoded.log_probs, decoded.cell_log_probs.sum(-1))
    assert decoded.feasible.tolist() == [True] * 3


@pytest.mark.parametrize("width", [1, 5])
def test_greedy_and_beam_take_the_most_likely_token(width: int) -> None:
    logits = torch.randn(4, 6, 5, generator=seeded())
    logits[0, 0] = torch.tensor([0.0, 1.0, 0.5, 1.0, -math.inf])
    assert torch.equal(decode_greedy(logits).tokens, logits.argmax(-1))
    assert torch.equal(decode_beam(logits, width).tokens, logits.argmax(-1))
    assert decode_greedy(logits).tokens[0, 0] == 1


PROBS = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.25])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, PROBS),
        ({"temperature": 0.5}, PROBS**2 / 0.315),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 99}, PROBS),
        ({"top_p": 0.3}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.9}, [0, 0.4 / 0.95, 0, 0.3 / 0.95, 0.25 / 0.95]),
        # At temperature 1/2 the first token has 0.508 of the probability, not 0.4.
        ({"top_p": 0.5, "temperature": 0.5}, [0, 1, 0, 0, 0]),
        ({"top_k": 2, "temperature": 0.5}, [0, 0.64, 0, 0.36, 0]),
    ],
)
def test_draws_have_the_distribution_asked_for(options: dict[str, Any], expected: Any) -> None:
    drawn = sampled(PROBS.log().expand(4, 5000, 5), **options).tokens
    shares, expected = drawn.view(-1).bincount(minlength=5) / 20_000, torch.as_tensor(expected)
    # Five standard deviations: no luck of the seed hides a mistake of a few percent.
    deviations = (expected * (1 - expected) / 20_000).clamp_min(0).sqrt()
    assert ((shares - expected).abs() <= 5 * deviations + 1e-6).all()


def test_of_equal_tokens_the_first_are_kept() -> None:
    logits = torch.zeros(1, 500, 6)
    assert set(sampled(logits, top_k=2).tokens.view(-1).tolist()) == {0, 1}
    assert set(sampled(logits, top_p=0.4).tokens.view(-1).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_draws_come_from_the_generator_alone(name: str) -> None:
    logits = torch.randn(2, 30, 7, generator=seeded())
    state = torch.get_rng_state()
    first = DECODERS[name](logits).tokens
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, DECODERS[name](logits).tokens)
    generator = seeded()
    draws = [decode_sampled(logits, 1.0, generator).tokens for _ in range(2)]
    assert not torch.equal(*draws)


def test_very_low_temperatures_do_not_overflow() -> None:
    for scale, temperature in ((1e4, 1e-3), (1e4, 1e-30), (1e30, 1e-300)):
        logits = torch.randn(2, 30, 7, generator=seeded()) * scale
        drawn = sampled(logits, temperature).tokens
        assert torch.equal(drawn, logits.argmax(-1))


def test_an_empty_batch_stays_empty() -> None:
    inputs = torch.empty(0, 16, dtype=torch.int64)
    for decode in DECODERS.values():
        assert decode(torch.empty(0, 16, 6)).tokens.shape == (0, 16)
        kept = decode(torch.empty(0, 16, 6), inputs=inputs, constraint=SUDOKU)
        assert kept.tokens.shape == (0, 16)
        assert kept.log_probs.shape == kept.feasible.shape == (0,)


LOGITS = torch.zeros(2, 16, 6)
CELLS = LOGITS[..., 0].long()


def with_logit(value: float) -> Tensor:
    return LOGITS.index_put(tuple(torch.tensor([[1], [3], [2]])), torch.tensor(value))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: decode_greedy(LOGITS[0]), r"logits of shape \[16, 6\]; accepted: \[batch, cells"),
        (lambda: decode_beam(LOGITS[:, :0], 2), r"shape \[2, 0, 6\]"),
        (lambda: decode_greedy(LOGITS[..., :0]), r"shape \[2, 16, 0\]; accepted: \[batch, cells"),
        (lambda: decode_greedy(LOGITS.long()), "dtype torch.int64; accepted: floating"),
        (lambda: decode_greedy(with_logit(math.nan)), r"logits at \[1, 3\] have a nan"),
        (lambda: decode_beam(with_logit(math.inf), 2), r"logits at \[1, 3\] have a inf"),
        (lambda: sampled(LOGITS, 0.0), "temperature is 0.0; accepted: above"),
        (lambda: decode_greedy(LOGITS - math.inf), r"logits at \[0, 0\] have no token"),
        (lambda: sampled(LOGITS, math.inf), "temperature is inf"),
        (lambda: sampled(LOGITS, math.nan), "temperature is nan"),
        (lambda: sampled(LOGITS, top_k=0), "top_k is 0; accepted: 1 or more"),
        (lambda: sampled(LOGITS, top_p=0.0), "top_p is 0.0; accepted"),
        (lambda: sampled(LOGITS, top_p=1.1), "top_p is 1.1; accepted"),
        (lambda: decode_beam(LOGITS, 0), "beam_width is 0; accepted: 1 or more"),
        (lambda: decode_greedy(LOGITS, constraint=SUDOKU), "needs the inputs"),
        (
            lambda: decode_beam(LOGITS, 2, inputs=CELLS[:, :9], constraint=SUDOKU),
            r"inputs of shape \[2, 9\].*integers \[2, 16\]",
        ),
        (
            lambda: decode_greedy(LOGITS, inputs=CELLS.float(), constraint=SUDOKU),
            "dtype torch.float32; accepted with these logits: integers",
        ),
        (
            lambda: decode_greedy(LOGITS[..., :5], inputs=CELLS, constraint=SUDOKU),
            "5 tokens; a 4x4 Sudoku needs 6",
        ),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        call()


def test_confidence_is_certainty_times_the_wish_to_halt() -> None:
    certain, even = torch.tensor([1e4, 0.0, 0, 0]), torch.zeros(4)
    halves = torch.tensor([3.0, 3, -math.inf, -math.inf])
    cells = [certain, certain, even, even, halves, halves, certain, even]
    logits = torch.stack(cells).view(4, 2, 4)
    q_halt, q_continue = torch.tensor([2.0, 5, -1, 0.5]), torch.tensor([1.0, 0, -1, 0.5])
    # Two of four tokens are half the entropy of four.
    expected = [1 / (1 + math.exp(-1)), 0.0, 0.5 * 0.5, 0.5 * 0.5]
    found = answer_confidence(logits, q_halt, q_continue)
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.min() >= 0
    double = answer_confidence(logits.double(), q_halt, q_continue)
    assert double.dtype == torch.float64
    assert double.tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (((2, 3, 4), (2,), (3,)), r"q_continue_logits of shape \[3\]; accepted: \[2\]"),
        (((2, 3, 4), (2, 1), (2,)), r"q_halt_logits of shape \[2, 1\]; accepted: \[2\]"),
        (((2, 3, 1), (2,), (2,)), "a single token"),
        (((2, 3), (2,), (2,)), r"logits of shape \[2, 3\]"),
    ],
)
def test_confidence_checks_its_shapes(shapes: tuple[tuple[int, ...], ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        answer_confidence(*(torch.zeros(shape) for shape in shapes))


@pytest.fixture(scope="module")
def puzzles() -> tuple[Tensor, Tensor]:
    """Inputs and labels of 40 9x9 Sudokus with one solution each, int64 [40, 81] tokens."""
    how = {"seed": 5, "stream": Stream.NEW_TEST, "size": 9, "min_clues": 25, "max_clues": 28}
    made, _ = generate_puzzles(40, **how, min_rating=0, taken=set())
    inputs, labels = (torch.from_numpy(grid).long() + 1 for grid in (made.questions, made.answers))
    return inputs, labels


def greedy_by_hand(logits: Tensor, inputs: Tensor) -> tuple[list[int], bool]:
    """Decide one cell after the other, of one puzzle, in Python's floats."""
    state = SUDOKU.start(inputs[None], logits.shape[-1])
    while True:
        best = (-1.0, -1, -1)
        for cell, allowed in enumerate(state["allowed"][0]):
            powers = (logits[cell] - logits[cell].max()).exp() * allowed
            for token in allowed.nonzero().view(-1).tolist():
                share = float(powers[token] / powers.sum())
                if share > best[0] + 1e-12:
                    best = (share, cell, token)
        if best[0] < 0:
            break
        state = SUDOKU.place(state, torch.tensor([best[1]]), torch.tensor([best[2]]))
    choices = SUDOKU.choices(*logits.shape)
    best_choices = logits.masked_fill(~choices, -math.inf).argmax(-1)
    tokens = state["tokens"][0]
    answer = torch.where(tokens == UNDECIDED, best_choices, tokens)
    return answer.tolist(), UNDECIDED not in tokens


def test_greedy_and_the_beam_of_one_equal_a_slow_greedy(puzzles: tuple[Tensor, Tensor]) -> None:
    inputs, labels = (tokens[:6] for tokens in puzzles)
    logits = noisy(labels, 11, margin=0.7).double()
    by_hand = [greedy_by_hand(*row) for row in zip(logits, inputs, strict=True)]
    for decode in (decode_greedy, partial(decode_beam, width=1)):
        decoded = decode(logits, inputs=inputs, constraint=SUDOKU)
        assert decoded.tokens.tolist() == [answer for answer, _ in by_hand]
        assert decoded.feasible.tolist() == [is_feasible for _, is_feasible in by_hand]
        assert set(decoded.feasible.tolist()) == {True, False}


def test_the_beam_beats_greedy_under_the_sudoku_mask(puzzles: tuple[Tensor, Tensor]) -> None:
    inputs, labels = puzzles
    logits = noisy(labels, 11, margin=0.5)
    num_exact, num_valid = {}, {}
    for width in (1, 8):
        decoded = decode_beam(logits, width, inputs=inputs, constraint=SUDOKU)
        num_exact[width] = int((decoded.tokens == labels).all(-1).sum())
        is_valid = torch.from_numpy(are_valid_solutions(decoded.tokens.numpy() - 1, 9))
        assert torch.equal(is_valid, decoded.feasible)
        num_valid[width] = int(is_valid.sum())
    # The mask alone solves many: without it not one answer is right.
    assert not (decode_greedy(logits).tokens == labels).all(-1).any()
    assert 0 < num_exact[1] < num_exact[8] - 2
    assert num_valid[1] < num_valid[8] - 2


@by_every_decoder
def test_a_row_without_solution_is_marked_and_the_others_are_as_alone(
    decode: Callable[..., Decoded],
) -> None:
    # The last cell of row 0 sees all four digits.
    stuck = torch.ones(16, dtype=torch.int64)
    stuck[0:3], stuck[11] = torch.tensor([2, 3, 4]), 5
    inputs = torch.stack([torch.where(torch.arange(16) % 3 == 0, SOLUTION, 1), stuck])
    logits = noisy(SOLUTION.expand(2, 16), 6, margin=6.0)
    logits[1, 3, 0] = 50.0
    decoded = decode(logits, inputs=inputs, constraint=SUDOKU)
    assert decoded.feasible.tolist() == [True, False]
    assert torch.equal(decoded.tokens[0], SOLUTION)
    assert torch.equal(decoded.tokens[1, :3], stuck[:3])
    assert decoded.tokens[1].min() >= 2  # Token 0 is no digit, however likely.
    assert decoded.tokens[1, 3] == 2 + logits[1, 3, 2:].argmax()
    alone = decode(logits[:1], inputs=inputs[:1], constraint=SUDOKU)
    assert torch.equal(alone.tokens[0], decoded.tokens[0])


@by_every_decoder
def test_the_constraint_comes_before_the_logits(decode: Callable[..., Decoded]) -> None:
    inputs = SOLUTION.clone()[None]
    inputs[0, [2, 7]] = 1
    logits = torch.zeros(1, 16, 6)
    logits[0, 7, SOLUTION[7]] = -math.inf
    logits[0, 0, SOLUTION[0]] = -math.inf  # A clue.
    decoded = decode(logits, inputs=inputs, constraint=SUDOKU)
    assert torch.equal(decoded.tokens[0], SOLUTION)
    assert decoded.feasible.item()
    assert decoded.cell_log_probs[0, [0, 7]].tolist() == [-math.inf, -math.inf]
    assert decoded.log_probs.item() == -math.inf


def all_sudokus() -> Tensor:
    """All 4x4 grids, as tokens, int64 [288, 16]."""
    rows = list(permutations(range(2, 6)))
    grids = torch.tensor([[*a, *b, *c, *d] for a, b, c, d in product(rows, repeat=4)])
    return grids[torch.from_numpy(are_valid_solutions(grids.numpy() - 1, 4))]


def test_a_beam_wide_enough_finds_the_most_likely_grid() -> None:
    grids = all_sudokus()
    assert len(grids) == 288
    rng = np.random.default_rng(3)
    chosen = grids[torch.from_numpy(rng.choice(288, 12))]
    inputs = torch.where(torch.from_numpy(rng.random((12, 16)) < 0.25), chosen, 1)
    logits = torch.randn(12, 16, 6, generator=seeded(), dtype=torch.float64)
    wide = decode_beam(logits, 2000, inputs=inputs, constraint=SUDOKU)
    narrow = decode_beam(logits, 1, inputs=inputs, constraint=SUDOKU)
    better = wide.log_probs > narrow.log_probs + 0.1
    assert (better | ~narrow.feasible | (wide.log_probs >= narrow.log_probs - 1e-12)).all()
    assert better.any()
    log_probs = logits.log_softmax(-1)
    for row, clues in enumerate(inputs):
        answers = grids[((grids == clues) | (clues == 1)).all(-1)]
        totals = log_probs[row, torch.arange(16), answers].sum(-1)
        assert torch.equal(wide.tokens[row], answers[totals.argmax()])
