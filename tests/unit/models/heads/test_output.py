"""The token head for programs of one's own."""

from typing import Any

import pytest
import torch
from torch import nn

from models.heads.output import OutputHead
from models.layers import CastedEmbedding, LayerNorm
from tests.unit.models.heads.token_heads import B, D, S, V, embedding, inputs


@pytest.mark.parametrize("bias", [False, True])
def test_the_default_head_is_a_layer_norm_and_a_matrix(bias: bool) -> None:
    head, (hidden, _) = OutputHead(D, V, bias=bias), inputs(torch.float32)
    assert [type(block) for block in head.blocks] == [LayerNorm]
    assert head.weight.shape == (V, D)
    assert len(list(head.projection.parameters())) == 1 + bias
    expected = nn.functional.layer_norm(hidden, (D,)) @ head.weight.T
    torch.testing.assert_close(head(hidden), expected)
    assert head(hidden).shape == (B, S, V)


def test_a_norm_of_ones_own_and_none() -> None:
    hidden, _ = inputs(torch.float32)
    doubled = OutputHead(D, V, norm=nn.Identity())
    torch.testing.assert_close(doubled(hidden), hidden @ doubled.weight.T)
    # A module that is false, because it is empty, is one all the same.
    empty = OutputHead(D, V, norm=nn.Sequential())
    torch.testing.assert_close(empty(hidden), hidden @ empty.weight.T)
    without = OutputHead(D, V, use_norm=False)
    assert len(without.blocks) == 0
    with pytest.raises(ValueError, match="use_norm=False"):
        OutputHead(D, V, norm=nn.Identity(), use_norm=False)


@pytest.mark.parametrize("kind", ["module", "our embedding", "parameter", "frozen"])
def test_tied_weights_are_one_tensor(kind: str) -> None:
    torch.manual_seed(0)
    ours = kind == "our embedding"
    module = CastedEmbedding(V, D, 1.0, torch.float32) if ours else embedding()
    (matrix,) = module.parameters()
    matrix.requires_grad_(kind != "frozen")
    tied: Any = matrix if kind in ("parameter", "frozen") else module
    head = OutputHead(D, V, tied_embedding=tied, use_norm=False)
    assert head.weight.data_ptr() == matrix.data_ptr()
    assert list(head.parameters()) == []
    assert head.state_dict() == {}

    hidden, _ = inputs(torch.float32)
    hidden.requires_grad_()
    ids = torch.tensor([1, 1, 2])
    (module(ids).sum() + head(hidden).sum()).backward()
    if kind == "frozen":
        assert matrix.grad is None
        return
    # Both uses add up: the look-ups count the rows, the projection sums the hidden states.
    looked_up = torch.bincount(ids, minlength=V).float()[:, None].expand(V, D)
    expected = looked_up + hidden.detach().sum((0, 1))
    assert matrix.grad is not None
    torch.testing.assert_close(matrix.grad, expected)


def test_a_tie_survives_saving_and_loading() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = embedding()
            self.head = OutputHead(D, V, tied_embedding=self.embed)

    first, second = Model(), Model()
    second.load_state_dict(first.state_dict())
    hidden, _ = inputs(torch.float32)
    assert torch.equal(second.head(hidden), first.head(hidden))
    with torch.no_grad():
        second.embed.weight.mul_(2)
    torch.testing.assert_close(second.head(hidden), 2 * first.head(hidden))


def test_untied_weights_start_as_a_copy() -> None:
    module = embedding()
    head = OutputHead(D, V, tied_embedding=module, tie_weights=False)
    assert torch.equal(head.weight, module.weight)
    assert head.weight.data_ptr() != module.weight.data_ptr()
    assert any(parameter is head.weight for parameter in head.parameters())
    with pytest.raises(ValueError, match=r"has shape \(11, 6\), expected \(12, 6\)"):
        OutputHead(D, 12, tied_embedding=embedding())


def test_chosen_positions_and_tokens() -> None:
    head, (hidden, _) = OutputHead(D, V, bias=True), inputs(torch.float32)
    positions, ids = torch.tensor([3, 0]), torch.tensor([9, 2, 4])
    whole = head(hidden)
    torch.testing.assert_close(head(hidden, positions=positions), whole[:, positions])
    torch.testing.assert_close(head.score(hidden, ids), whole[..., ids])
    both = head.score(hidden, ids, positions=positions)
    torch.testing.assert_close(both, whole[:, positions][..., ids])
