"""The answers of chains after each number of steps, and the choice of the chain that answers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dataset import build_puzzle_dataset
from dataset.kinds.queens import QUEENS
from dataset.kinds.sudoku import SUDOKU
from evaluation import chains
from evaluation.chains import (
    ChainResult,
    ChainScores,
    answers_of,
    chosen,
    residual_of,
    think_longer,
)
from evaluation.config import ThinkingSettings
from evaluation.energy import HopfieldEnergy
from evaluation.measure import evaluate
from evaluation.views import views_for
from models.act import ACTLossHead
from models.heads.base import HaltingRule, Outputs
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import ConfigError
from runtime.ranks import Ranks

Make = Callable[..., ACTLossHead]

# Three chains on two rows of one cell, read after one number of steps.
FOUND = ChainResult(
    preds=np.array([[[[4], [5]]], [[[4], [6]]], [[[3], [6]]]]),
    at_halt=np.array([[[7], [7]], [[8], [8]], [[9], [9]]]),
    q_halt=np.array([[[0.1, 0.9]], [[0.2, 0.1]], [[0.8, 0.2]]]),
    residual=np.array([[[0.3, 0.3]], [[0.1, 0.2]], [[0.2, 0.1]]]),
    halt=np.array([[4, 0], [2, 0], [2, 9]]),
    energy=np.array([[[-0.5, -0.9]], [[-0.7, -0.8]], [[-0.6, -0.7]]]),
)


@pytest.mark.parametrize(
    ("select", "chains", "answers"),
    [
        ("q", [2, 0], [3, 5]),
        ("residual", [1, 2], [4, 6]),
        ("energy", [1, 0], [4, 5]),
        # Among equals the surest one answers.
        ("majority", [1, 2], [4, 6]),
        # Chain 2 is surer than chain 1, which halts as early; in row 1 none halts by then.
        ("first_halt", [2, 0], [9, 5]),
    ],
)
def test_each_choice(select: str, chains: list[int], answers: list[int]) -> None:
    assert chosen(select, FOUND, 0, 4).tolist() == chains  # type: ignore[arg-type]
    assert answers_of(select, FOUND, 0, 4)[:, 0].tolist() == answers  # type: ignore[arg-type]


def test_a_chain_without_numbers_does_not_answer() -> None:
    q, residual, energy = (x.copy() for x in (FOUND.q_halt, FOUND.residual, FOUND.energy))
    q[2, 0, 0] = residual[1, 0, 0] = energy[0, 0, 1] = np.nan
    broken = FOUND._replace(q_halt=q, residual=residual, energy=energy)
    assert chosen("q", broken, 0, 4).tolist() == [1, 0]
    assert chosen("residual", broken, 0, 4).tolist() == [2, 2]
    assert chosen("energy", broken, 0, 4).tolist() == [1, 1]


@pytest.fixture
def sudokus(sudoku_data: Path) -> PuzzleDataset:
    return PuzzleDataset([sudoku_data], "test")


@pytest.fixture
def think(sudokus: PuzzleDataset) -> Callable[..., list[ChainScores]]:
    def run(model: ACTLossHead, size: int = 4, **settings: object) -> list[ChainScores]:
        chosen = ThinkingSettings.model_validate(settings)
        batches, views = EvalBatches(sudokus, global_batch_size=size), views_for(chosen, SUDOKU, 4)
        return think_longer(model, model, batches, Ranks("cpu"), chosen, views)

    return run


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[ChainResult]:
    """Record the results of chains, once for each line of the table and each batch."""
    found: list[ChainResult] = []
    judge = chains.answers_of
    monkeypatch.setattr(
        chains, "answers_of", lambda s, f, *rest: found.append(f) or judge(s, f, *rest)
    )
    return found


class FirstThree(HaltingRule):
    """A rule that halts the first three puzzles of a batch at once."""

    def wants_to_halt(self, outputs: Outputs) -> Tensor:
        return torch.arange(len(outputs["logits"])) < 3


def answer_with(model: ACTLossHead, answer: Callable[[Tensor], Tensor]) -> None:
    """Let the head answer with a function of the puzzle it sees, int32 [B, S]."""

    def read(states: Tensor, examples: dict[str, Tensor]) -> dict[str, Tensor]:
        inputs = examples["inputs"]
        zeros = torch.zeros(len(inputs))
        logits = torch.nn.functional.one_hot(answer(inputs).long(), 6).float()
        return {"logits": logits, "q_halt_logits": zeros, "q_continue_logits": zeros}

    model.model.inner.read = read  # type: ignore[method-assign]


def test_a_single_chain_is_read_at_the_end_and_at_its_halt(
    make_model: Make, think: Callable[..., list[ChainScores]], sudokus: PuzzleDataset
) -> None:
    model, choices = make_model(sudokus), ["q", "majority", "first_halt"]
    lines = [(f.breadth, f.select) for f in think(model, chains=[1, 2], select=["q", *choices])]
    assert lines == [(1, "q"), (1, "first_halt"), *((2, choice) for choice in choices)]
    assert [f.select for f in think(model, select="first_halt", steps=2)] == ["first_halt"]


def test_votes_are_those_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    preds = rng.integers(0, 2, (7, 1, 50, 2))
    zeros = np.zeros((7, 1, 50), np.float32)
    found = ChainResult(preds, preds[:, 0], zeros, zeros, np.zeros((7, 50), np.int64))
    for row, chain in enumerate(chosen("majority", found, 0, 1)):
        answers = [tuple(answer) for answer in preds[:, 0, row]]
        assert answers.count(answers[chain]) == max(map(answers.count, answers))


def test_a_chain_halts_alike_when_fewer_steps_are_also_read(
    make_model: Make,
    think: Callable[..., list[ChainScores]],
    sudokus: PuzzleDataset,
    judged: list[ChainResult],
) -> None:
    for steps in ([1], [1, 3]):
        model = make_model(sudokus, halt_max_steps=max(steps))
        model.model.rule = FirstThree(compares=False)
        think(model, size=10, steps=steps, chains=2, select="first_halt")
    alone, among = judged[0], judged[1]
    assert alone.halt.tolist() == among.halt.tolist() == [[1, 1, 1, *[0] * 7]] * 2


def test_the_time_of_a_set_is_its_own(
    make_model: Make, sudoku_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sudokus = PuzzleDataset([sudoku_data], "test")
    sudokus.sets["more"] = sudokus.sets["all"]
    clock = iter(range(1000))  # Each call takes a second.
    monkeypatch.setattr(chains.time, "perf_counter", lambda: float(next(clock)))
    settings = ThinkingSettings.model_validate({"steps": [2, 3], "chains": [1, 2]})
    batches = EvalBatches(sudokus, global_batch_size=10)
    model = make_model(sudokus)
    views = views_for(settings, SUDOKU, 4)
    scores = think_longer(model, model, batches, Ranks("cpu"), settings, views)
    of_a_set = [0.1, 0.2, 0.2, 0.4]
    assert [one.seconds for one in scores] == pytest.approx([*of_a_set, *of_a_set])


def test_of_several_right_answers_the_different_ones_are_counted(
    make_model: Make, tmp_path: Path
) -> None:
    flags = "--kind queens --size 6 --subsample-size 1 --test-size 3"
    build_puzzle_dataset.make([*flags.split(), f"--output-dir={tmp_path / 'q'}"])
    queens = PuzzleDataset([tmp_path / "q"], "test")
    model, rows = make_model(queens), queens.sets["all"]

    # Each chain gives an answer to the view that it sees, not always the stored one.
    def read(answer: object, examples: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        asked = examples["inputs"].numpy().astype(np.uint8)
        found = [next(QUEENS.solutions(row.reshape(6, 6))).reshape(-1) for row in asked]
        logits = torch.nn.functional.one_hot(torch.tensor(np.array(found)).long(), 3).float()
        zeros = torch.zeros(len(asked))
        return {"logits": logits, "q_halt_logits": zeros, "q_continue_logits": zeros}

    model.model.inner.read = read  # type: ignore[method-assign]
    settings = ThinkingSettings.model_validate(
        {"steps": 1, "chains": [1, 8], "perturb": "symmetry"}
    )
    views = views_for(settings, QUEENS, 6)
    batches = EvalBatches(queens, global_batch_size=3)
    one, all_views = think_longer(model, model, batches, Ranks("cpu"), settings, views)
    assert one.single.value == one.distinct == 1.0
    assert all_views.solutions == rows.ratings.mean()
    assert 1.0 <= all_views.distinct <= all_views.solutions


def test_answers_are_turned_back_and_judged(
    make_model: Make, think: Callable[..., list[ChainScores]], sudokus: PuzzleDataset
) -> None:
    arrays = sudokus.sets["all"]
    labels = {bytes(q): a for q, a in zip(arrays.inputs, arrays.labels, strict=True)}
    model = make_model(sudokus)

    def known(inputs: Tensor) -> Tensor:
        # Solves a puzzle only as it is in the set, so only the first chain is right.
        found = [labels.get(bytes(row.astype(np.uint8)), row) for row in inputs.numpy()]
        return torch.from_numpy(np.stack(found).astype(np.int32))

    answer_with(model, known)
    one, all_three = think(model, chains=[1, 3], select="majority")
    assert (one.single.value, one.selected.value, one.calls) == (1, 1, 3)
    assert (all_three.single.value, all_three.oracle.value, all_three.calls) == (1, 1, 9)
    # The other two copy their view, and turned back it is the puzzle itself.
    assert all_three.selected.value == 0
    assert all_three.spurious.value == 1


def test_one_chain_is_the_plain_evaluation_with_these_steps(
    make_model: Make, think: Callable[..., list[ChainScores]], sudokus: PuzzleDataset
) -> None:
    model = make_model(sudokus, halt_max_steps=4)
    labels = sudokus.sets["all"].labels
    # The model copies clues, so rows with few empty cells are right.
    seen: list[Tensor] = []
    read = model.model.inner.read
    model.model.inner.read = lambda *a: seen.append(o := read(*a)) or o  # type: ignore
    scores = think(model, size=10, steps=[2, 4])
    model.model.inner.read = read  # type: ignore[method-assign]
    assert [one.depth for one in scores] == [2, 4]
    for one, outputs in zip(scores, seen, strict=True):
        shorter = make_model(sudokus, halt_max_steps=one.depth)
        batches = EvalBatches(sudokus, global_batch_size=10)
        plain = evaluate(shorter, shorter, batches, Ranks("cpu")).records["all"]
        right = (outputs["logits"].argmax(-1).numpy() == labels).mean(-1)
        assert right == pytest.approx(plain["accuracy"])
        assert one.single.value == plain["exact_accuracy"].mean()
        assert one.num_puzzles == 10


@pytest.mark.parametrize("perturb", ["symmetry", "noise"])
def test_the_same_seed_gives_the_same_scores_and_few_chains_are_the_first_of_many(
    make_model: Make,
    think: Callable[..., list[ChainScores]],
    sudokus: PuzzleDataset,
    perturb: str,
    judged: list[ChainResult],
) -> None:
    model = make_model(sudokus)
    for settings in ({"chains": 3}, {"chains": 3}, {"chains": 2}, {"chains": 3, "seed": 1}):
        think(model, size=10, steps=[1, 3], perturb=perturb, **settings)
    same, again, few, other = judged[::2]
    assert all(np.array_equal(a, b) for a, b in zip(same, again, strict=True))
    assert all(np.array_equal(a[:2], b) for a, b in zip(same, few, strict=True))
    assert np.array_equal(same.q_halt[0], other.q_halt[0])
    assert not np.array_equal(same.q_halt[1], other.q_halt[1])
    # Neither the batch nor the rank matters.
    judged.clear()
    think(model, size=4, steps=[1, 3], perturb=perturb, chains=3)
    small = np.concatenate([one.q_halt for one in judged[::2]], axis=-1)[..., :10]
    np.testing.assert_allclose(small, same.q_halt, rtol=1e-5, atol=1e-5)


def test_a_residual_is_a_share_of_the_later_state() -> None:
    before, after = torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[3.0, 4.0]]])
    assert residual_of(before, after).tolist() == pytest.approx([0.8])


def test_the_energy_is_learned_from_right_and_wrong_chains_of_known_puzzles(
    make_model: Make, sudoku_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, ranks = PuzzleDataset([sudoku_data], "train"), Ranks("cpu")
    settings = ThinkingSettings(chains=[1, 3], select=["q", "energy"], steps=[2])
    model, views = make_model(known, halt_max_steps=2), views_for(settings, SUDOKU, 4)
    arrays = known.sets["all"]
    labels = {bytes(q): a for q, a in zip(arrays.inputs, arrays.labels, strict=True)}

    def in_the_puzzle_itself(inputs: Tensor) -> Tensor:
        found = [labels.get(bytes(row.astype(np.uint8)), row) for row in inputs.numpy()]
        return torch.from_numpy(np.stack(found).astype(np.int32))

    answer_with(model, in_the_puzzle_itself)
    learned: list[tuple[Tensor, Tensor]] = []
    learn = chains.learned_energy
    monkeypatch.setattr(chains, "learned_energy", lambda *a: learned.append(a) or learn(*a))

    def fit(size: int) -> HopfieldEnergy:
        spread = EvalBatches(known, global_batch_size=size, max_examples=5, spread=True)
        return chains.fit_energy(model, model, spread, ranks, settings, views)

    energy, again = fit(4), fit(5)  # The last batch of four is padded.
    (states, right), (same_states, same_right) = learned
    assert right.tolist() == same_right.tolist() == 5 * [True, False, False]
    assert states.shape == (15, model.model.inner.num_states, model.model.inner.hidden_size)
    torch.testing.assert_close(states, same_states)
    torch.testing.assert_close(energy.patterns, again.patterns)

    batches = EvalBatches(PuzzleDataset([sudoku_data], "test"), global_batch_size=10)
    scores = think_longer(model, model, batches, ranks, settings, views, energy)
    assert [(one.breadth, one.select) for one in scores] == [(1, "q"), (3, "q"), (3, "energy")]

    answer_with(model, lambda seen: seen)
    with pytest.raises(ConfigError, match=r"select=energy: 0 of 15 answers are right; it needs"):
        fit(4)
