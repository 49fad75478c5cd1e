"""Slots that are refilled give every row the same bits as the plain loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evaluation.config import Halting, ThinkingSettings
from evaluation.measure import evaluate
from evaluation.think import (
    all_steps,
    answered_batches,
    chain_steps,
    evaluating,
    row_keys,
    steps,
    with_draws,
)
from models.act import ACTLossHead
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.ranks import Ranks
from runtime.streams import Stream

Make = Callable[..., ACTLossHead]
STEPS = 6


@pytest.fixture
def tasks(tasks_data: Path) -> PuzzleDataset:
    return PuzzleDataset([tasks_data], "test")


@pytest.fixture
def model(make_model: Make, tasks: PuzzleDataset) -> ACTLossHead:
    """A model that halts rows at different steps."""
    return make_model(tasks, halt_max_steps=STEPS).eval()


def at_halt(model: ACTLossHead, dataset: PuzzleDataset, size: int) -> tuple[Tensor, Tensor]:
    """Return the same as `answers`, from the plain loop: each row at the first step after which it
    wants to halt.
    """
    parts = []
    for _, batch, _, start in EvalBatches(dataset, global_batch_size=size):
        examples = Ranks("cpu").on_device(with_draws(batch.arrays(), model, 0, start))
        read = []
        with torch.no_grad():
            for _, carry in steps(model, model, all_steps(model, examples)):
                read.append((model.model.halts(carry), model.model.answer_of(carry)))
        halted, states = (torch.stack(each) for each in zip(*read, strict=True))
        first = halted.int().argmax(0)
        parts.append((states[first, torch.arange(size)], first.int() + 1))
    states, when = (torch.cat(values)[:24] for values in zip(*parts, strict=True))
    return states, when


def answers(
    model: ACTLossHead, dataset: PuzzleDataset, halting: Halting, size: int, world_size: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the answers' states [N, T, D] and steps [N] of all ranks, in test order."""
    parts = []
    for rank in range(world_size):
        batches = EvalBatches(
            dataset, global_batch_size=size * world_size, rank=rank, world_size=world_size
        )
        ranks, begun = Ranks("cpu"), []
        ranks.rank = rank
        with torch.no_grad():
            found = list(answered_batches(model, model, batches, ranks, halting, begun.append))
        assert begun == list(range(len(batches)))
        carries = [batch.carry for batch in found]
        assert all(carry.halted.all() for carry in carries)
        parts.append([(model.model.answer_of(carry), carry.steps) for carry in carries])
    ordered = [pair for batch in zip(*parts, strict=True) for pair in batch]
    states, steps = (torch.cat(values)[:24] for values in zip(*ordered, strict=True))
    return states, steps


DRAWING = {"techniques": {"random_starts": {"std": 0.5}, "damped_noise": {"noise": 0.05}}}


@pytest.mark.parametrize("settings", [{}, DRAWING])
@pytest.mark.parametrize(("size", "world_size"), [(5, 1), (5, 2), (24, 1), (32, 1), (3, 4), (1, 1)])
def test_refilled_slots_give_the_bits_of_the_plain_loop(
    make_model: Make, tasks: PuzzleDataset, size: int, world_size: int, settings: Any
) -> None:
    model = make_model(tasks, halt_max_steps=STEPS, **settings).eval()
    expected, when = at_halt(model, tasks, size)
    found, steps = answers(model, tasks, "q", size, world_size)
    assert len(set(when.tolist())) > 2
    assert torch.equal(steps, when)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("size", "world_size"), [(24, 1), (3, 4), (7, 2)])
def test_random_starts_and_noise_are_those_of_the_row(
    make_model: Make, tasks: PuzzleDataset, size: int, world_size: int
) -> None:
    model = make_model(tasks, forward_dtype="float64", **DRAWING).eval()
    expected, _ = answers(model, tasks, "steps", 5)
    found, _ = answers(model, tasks, "steps", size, world_size)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    batches = EvalBatches(tasks, global_batch_size=24)
    with torch.no_grad():
        other_seed = answered_batches(
            model, model, batches, Ranks("cpu"), "steps", lambda _: None, 1
        )
        other = model.model.answer_of(next(other_seed).carry)
    assert ((other - expected).abs().amax((1, 2)) > 1e-3).all()


@pytest.mark.parametrize("training", [True, False])
def test_what_went_on_before_goes_on_after(model: ACTLossHead, training: bool) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with evaluating(model.train(training), Ranks("cpu"), 0):
        assert torch.rand(1) < 1
        assert not model.training
        assert not torch.is_grad_enabled()
    assert model.training is training
    assert torch.rand(1) == expected


def test_keys_follow_from_the_row_and_the_chain() -> None:
    keys = row_keys(Stream.ROWS, 3, 0, 40)
    for first, count in ((5, 6), (8, 1), (39, 1)):
        assert row_keys(Stream.ROWS, 3, first, count).tolist() == keys[first:][:count].tolist()
    some = np.array([38, 5, 6, 5])
    assert row_keys(Stream.ROWS, 3, some, 4).tolist() == keys[some].tolist()
    others = [row_keys(Stream.ROWS, 3, 0, 40, 1), row_keys(Stream.ROWS, 4, 0, 40)]
    others += [row_keys(Stream.CHAINS, 3, 0, 40), keys]
    assert len({key for each in others for key in each.tolist()}) == 160
    assert all(0 <= key < 2**32 for key in keys.tolist())


def test_fewer_steps_are_run_and_all_at_one_shape(model: ACTLossHead, tasks: PuzzleDataset) -> None:
    shapes: list[tuple[int, ...]] = []
    inner = model.model.inner
    inner.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0]["z_H"].shape)))
    _, steps = answers(model, tasks, "q", 4)
    # 4 slots work without a gap until no row is left; then the last ones take STEPS at most.
    assert int(steps.sum()) / 4 <= len(shapes) < int(steps.sum()) / 4 + STEPS
    assert set(shapes) == {(4, *shapes[0][1:])}


def test_without_a_halting_head_every_row_takes_all_steps(
    make_model: Make, tasks: PuzzleDataset
) -> None:
    model = make_model(tasks, heads={"q": None}, no_ACT_continue=True).eval()
    found, steps = answers(model, tasks, "q", 5)
    assert set(steps.tolist()) == {3}
    assert torch.equal(found, answers(model, tasks, "steps", 5)[0])


def test_the_halting_step_is_measured(model: ACTLossHead, tasks: PuzzleDataset) -> None:
    def measure(halting: Halting):
        batches = EvalBatches(tasks, global_batch_size=5)
        return evaluate(model, model, batches, Ranks("cpu"), halting=halting)

    plain, early = measure("steps"), measure("q")
    rows = tasks.sets["all"]
    for found in (plain, early):
        assert np.array_equal(found.records["all"]["clues"], (rows.inputs == rows.labels).sum(1))
    assert plain.sets["all"].metrics["steps"].value == STEPS
    _, when = at_halt(model, tasks, 5)
    assert early.records["all"]["steps"].tolist() == when.tolist()
    assert early.sets["all"].metrics["steps"].value == when.float().mean()


@torch.no_grad()
def test_noise_has_its_width_and_is_fresh_after_each_step(
    model: ACTLossHead, tasks: PuzzleDataset
) -> None:
    _, batch, *_ = next(iter(EvalBatches(tasks, global_batch_size=5)))
    asked = {"chains": [2], "perturb": "noise", "noise": 0.5}
    settings, before, after = ThinkingSettings.model_validate(asked), [], []

    def forward(carry: Any, *rest: Any, **how: Any) -> Any:
        before.append(carry.inner["z_H"])
        output = model(carry, *rest, **how)
        after.append(output.carry.inner["z_H"])
        return output

    on_device = Ranks("cpu").on_device
    list(chain_steps(forward, model, batch.arrays(), settings, 1, 0, on_device))
    first, second = (later - earlier for earlier, later in zip(after[:2], before[1:3], strict=True))
    assert first.std().item() == pytest.approx(0.5, rel=0.1)
    assert second.std().item() == pytest.approx(0.5, rel=0.1)
    assert not torch.allclose(first, second)
