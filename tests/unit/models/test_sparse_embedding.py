"""The puzzle embedding: look-ups, and the leaf that receives the gradient."""

import pytest
import torch

from models.layers import CastedSparseEmbedding

IDS = torch.tensor([4, 0, 4], dtype=torch.int32)


@pytest.fixture
def embedding() -> CastedSparseEmbedding:
    torch.manual_seed(0)
    embedding = CastedSparseEmbedding(6, 3, init_std=1.0, dtype=torch.float32)
    embedding.prepare(3)
    return embedding


def test_training_passes_through_the_leaf(embedding: CastedSparseEmbedding) -> None:
    rows = embedding.train()(IDS)
    assert torch.equal(rows, embedding.weights[IDS])
    assert embedding.local_ids.tolist() == [4, 0, 4]
    assert embedding.local_ids.dtype == torch.int64
    weight = torch.arange(9.0).view(3, 3)
    (rows * weight).sum().backward()
    # Each row of the batch has its own gradient; equal identifiers are added up later.
    assert embedding.local_weights.grad is not None
    assert torch.equal(embedding.local_weights.grad, weight)
    assert embedding.local_weights.is_leaf
    assert not embedding.weights.requires_grad
    assert embedding.weights.grad is None


def test_a_second_look_up_of_the_same_rows_keeps_the_gradient_of_the_first(
    embedding: CastedSparseEmbedding,
) -> None:
    """The q_continue target looks the rows up again before the backward pass."""
    rows = embedding.train()(IDS)
    with torch.no_grad():
        embedding(IDS)
    rows.square().sum().backward()
    torch.testing.assert_close(embedding.local_weights.grad, 2 * embedding.weights[IDS])


def test_evaluation_reads_the_table_and_leaves_the_leaf(embedding: CastedSparseEmbedding) -> None:
    embedding.train()(IDS)
    before = embedding.local_weights.detach().clone()
    rows = embedding.eval()(torch.tensor([1, 2, 3, 5, 1]))
    assert torch.equal(rows, embedding.weights[[1, 2, 3, 5, 1]])
    assert not rows.requires_grad
    assert torch.equal(embedding.local_weights, before)
    assert embedding.local_ids.tolist() == [4, 0, 4]


def test_prepare_sets_the_batch_size_and_forgets_the_gradient(
    embedding: CastedSparseEmbedding,
) -> None:
    embedding.train()(IDS).sum().backward()
    embedding.prepare(2)
    assert embedding.local_weights.shape == (2, 3)
    assert embedding.local_weights.grad is None
    assert torch.equal(embedding(IDS[:2]), embedding.weights[IDS[:2]])
    with pytest.raises(RuntimeError):
        embedding(IDS)
