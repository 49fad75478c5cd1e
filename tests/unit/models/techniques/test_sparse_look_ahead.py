"""The rows that look ahead for the target of q_continue, and their weights."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.techniques.sparse_look_ahead import SparseLookAhead
from runtime.streams import Address
from tests.unit.models import tiny


def ahead(step: int, rows: int = 64, every: int = 4, seed: int = 0) -> Any:
    at = Address(seed, step, rows, range(rows), num_parts=1, seq_len=0)
    return SparseLookAhead(every=every).draw(at)["ahead"][0]


def test_the_rows_that_look_ahead_are_pinned() -> None:
    """The draws stay the same, so that a resumed run continues."""
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


def test_parts_count_their_own_rows() -> None:
    whole = ahead(2, 24)
    for rank, own in enumerate((range(12), range(12, 24))):
        at = Address(0, 2, 24, own, num_parts=3, seq_len=0)
        parts = SparseLookAhead().draw(at)["ahead"]
        places = parts + np.arange(rank * 12, (rank + 1) * 12, 4)[:, None]
        assert places.ravel().tolist() == whole[(own[0] <= whole) & (whole <= own[-1])].tolist()


class Measured(NamedTuple):
    """Return a step's loss, metrics, target and all gradients in one tensor."""

    loss: Tensor
    metrics: dict[str, Tensor]
    target: Tensor
    gradient: Tensor


def third_step(ahead: list[int] | None = None, **overrides: Any) -> Measured:
    """Run three ACT steps; for some slots the next one is then the last."""
    model = tiny.make_model(signal=True, forward_dtype="float64", **overrides).train()
    drawn = {"min_steps": torch.tensor([0, 9, 0], dtype=torch.int32)}
    if ahead is not None:
        drawn["ahead"] = torch.tensor(ahead, dtype=torch.int64)
    carry = model.initial_carry(tiny.make_examples())
    for step in (1, 2):
        carry = model(carry, tiny.make_examples(step), drawn).carry
    output = model(carry, tiny.make_examples(3), drawn)
    output.loss.backward()
    leaves: list[Any] = [*model.parameters(), tiny.inner_of(model).puzzle_emb.local_weights]
    gradient = torch.cat([leaf.grad.flatten() for leaf in leaves]).double()
    return Measured(
        output.loss, output.metrics, output.outputs["target_q_continue"].detach(), gradient
    )


def test_on_average_the_gradient_is_that_of_all_rows() -> None:
    full, draws = third_step(), [[0], [1], [2]]
    drawn = [third_step(rows, techniques={"sparse_look_ahead": {"every": 3}}) for rows in draws]
    for rows, one in zip(draws, drawn, strict=True):
        torch.testing.assert_close(one.target[rows].double(), full.target[rows])
        assert one.target.count_nonzero() == len(rows)
        assert not torch.allclose(one.gradient, full.gradient, rtol=1e-2, atol=1e-4)
        for name, value in one.metrics.items():
            if name != "q_continue_loss":
                torch.testing.assert_close(value, full.metrics[name], msg=name)
    mean_loss = torch.stack([one.loss for one in drawn]).mean()
    torch.testing.assert_close(mean_loss, full.loss, rtol=1e-12, atol=1e-12)
    # Gradients of parameters pass through float32.
    bound = 2.0**-22 * full.gradient.abs().max().item()
    mean_gradient = torch.stack([one.gradient for one in drawn]).mean(0)
    torch.testing.assert_close(mean_gradient, full.gradient, rtol=1e-6, atol=bound)
    losses = torch.stack([one.metrics["q_continue_loss"] for one in drawn])
    torch.testing.assert_close(losses.mean(), full.metrics["q_continue_loss"])
