from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU, repeated_digits
from dataset.sudoku.rules import BOX_SHAPES
from dataset.sudoku.symmetries import SudokuSymmetries
from evaluation import chains
from evaluation.config import ThinkingSettings
from evaluation.puzzles import puzzles_of
from evaluation.solve import Reasoning, StepAnswers, reason, step_by_step
from evaluation.views import draw_views, views_for
from models.act import ACTLossHead
from models.config import DataFacts
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.ranks import Ranks

Make = Callable[..., ACTLossHead]
CPU = torch.device("cpu")
SOLUTION = np.array([[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]], np.int8)
QUESTION = np.where(np.eye(4, dtype=bool), SOLUTION, 0).astype(np.int8)
PUZZLE = Puzzle(SUDOKU, QUESTION)
FACTS = DataFacts(vocab_size=6, seq_len=16, num_puzzle_identifiers=1)


def repeated_by_hand(grid: np.ndarray) -> np.ndarray:
    box_rows, box_columns = BOX_SHAPES[len(grid)]
    marked = np.zeros_like(grid, bool)
    for (r, c), (i, j) in product(np.ndindex(grid.shape), repeat=2):
        in_box = r // box_rows == i // box_rows and c // box_columns == j // box_columns
        if (i == r or j == c or in_box) and (i, j) != (r, c) and grid[r, c]:
            marked[r, c] |= grid[i, j] == grid[r, c]
    return marked


@pytest.mark.parametrize("size", [4, 6, 9])
def test_repeated_digits_equal_those_found_by_hand(size: int) -> None:
    rng = np.random.default_rng(size)
    for density in (0.1, 0.3, 1.0):
        grid = rng.integers(1, size + 1, (size, size)) * (rng.random((size, size)) < density)
        assert np.array_equal(repeated_digits(grid.astype(np.int8)), repeated_by_hand(grid))
    assert not repeated_digits(SOLUTION).any()


def sudokus_of(grids: Sequence[np.ndarray]) -> list[Puzzle]:
    return [Puzzle(SUDOKU, grid) for grid in grids]


def make_reasoning(*answers: np.ndarray) -> Reasoning:
    steps = len(answers)
    q = np.linspace(0.1, 0.9, steps, dtype=np.float32)
    return Reasoning(PUZZLE, np.stack(answers), q, 1 - q, q > 0.5)


def test_reasoning_counts_what_changed_and_what_is_wrong() -> None:
    first = SOLUTION.copy()
    first[0, 1] = 4  # the row, the column and the box have a 4 already: four cells contradict
    second = SOLUTION.copy()
    second[0, 0] = 0  # a clue taken away
    reasoning = make_reasoning(first, second, SOLUTION)
    assert reasoning.cells_changed().tolist() == [12, 2, 1]
    assert [int(reasoning.cells_wrong(step).sum()) for step in range(3)] == [3, 1, 0]
    solved = [make_reasoning(answer).judge().solved for answer in reasoning.answers]
    assert solved == [False, False, True]
    assert np.array_equal(reasoning.answer, SOLUTION)


def examples_of(puzzle: np.ndarray) -> dict[str, torch.Tensor]:
    inputs = torch.from_numpy(SUDOKU.to_tokens(puzzle).astype(np.int32))[None]
    return {"inputs": inputs, "puzzle_identifiers": torch.zeros(1, dtype=torch.int32)}


def test_reason_gives_the_answers_of_each_step(make_model: Make) -> None:
    model = make_model(FACTS, halt_max_steps=3)
    puzzles = [QUESTION, SOLUTION, np.zeros((4, 4), np.int8)]
    found = list(reason(model, sudokus_of(puzzles), CPU))
    for puzzle, reasoning in zip(puzzles, found, strict=True):
        assert np.array_equal(reasoning.question, puzzle)
        carry = model.model.initial_carry(examples_of(puzzle))
        for step in range(3):
            with torch.no_grad():
                carry, outputs = model.model(carry, examples_of(puzzle))
            digits = (outputs["logits"].argmax(-1) - 1).clamp(min=0).reshape(4, 4)
            assert np.array_equal(reasoning.answers[step], digits.numpy())
            halt, go_on = outputs["q_halt_logits"][0], outputs["q_continue_logits"][0]
            assert reasoning.q_halt[step] == pytest.approx(float(halt.sigmoid()), abs=1e-5)
            assert reasoning.q_continue[step] == pytest.approx(float(go_on.sigmoid()), abs=1e-5)
            assert reasoning.halts[step] == bool(halt > go_on)


def test_who_watches_sees_each_step_of_each_chain(make_model: Make) -> None:
    model, watched = make_model(FACTS, halt_max_steps=3), []
    settings = ThinkingSettings.model_validate({"chains": 2, "select": "majority"})
    (found,) = reason(model, [PUZZLE], CPU, settings=settings, watch=watched.append)
    assert [(one.chain, one.step) for one in watched] == [
        (chain, step) for chain in range(2) for step in (1, 2, 3)
    ]
    own = [one for one in watched if one.chain == found.chain]
    ends = [one.tokens[0].tolist() for one in watched if one.step == 3]
    assert found.num_agreeing == ends.count(own[-1].tokens[0].tolist())
    assert found.certainty is not None
    for step, one in enumerate(own):
        assert np.array_equal(SUDOKU.to_grid(one.tokens[0]), found.answers[step])
        assert one.certainty[0].reshape(4, 4) == pytest.approx(found.certainty[step], abs=1e-6)
        assert one.q_halt[0] == pytest.approx(found.q_halt[step], abs=1e-6)
    (alone,) = reason(model, [PUZZLE], CPU, settings=settings)
    assert np.array_equal(alone.answers, found.answers)


def test_a_step_is_computed_when_it_is_asked_for(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = make_model(FACTS, halt_max_steps=3), list[int]()
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *a, **k: (calls.append(1), forward(*a, **k))[1])
    steps = step_by_step(model, PUZZLE, CPU, ThinkingSettings())
    assert calls == []
    first = next(steps)
    assert len(calls) == 1
    (found,) = reason(model, [PUZZLE], CPU)
    for number, one in enumerate([first, *steps]):
        assert (one.chain, one.step) == (0, number + 1)
        assert np.array_equal(SUDOKU.to_grid(one.tokens[0]), found.answers[number])


def test_certainty_is_that_of_the_cells_in_any_view(make_model: Make) -> None:
    model = make_model(FACTS, halt_max_steps=2)
    settings = ThinkingSettings.model_validate({"chains": 4, "select": "majority"})
    seen: dict[int, np.ndarray] = {}
    views = SudokuSymmetries(4)
    drawn = draw_views(views, settings.seed, np.arange(1), 4)
    watched: list[StepAnswers] = []
    list(reason(model, [PUZZLE], CPU, settings=settings, watch=watched.append))
    for one in watched:
        if one.step == 2:
            seen[one.chain] = one.certainty[0]
    for chain, certainty in seen.items():
        board = SUDOKU.to_tokens(QUESTION)[None]
        turned = SUDOKU.to_grid(views.apply(drawn[chain], board)[0][0])
        (as_it_is,) = reason(model, [Puzzle(SUDOKU, turned)], CPU)
        assert as_it_is.certainty is not None
        own = np.empty(16, np.float32)
        own[views.moves(drawn[chain])[0][0]] = as_it_is.certainty[-1].reshape(-1)
        assert certainty == pytest.approx(own, abs=1e-5)


def test_without_q_nothing_is_said_of_halting(make_model: Make) -> None:
    model = make_model(FACTS, heads={"q": None})
    (reasoning,) = reason(model, [PUZZLE], CPU)
    assert np.isnan(reasoning.q_halt).all()
    assert not reasoning.halts.any()


def test_halts_are_those_of_the_rule(make_model: Make) -> None:
    model = make_model(FACTS, no_ACT_continue=True, halt_max_steps=3)
    with torch.no_grad():
        model.state_dict()["model.inner.q_head.weight"].zero_()
        model.state_dict()["model.inner.q_head.bias"].copy_(torch.tensor([1.0, 5.0]))
    (reasoning,) = reason(model, [PUZZLE], CPU)
    assert reasoning.halts.tolist() == [True] * 3


def test_many_puzzles_keep_their_order(make_model: Make) -> None:
    model = make_model(FACTS)
    rng = np.random.default_rng(0)
    puzzles = [rng.permutation(4)[SOLUTION - 1].astype(np.int8) + 1 for _ in range(70)]
    found = list(reason(model, sudokus_of(puzzles), CPU))
    assert np.array_equal([reasoning.question for reasoning in found], puzzles)
    (alone,) = reason(model, sudokus_of([puzzles[66]]), CPU)
    assert np.array_equal(alone.answers, found[66].answers)


@pytest.mark.parametrize("select", ["q", "residual", "majority", "first_halt"])
@pytest.mark.parametrize(
    ("perturb", "techniques"),
    [
        ("symmetry", {}),
        ("noise", {}),
        ("noise", {"damped_noise": {}}),
        ("init", {"random_starts": {}}),
    ],
)
def test_the_chain_that_answers_is_the_one_of_an_evaluation(
    make_model: Make,
    sudoku_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    select: str,
    perturb: str,
    techniques: dict[str, Any],
) -> None:
    sudokus = PuzzleDataset([sudoku_data], "test")
    model = make_model(sudokus, halt_max_steps=5, techniques=techniques)
    settings = ThinkingSettings.model_validate(
        {"chains": 3, "select": select, "perturb": perturb, "noise": 0.8, "seed": 4}
    )
    answers: list[np.ndarray] = []
    answers_of = chains.answers_of
    monkeypatch.setattr(
        chains, "answers_of", lambda *given: answers.append(answers_of(*given)) or answers[-1]
    )
    batches, views = EvalBatches(sudokus, global_batch_size=10), views_for(settings, SUDOKU, 4)
    chains.think_longer(model, model, batches, Ranks("cpu"), settings, views)
    questions = [SUDOKU.to_grid(row) for row in sudokus.sets["all"].inputs]
    found = list(reason(model, sudokus_of(questions), CPU, settings=settings))
    for reasoning, expected in zip(found, answers[0], strict=True):
        assert np.array_equal(reasoning.answer, SUDOKU.to_grid(expected))
        if select == "first_halt":
            assert not reasoning.halts[:-1].any()
    assert {reasoning.num_chains for reasoning in found} == {3}
    # Without noise the first chain changes least.
    assert any(reasoning.chain for reasoning in found) or (select, perturb) == ("residual", "noise")


@pytest.mark.parametrize("perturb", ["symmetry", "noise", "init"])
def test_a_puzzle_of_a_data_set_draws_the_numbers_of_its_row(
    make_model: Make, sudoku_data: Path, perturb: str
) -> None:
    sudokus = PuzzleDataset([sudoku_data], "test")
    model = make_model(sudokus, halt_max_steps=3, techniques={"random_starts": {}})
    settings = ThinkingSettings.model_validate({"chains": 3, "perturb": perturb, "noise": 0.8})
    puzzles = list(puzzles_of(sudokus, SUDOKU))

    def watched(some: list[Puzzle]) -> np.ndarray:
        found = list[StepAnswers]()
        list(reason(model, some, CPU, settings, found.append))
        return np.stack([one.certainty for one in found], 1)

    expected = watched(puzzles)
    assert watched([puzzles[9], puzzles[3]]) == pytest.approx(expected[[9, 3]], abs=1e-4)
    steps = [one.certainty[0] for one in step_by_step(model, puzzles[9], CPU, settings)]
    assert np.stack(steps) == pytest.approx(expected[9, :3], abs=1e-4)
