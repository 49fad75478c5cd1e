"""A token head of experts: its router, and its balance."""

import pytest
import torch

from models.heads.moe.model import MixtureOfExperts
from tests.unit.models.heads.token_heads import D, V, inputs


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_router_learns_from_the_logits(top_k: int) -> None:
    torch.manual_seed(0)
    projection = MixtureOfExperts(D, V, num_experts=3, top_k=top_k)
    loss = projection(inputs(torch.float32)[0]).square().sum()
    (grad,) = torch.autograd.grad(loss, projection.router.weight)
    assert grad.abs().max() > 1e-2


def test_balance_is_1_when_all_experts_get_the_same_and_more_otherwise() -> None:
    projection = MixtureOfExperts(2, V, num_experts=2)
    even = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    with torch.no_grad():
        projection.router.weight.copy_(torch.eye(2) * 50)
    outputs = projection.outputs(even)
    assert torch.equal(outputs["logits"], projection(even))
    torch.testing.assert_close(outputs["balance"], torch.tensor([1.0, 2.0]))
