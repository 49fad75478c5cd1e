import gzip
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dataset.maze.rules import FREE, GOAL, PATH, START, WALL, check_paths, solve, text_to_tokens
from dataset.sudoku.generator import generate_puzzles
from dataset.sudoku.rules import are_valid_solutions
from evaluation.constraints import UNDECIDED, Constraint, MazeConstraint, SudokuConstraint
from evaluation.decoding import (
    Decoded,
    answer_confidence,
    decode_beam,
    decode_greedy,
    decode_temperature,
    decode_top_k,
    decode_top_p,
)
from runtime.streams import Stream

SOLUTION = torch.tensor([2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2])
SUDOKU, MAZE = SudokuConstraint(), MazeConstraint()

DECODERS: dict[str, Callable[..., Decoded]] = {
    "greedy": decode_greedy,
    "temperature": lambda logits, **kept: decode_temperature(logits, 0.7, seeded(), **kept),
    "top_k": lambda logits, **kept: decode_top_k(logits, 3, seeded(), **kept),
    "top_p": lambda logits, **kept: decode_top_p(logits, 0.8, seeded(), **kept),
    "beam": partial(decode_beam, width=3),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy(labels: Tensor, vocab_size: int, margin: float, seed: int = 0) -> Tensor:
    """Logits of normal noise, float32 [B, S, V], with those of the labels raised by `margin`."""
    noise = torch.randn(*labels.shape, vocab_size, generator=seeded(seed))
    return noise + margin * torch.nn.functional.one_hot(labels, vocab_size)


# Without a constraint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_log_probs_are_those_of_the_softmax_at_temperature_1(
    decode: Callable[..., Decoded], dtype: torch.dtype
) -> None:
    logits = torch.randn(3, 5, 7, generator=seeded(), dtype=torch.float64).to(dtype)
    decoded = decode(logits)
    assert decoded.tokens.dtype == torch.int64
    assert decoded.tokens.shape == decoded.cell_log_probs.shape == (3, 5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert decoded.log_probs.dtype == decoded.cell_log_probs.dtype == wide
    probs = logits.double().exp() / logits.double().exp().sum(-1, keepdim=True)
    for row, cell in product(range(3), range(5)):
        chosen = probs[row, cell, decoded.tokens[row, cell]]
        assert decoded.cell_log_probs[row, cell].item() == pytest.approx(
            math.log(chosen), abs=1e-13 if wide == torch.float64 else 1e-5
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


def shares(decode: Callable[[Tensor], Decoded], num_draws: int = 20_000) -> np.ndarray:
    logits = PROBS.log().expand(4, num_draws // 4, 5)
    return np.bincount(decode(logits).tokens.view(-1), minlength=5) / num_draws


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (lambda x: decode_temperature(x, 1.0, seeded()), [0.05, 0.4, 0, 0.3, 0.25]),
        # Squares of the probabilities, over their sum.
        (
            lambda x: decode_temperature(x, 0.5, seeded()),
            [0.0025 / 0.315, 0.16 / 0.315, 0, 0.09 / 0.315, 0.0625 / 0.315],
        ),
        (lambda x: decode_top_k(x, 2, seeded()), [0, 4 / 7, 0, 3 / 7, 0]),
        (lambda x: decode_top_k(x, 1, seeded()), [0, 1, 0, 0, 0]),
        (lambda x: decode_top_k(x, 99, seeded()), [0.05, 0.4, 0, 0.3, 0.25]),
        (lambda x: decode_top_p(x, 0.3, seeded()), [0, 1, 0, 0, 0]),
        (lambda x: decode_top_p(x, 0.6, seeded()), [0, 4 / 7, 0, 3 / 7, 0]),
        (lambda x: decode_top_p(x, 0.9, seeded()), [0, 0.4 / 0.95, 0, 0.3 / 0.95, 0.25 / 0.95]),
        # At temperature 1/2 the first token has 0.508 of the probability, not 0.4.
        (lambda x: decode_top_p(x, 0.5, seeded(), temperature=0.5), [0, 1, 0, 0, 0]),
        (lambda x: decode_top_k(x, 2, seeded(), temperature=0.5), [0, 0.64, 0, 0.36, 0]),
    ],
)
def test_draws_have_the_distribution_asked_for(
    decode: Callable[[Tensor], Decoded], expected: list[float]
) -> None:
    found = shares(decode)
    for share, probability in zip(found, expected, strict=True):
        # Five standard deviations: no luck of the seed hides a mistake of a few percent.
        deviation = math.sqrt(probability * (1 - probability) / 20_000)
        assert share == pytest.approx(probability, abs=5 * deviation + 1e-12)


def test_of_equal_tokens_the_first_are_kept() -> None:
    logits = torch.zeros(1, 500, 6)
    assert set(decode_top_k(logits, 2, seeded()).tokens.view(-1).tolist()) == {0, 1}
    assert set(decode_top_p(logits, 0.4, seeded()).tokens.view(-1).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_draws_come_from_the_generator_alone(name: str) -> None:
    logits = torch.randn(2, 30, 7, generator=seeded())
    state = torch.get_rng_state()
    first = DECODERS[name](logits).tokens
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, DECODERS[name](logits).tokens)
    generator = seeded()
    draws = [decode_temperature(logits, 1.0, generator).tokens for _ in range(2)]
    assert not torch.equal(*draws)


def test_very_low_temperatures_do_not_overflow() -> None:
    for scale, temperature in ((1e4, 1e-3), (1e4, 1e-30), (1e30, 1e-300)):
        logits = torch.randn(2, 30, 7, generator=seeded()) * scale
        drawn = decode_temperature(logits, temperature, seeded()).tokens
        assert torch.equal(drawn, logits.argmax(-1))


def test_an_empty_batch_stays_empty() -> None:
    inputs = torch.empty(0, 16, dtype=torch.int64)
    for decode in DECODERS.values():
        assert decode(torch.empty(0, 16, 6)).tokens.shape == (0, 16)
        kept = decode(torch.empty(0, 16, 6), inputs=inputs, constraint=SUDOKU)
        assert kept.tokens.shape == (0, 16)
        assert kept.log_probs.shape == kept.feasible.shape == (0,)
        assert decode(torch.empty(0, 16, 6), inputs=inputs, constraint=MAZE).tokens.shape == (0, 16)


LOGITS = torch.zeros(2, 16, 6)


def with_logit(value: float) -> Tensor:
    logits = LOGITS.clone()
    logits[1, 3, 2] = value
    return logits


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: decode_greedy(LOGITS[0]), r"logits of shape \[16, 6\]; accepted: \[batch, cells"),
        (lambda: decode_beam(LOGITS[:, :0], 2), r"shape \[2, 0, 6\]"),
        (lambda: decode_greedy(LOGITS[..., :0]), r"shape \[2, 16, 0\]; accepted: \[batch, cells"),
        (lambda: decode_greedy(LOGITS.long()), "dtype torch.int64; accepted: floating"),
        (lambda: decode_greedy(with_logit(math.nan)), r"logits at \[1, 3\] have a nan"),
        (lambda: decode_beam(with_logit(math.inf), 2), r"logits at \[1, 3\] have a inf"),
        (lambda: decode_temperature(LOGITS, 0.0, seeded()), "temperature is 0.0; accepted: above"),
        (lambda: decode_greedy(LOGITS - math.inf), r"logits at \[0, 0\] have no token"),
        (lambda: decode_temperature(LOGITS, math.inf, seeded()), "temperature is inf"),
        (lambda: decode_temperature(LOGITS, math.nan, seeded()), "temperature is nan"),
        (lambda: decode_top_k(LOGITS, 0, seeded()), "top_k is 0; accepted: 1 or more"),
        (lambda: decode_top_p(LOGITS, 0.0, seeded()), "top_p is 0.0; accepted"),
        (lambda: decode_top_p(LOGITS, 1.1, seeded()), "top_p is 1.1; accepted"),
        (lambda: decode_beam(LOGITS, 0), "beam_width is 0; accepted: 1 or more"),
        (lambda: decode_greedy(LOGITS, constraint=SUDOKU), "needs the inputs"),
        (
            lambda: decode_beam(LOGITS, 2, inputs=LOGITS[:, :9, 0].long(), constraint=SUDOKU),
            r"inputs of shape \[2, 9\].*integers \[2, 16\]",
        ),
        (
            lambda: decode_greedy(LOGITS, inputs=LOGITS[..., 0], constraint=SUDOKU),
            "dtype torch.float32; accepted with these logits: integers",
        ),
        (
            lambda: decode_greedy(LOGITS[..., :5], inputs=LOGITS[..., 0].long(), constraint=SUDOKU),
            "5 tokens; a 4x4 Sudoku needs 6",
        ),
    ],
)
def test_mistakes_are_named(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        call()


# Confidence


def test_confidence_is_certainty_times_the_wish_to_halt() -> None:
    certain, even = torch.tensor([1e4, 0.0, 0, 0]), torch.zeros(4)
    halves = torch.tensor([3.0, 3, -math.inf, -math.inf])
    logits = torch.stack([certain, certain, even, even, halves, halves, certain, even]).view(
        4, 2, 4
    )
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


# Sudoku


@pytest.fixture(scope="module")
def puzzles() -> tuple[Tensor, Tensor]:
    """Inputs and labels of 40 9x9 Sudokus with one solution each, int64 [40, 81] tokens."""
    made = generate_puzzles(
        40,
        seed=5,
        stream=Stream.NEW_TEST,
        size=9,
        min_clues=25,
        max_clues=28,
        min_rating=0,
        taken=set(),
    )
    inputs, labels = (torch.from_numpy(grid).long() + 1 for grid in (made.questions, made.answers))
    return inputs, labels


def greedy_by_hand(
    logits: Tensor, inputs: Tensor, constraint: Constraint
) -> tuple[list[int], bool]:
    """Decide one cell after the other, of one puzzle, in Python's floats."""
    state = constraint.start(inputs[None], logits.shape[-1])
    while True:
        allowed = state["allowed"][0].tolist()
        best = (-1.0, -1, -1)
        for cell, tokens in enumerate(allowed):
            powers = {
                token: math.exp(logits[cell, token] - logits[cell].max())
                for token, is_allowed in enumerate(tokens)
                if is_allowed
            }
            for token, power in powers.items():
                share = power / sum(powers.values())
                if share > best[0] + 1e-12:
                    best = (share, cell, token)
        if best[0] < 0:
            break
        state = constraint.place(state, torch.tensor([best[1]]), torch.tensor([best[2]]))
    choices = constraint.choices(*logits.shape).nonzero().view(-1).tolist()
    answer = state["tokens"][0].tolist()
    for cell, token in enumerate(answer):
        if token == UNDECIDED:
            answer[cell] = max(choices, key=lambda choice: float(logits[cell, choice]))  # noqa: B023
    return answer, UNDECIDED not in state["tokens"]


def test_greedy_and_the_beam_of_one_equal_a_slow_greedy(puzzles: tuple[Tensor, Tensor]) -> None:
    inputs, labels = (tokens[:6] for tokens in puzzles)
    logits = noisy(labels, 11, margin=0.7).double()
    decoded = decode_greedy(logits, inputs=inputs, constraint=SUDOKU)
    by_hand = [greedy_by_hand(*row, SUDOKU) for row in zip(logits, inputs, strict=True)]
    assert decoded.tokens.tolist() == [answer for answer, _ in by_hand]
    assert decoded.feasible.tolist() == [is_feasible for _, is_feasible in by_hand]
    assert set(decoded.feasible.tolist()) == {True, False}
    beam = decode_beam(logits, 1, inputs=inputs, constraint=SUDOKU)
    assert all(torch.equal(*values) for values in zip(beam, decoded, strict=True))


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


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
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


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
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


def test_the_dtype_of_the_inputs_does_not_matter() -> None:
    inputs = torch.where(torch.arange(16) % 3 == 0, SOLUTION, 1)[None]
    logits = noisy(SOLUTION[None], 6, margin=1.0)
    expected = decode_beam(logits, 4, inputs=inputs, constraint=SUDOKU)
    for dtype in (torch.uint8, torch.int32):
        found = decode_beam(logits, 4, inputs=inputs.to(dtype), constraint=SUDOKU)
        assert torch.equal(found.tokens, expected.tokens)


# Mazes


def random_mazes(count: int, size: int, seed: int) -> Tensor:
    """Mazes with a third of walls, S and G anywhere, int64 [count, size * size]."""
    rng = np.random.default_rng(seed)
    mazes = np.where(rng.random((count, size * size)) < 1 / 3, WALL, FREE)
    for maze in mazes:
        maze[rng.choice(size * size, 2, replace=False)] = START, GOAL
    return torch.from_numpy(mazes)


def neighbours(cell: int, size: int) -> list[int]:
    row, column = divmod(cell, size)
    steps = ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1))
    return [r * size + c for r, c in steps if 0 <= r < size and 0 <= c < size]


def paths_of(maze: list[int]) -> Iterator[list[int]]:
    """All paths from S to G of which no cell touches another than those next to it."""
    size = math.isqrt(len(maze))

    def extend(path: list[int]) -> Iterator[list[int]]:
        for cell in neighbours(path[-1], size):
            touches = sum(other in path for other in neighbours(cell, size))
            if maze[cell] != WALL and cell not in path and touches == 1:
                if maze[cell] == GOAL:
                    yield [*path, cell]
                else:
                    yield from extend([*path, cell])

    yield from extend([maze.index(START)])


def draw(maze: list[int], path: list[int]) -> list[int]:
    marked = set(path[1:-1])
    return [PATH if cell in marked else token for cell, token in enumerate(maze)]


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_every_maze_gets_a_path_where_there_is_one(decode: Callable[..., Decoded]) -> None:
    inputs = random_mazes(60, 7, seed=1)
    logits = torch.randn(60, 49, 6, generator=seeded())
    decoded = decode(logits, inputs=inputs, constraint=MAZE)
    mazes, answers = inputs.numpy(), decoded.tokens.numpy()
    reachable = solve(mazes)[1] >= 0
    assert decoded.feasible.tolist() == reachable.tolist()
    assert np.array_equal(check_paths(mazes, answers)[0], reachable)
    assert {True, False} == set(reachable.tolist())
    # Also without a path, the rest of the maze stays.
    kept = (answers == mazes) | ((mazes == FREE) & (answers == PATH))
    assert kept.all()


def test_greedy_equals_a_slow_greedy_in_mazes() -> None:
    inputs = random_mazes(8, 6, seed=2)
    logits = torch.randn(8, 36, 6, generator=seeded(), dtype=torch.float64)
    by_hand = [greedy_by_hand(*row, MAZE) for row in zip(logits, inputs, strict=True)]
    for decoded in (
        decode_greedy(logits, inputs=inputs, constraint=MAZE),
        decode_beam(logits, 1, inputs=inputs, constraint=MAZE),
    ):
        assert decoded.tokens.tolist() == [answer for answer, _ in by_hand]
        assert decoded.feasible.tolist() == [is_feasible for _, is_feasible in by_hand]


def test_a_beam_wide_enough_finds_the_most_likely_path() -> None:
    mazes = random_mazes(12, 5, seed=3)
    inputs = mazes[torch.from_numpy(solve(mazes.numpy())[1] >= 0)]
    logits = torch.randn(len(inputs), 25, 6, generator=seeded(), dtype=torch.float64)
    wide = decode_beam(logits, 500, inputs=inputs, constraint=MAZE)
    narrow = decode_beam(logits, 1, inputs=inputs, constraint=MAZE)
    assert (wide.log_probs >= narrow.log_probs - 1e-12).all()
    assert (wide.log_probs > narrow.log_probs + 0.1).any()
    log_probs = logits.log_softmax(-1)
    for row, maze in enumerate(inputs.tolist()):
        answers = torch.tensor([draw(maze, path) for path in paths_of(maze)])
        totals = log_probs[row, torch.arange(25), answers].sum(-1)
        assert torch.equal(wide.tokens[row], answers[totals.argmax()])


@pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set")
def test_published_mazes_are_solved_from_noisy_logits() -> None:
    folder = Path(os.environ["PUZZLE_DATA_DIR"]) / "maze-30x30-hard-1k"
    (path,) = folder.glob("test.csv*")
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [line.split(",") for line in text.decode().splitlines()[1:5]]
    inputs, labels = (
        torch.from_numpy(text_to_tokens([row[i] for row in rows])).long() for i in (1, 2)
    )
    logits = noisy(labels, 6, margin=4.0)
    decoded = decode_greedy(logits, inputs=inputs, constraint=MAZE)
    assert torch.equal(decoded.tokens, labels)
    assert not (decode_greedy(logits).tokens == labels).all(-1).any()
    noise = decode_beam(noisy(labels, 6, margin=0.0), 2, inputs=inputs, constraint=MAZE)
    assert check_paths(inputs.numpy(), noise.tokens.numpy())[0].all()
