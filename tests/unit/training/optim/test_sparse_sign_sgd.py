"""Sign-SGD of the puzzle embedding against a dictionary from identifier to row."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.layers import CastedSparseEmbedding
from runtime.ranks import Ranks
from training.optim.sparse_sign_sgd import SparseSignSGD, sum_by_id

LR, DECAY = 0.05, 0.3


def build(ids: list[int], grads: Tensor) -> tuple[CastedSparseEmbedding, SparseSignSGD]:
    """Build a table after a backward pass with these identifiers and gradients."""
    torch.manual_seed(0)
    embedding = CastedSparseEmbedding(10, grads.shape[1], init_std=1.0, dtype=torch.float32)
    embedding.prepare(len(ids))
    embedding.train()(torch.tensor(ids, dtype=torch.int32))
    embedding.local_weights.grad = grads.clone()
    return embedding, SparseSignSGD(embedding, Ranks("cpu"), lr=LR, weight_decay=DECAY)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()


@pytest.mark.parametrize("skip", [None, torch.tensor(False)])
@pytest.mark.parametrize("seed", range(5))
def test_rows_equal_the_dictionary_and_no_other_byte_changes(seed: int, skip: Any) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 10, 7).tolist()
    # Small whole numbers: sums are exact and often 0, so that only the decay acts.
    grads = torch.from_numpy(rng.integers(-2, 3, (7, 4))).float()
    embedding, optimizer = build(ids, grads)
    before = embedding.weights.clone()
    optimizer.step(skip)
    for identifier in range(10):
        old, new = before[identifier], embedding.weights[identifier]
        if identifier in ids:
            summed = grads[torch.tensor(ids) == identifier].sum(0)
            torch.testing.assert_close(new, old * (1 - LR * DECAY) - LR * summed.sign())
        else:
            assert bytes_of(new) == bytes_of(old)


@pytest.mark.parametrize("grad", [1.0, float("nan"), float("inf")])
def test_a_skipped_step_changes_no_byte(grad: float) -> None:
    embedding, optimizer = build([1, 4, 1], torch.full((3, 2), grad))
    embedding.weights[4, 0] = -0.0
    before = bytes_of(embedding.weights)
    optimizer.step(torch.tensor(True))
    assert bytes_of(embedding.weights) == before


def test_a_single_row_of_odd_width_is_updated() -> None:
    embedding, optimizer = build([1], torch.tensor([[1.0, -2.0, 0.0]]))
    before = embedding.weights.clone()
    optimizer.step()
    assert bytes_of(embedding.weights[0]) == bytes_of(before[0])
    moved = before[1] * (1 - optimizer.lr * optimizer.weight_decay) - optimizer.lr * torch.tensor(
        [1.0, -1.0, 0.0]
    )
    assert bytes_of(embedding.weights[1]) == bytes_of(moved)


def test_zero_grad_forgets_the_batch() -> None:
    embedding, optimizer = build([1], torch.ones(1, 2))
    optimizer.zero_grad()
    assert embedding.local_weights.grad is None
    with pytest.raises(AssertionError, match="without backward"):
        optimizer.step()


# Summing


@pytest.mark.parametrize(("num_rows", "num_ids"), [(64, 9), (64, 1), (1, 1), (5, 10**6)])
def test_sum_by_id_adds_in_row_order_to_equal_bits(num_rows: int, num_ids: int) -> None:
    rng = np.random.default_rng(num_rows)
    ids = rng.integers(0, num_ids, num_rows)
    scale = 10.0 ** rng.integers(-3, 4, (num_rows, 1))
    grads = (scale * rng.standard_normal((num_rows, 5))).astype(np.float32)
    sorted_ids, sums = sum_by_id(torch.from_numpy(ids), torch.from_numpy(grads))
    assert sorted_ids.tolist() == sorted(ids.tolist())
    for identifier in np.unique(ids):
        total = np.zeros(5, np.float32)
        for row in np.flatnonzero(ids == identifier):
            total = total + grads[row]
        own = sums[sorted_ids == int(identifier)].numpy()
        assert {row.tobytes() for row in own} == {total.tobytes()}


def test_shards_kept_equal_one_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = [3, 1, 3, 2, 1, 3, 3, 5]
    grads = torch.randn(8, 4, generator=generator)
    grads[6] = -((grads[0] + grads[2]) + grads[5])  # The sum is exactly 0 only in row order.
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

    # The next step must not see the kept shards.
    in_shards.zero_grad()
    at_once.zero_grad()
    for embedding in (parted, whole):
        embedding.local_ids.fill_(7)
        embedding.local_weights.grad = torch.ones(len(embedding.local_ids), 4)
    in_shards.step()
    at_once.step()
    assert bytes_of(parted.weights) == bytes_of(whole.weights)


@pytest.mark.parametrize("wrong", [0.0, torch.nan, -torch.inf])
def test_what_is_not_finite_is_seen_in_every_shard(wrong: float) -> None:
    embedding, optimizer = build([1, 2], torch.tensor([[1.0], [wrong]]))
    assert optimizer.finite() == (wrong == 0)
    optimizer.keep_gradient()
    embedding.local_weights.grad = torch.ones(2, 1)
    assert optimizer.finite() == (wrong == 0)
