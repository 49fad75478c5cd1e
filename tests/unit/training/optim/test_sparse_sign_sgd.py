"""Sign-SGD of the puzzle embedding against a dictionary from identifier to row."""

import numpy as np
import pytest
import torch
from torch import Tensor

from models.sparse_embedding import CastedSparseEmbedding
from runtime.ranks import Ranks
from training.optim.sparse_sign_sgd import SparseSignSGD, sum_by_id

LR, DECAY = 0.05, 0.3


def build(
    ids: list[int], grads: Tensor, num: int = 10
) -> tuple[CastedSparseEmbedding, SparseSignSGD]:
    """A table whose last batch had these identifiers and gradients."""
    torch.manual_seed(0)
    embedding = CastedSparseEmbedding(num, grads.shape[1], init_std=1.0, dtype=torch.float32)
    embedding.prepare(len(ids))
    embedding.train()(torch.tensor(ids, dtype=torch.int32))
    embedding.local_weights.grad = grads.clone()
    return embedding, SparseSignSGD(embedding, Ranks("cpu"), lr=LR, weight_decay=DECAY)


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()


@pytest.mark.parametrize("seed", range(5))
def test_touched_rows_equal_the_dictionary_and_no_other_byte_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 10, 7).tolist()
    # Small whole numbers: sums are exact and often 0.
    grads = torch.from_numpy(rng.integers(-2, 3, (7, 4))).float()
    embedding, optimizer = build(ids, grads)
    before = embedding.weights.clone()
    optimizer.step()

    sums: dict[int, list[float]] = {}
    for row, identifier in enumerate(ids):
        own = sums.setdefault(identifier, [0.0] * 4)
        for column in range(4):
            own[column] += grads[row, column].item()
    for identifier in range(10):
        old, new = before[identifier], embedding.weights[identifier]
        if identifier not in sums:
            assert bytes_of(new) == bytes_of(old)
            continue
        expected = [
            w * (1 - LR * DECAY) - LR * sign(g)
            for w, g in zip(old.tolist(), sums[identifier], strict=True)
        ]
        assert new.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_gradients_that_cancel_leave_the_decay() -> None:
    grads = torch.tensor([[1.5, 2.0], [7.0, 7.0], [-1.5, -1.0]])
    embedding, optimizer = build([3, 5, 3], grads)
    before = embedding.weights.clone()
    optimizer.step()
    shrunk = before * (1 - LR * DECAY)
    torch.testing.assert_close(embedding.weights[3], shrunk[3] - torch.tensor([0.0, LR]))
    torch.testing.assert_close(embedding.weights[5], shrunk[5] - LR)


def test_decay_touches_only_the_rows_of_the_batch() -> None:
    embedding, optimizer = build([2, 2], torch.zeros(2, 3))
    before = embedding.weights.clone()
    optimizer.step()
    torch.testing.assert_close(embedding.weights[2], before[2] * (1 - LR * DECAY))
    others = [row for row in range(10) if row != 2]
    assert bytes_of(embedding.weights[others]) == bytes_of(before[others])


def test_rates_can_be_set_between_steps() -> None:
    embedding, optimizer = build([1], torch.ones(1, 2))
    before = embedding.weights.clone()
    optimizer.lr, optimizer.weight_decay = 0.5, 0.0
    optimizer.step()
    torch.testing.assert_close(embedding.weights[1], before[1] - 0.5)


@pytest.mark.parametrize("grad", [1.0, float("nan"), float("inf")])
def test_a_held_step_changes_no_byte(grad: float) -> None:
    embedding, optimizer = build([1, 4, 1], torch.full((3, 2), grad))
    embedding.weights[4, 0] = -0.0
    before = bytes_of(embedding.weights)
    optimizer.step(torch.tensor(True))
    assert bytes_of(embedding.weights) == before


def test_hold_false_is_no_hold() -> None:
    results = []
    for skip in (None, torch.tensor(False)):
        embedding, optimizer = build([1, 4, 1], torch.randn(3, 2))
        embedding.local_weights.grad = torch.tensor([[1.0, -1], [2, 0], [-3, 0.5]])
        optimizer.step(skip)
        results.append(bytes_of(embedding.weights))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("wrong", "is_finite"), [(0.0, True), (float("nan"), False), (float("-inf"), False)]
)
def test_finite_is_asked_before_the_sign(wrong: float, is_finite: bool) -> None:
    grads = torch.ones(3, 2)
    grads[1, 1] = wrong
    _, optimizer = build([1, 4, 1], grads)
    assert optimizer.finite().item() is is_finite


def test_zero_grad_forgets_the_batch() -> None:
    embedding, optimizer = build([1], torch.ones(1, 2))
    optimizer.zero_grad()
    assert embedding.local_weights.grad is None
    with pytest.raises(AssertionError, match="without backward"):
        optimizer.step()


# Summing


@pytest.mark.parametrize("seed", range(5))
def test_sum_by_id_adds_in_row_order_and_equal_ids_get_equal_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 9, 64)
    scale = 10.0 ** rng.integers(-3, 4, (64, 1))
    grads = (scale * rng.standard_normal((64, 5))).astype(np.float32)
    sorted_ids, sums = sum_by_id(torch.from_numpy(ids), torch.from_numpy(grads))
    assert sorted_ids.tolist() == sorted(ids.tolist())
    for identifier in np.unique(ids):
        total = np.zeros(5, np.float32)
        for row in np.flatnonzero(ids == identifier):
            total = total + grads[row]
        own = sums[sorted_ids == int(identifier)].numpy()
        assert {row.tobytes() for row in own} == {total.tobytes()}


def test_sum_by_id_does_not_depend_on_the_rows_of_other_ids() -> None:
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(8, 3, generator=generator)
    others = torch.randn(8, 3, generator=generator)
    alone = sum_by_id(torch.full((8,), 5), grads)[1][0]
    # The same rows in the same order, with others between them.
    mixed_ids = torch.tensor([9, 5] * 8)
    mixed = torch.stack((others, grads), dim=1).view(16, 3)
    ids, sums = sum_by_id(mixed_ids, mixed)
    assert bytes_of(sums[ids == 5][0]) == bytes_of(alone)


@pytest.mark.parametrize("ids", [[3], [3, 3, 3], [2, 1, 0]])
def test_sum_by_id_of_one_id_and_of_all_different(ids: list[int]) -> None:
    grads = torch.arange(float(len(ids)))[:, None] + 1
    sorted_ids, sums = sum_by_id(torch.tensor(ids), grads)
    expected = [sum(g + 1 for g, i in enumerate(ids) if i == own) for own in sorted(ids)]
    assert sorted_ids.tolist() == sorted(ids)
    assert sums[:, 0].tolist() == expected


def test_shards_kept_equal_one_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = [3, 1, 3, 2, 1, 3, 3, 5]
    grads = torch.randn(8, 4, generator=generator)
    grads[6] = -((grads[0] + grads[2]) + grads[5])  # Exactly 0 in row order alone.
    whole, at_once = build(ids, grads)
    at_once.step()

    parted, in_shards = build(ids[:2], grads[:2])
    for start in range(2, 8, 2):
        in_shards.keep_gradient()
        assert parted.local_weights.grad is None
        parted(torch.tensor(ids[start : start + 2]))
        parted.local_weights.grad = grads[start : start + 2].clone()
    assert in_shards.finite()
    in_shards.step()
    assert bytes_of(parted.weights) == bytes_of(whole.weights)

    # And nothing of it is left for the next step.
    in_shards.zero_grad()
    at_once.zero_grad()
    for embedding in (parted, whole):
        embedding.local_ids.fill_(7)
        embedding.local_weights.grad = torch.ones(len(embedding.local_ids), 4)
    in_shards.step()
    at_once.step()
    assert bytes_of(parted.weights) == bytes_of(whole.weights)


def test_what_is_not_finite_is_seen_in_every_shard() -> None:
    embedding, optimizer = build([1, 2], torch.tensor([[1.0], [torch.inf]]))
    optimizer.keep_gradient()
    embedding.local_weights.grad = torch.ones(2, 1)
    assert not optimizer.finite()
