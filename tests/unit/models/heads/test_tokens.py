"""Token heads against slow references, subsets, ties and gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.heads import tokens
from models.heads.base import Answer
from models.heads.tokens import TokenHead
from models.layers import CastedEmbedding

B, S, D, V, WIDTH = 3, 4, 6, 11, 5


def embedding() -> nn.Embedding:
    return nn.Embedding(V, D)


PROJECTIONS: dict[str, Callable[[], tokens.TokenHead]] = {
    "linear": lambda: tokens.Linear(D, V),
    "linear with bias": lambda: tokens.Linear(D, V, bias=True),
    "tied": lambda: tokens.Tied(embedding()),
    "tied with bias": lambda: tokens.Tied(embedding(), bias=True),
    "factorized": lambda: tokens.Factorized(D, V, rank=2, bias=True),
    "puzzle": lambda: tokens.PuzzleAdapted(D, V, puzzle_dim=WIDTH, rank=2, bias=True),
    "experts": lambda: tokens.MixtureOfExperts(D, V, num_experts=3),
    "two experts of four": lambda: tokens.MixtureOfExperts(D, V, num_experts=4, top_k=2, bias=True),
    "one expert of three": lambda: tokens.MixtureOfExperts(D, V, num_experts=3, top_k=1),
    "hierarchical": lambda: tokens.Hierarchical(D, V, num_clusters=4),
    "hierarchical, equal clusters": lambda: tokens.Hierarchical(D, 12, num_clusters=4),
    "one cluster": lambda: tokens.Hierarchical(D, V, num_clusters=1),
    "adaptive": lambda: tokens.Adaptive(D, V, cutoffs=[4, 8], div_value=2.0),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> tokens.TokenHead:
    torch.manual_seed(0)
    projection = PROJECTIONS[name]().to(dtype)
    if isinstance(projection, tokens.Tied):
        (source,) = projection._source
        assert isinstance(source, nn.Module)
        source.to(dtype)
    with torch.no_grad():
        for parameter in projection.parameters():
            parameter.normal_(std=0.5)
    return projection


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(B, S, D, generator=generator, dtype=dtype)
    return hidden, torch.randn(B, WIDTH, generator=generator, dtype=dtype)


def slow(head: tokens.TokenHead, x: Tensor, p: Tensor) -> Tensor:
    """Outputs [V] of one cell, token by token."""
    outputs = []
    projection: Any = head
    for v in range(getattr(projection, "vocab_size", V)):
        if isinstance(head, tokens.Linear | tokens.Tied):
            out = (projection.weight[v] * x).sum()
            out = out + (0 if projection.bias is None else projection.bias[v])
        elif isinstance(head, tokens.Factorized):
            narrow = [(row * x).sum() for row in projection.down.weight]
            out = sum(u * n for u, n in zip(projection.up.weight[v], narrow, strict=True))
            out = out + projection.up.bias[v]
        elif isinstance(head, tokens.PuzzleAdapted):
            steer = 1 + projection.steer.weight @ p
            change = projection.up.weight @ torch.diag(steer) @ projection.down.weight
            out = ((projection.base.weight + change)[v] * x).sum() + projection.base.bias[v]
        elif isinstance(head, tokens.MixtureOfExperts):
            weights = (projection.router.weight @ x).softmax(0)
            kept = sorted(range(len(weights)), key=lambda e: -weights[e].item())
            kept = kept[: projection.top_k or len(weights)]
            total = sum(weights[e] for e in kept) if len(kept) > 1 else 1
            out = sum(weights[e] / total * (projection.experts[e, v] * x).sum() for e in kept)
            out = out + (0 if projection.bias is None else projection.bias[v])
        elif isinstance(head, tokens.Hierarchical):
            size = projection.cluster_size
            cluster = v // size
            coarse = projection.coarse.weight @ x + projection.coarse.bias
            fine = projection.fine.weight @ x + projection.fine.bias
            members = fine[cluster * size : (cluster + 1) * size].exp()
            inside = fine[v].exp() / members.sum()
            out = (coarse.exp()[cluster] / coarse.exp().sum() * inside).log()
        else:
            softmax = projection.softmax
            shares = (softmax.head.weight @ x).softmax(0)
            if v < 4:
                out = shares[v].log()
            else:
                tail, begin = (0, 4) if v < 8 else (1, 8)
                scores = softmax.tail[tail][1].weight @ (softmax.tail[tail][0].weight @ x)
                out = (shares[4 + tail] * scores.exp()[v - begin] / scores.exp().sum()).log()
        outputs.append(torch.as_tensor(out))
    return torch.stack(outputs)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_outputs_equal_the_slow_reference(name: str) -> None:
    projection, (hidden, puzzle) = build(name), inputs()
    logits = projection(hidden, puzzle)
    for b in range(B):
        for s in range(S):
            expected = slow(projection, hidden[b, s], puzzle[b])
            torch.testing.assert_close(logits[b, s], expected, rtol=0, atol=1e-6)
    if projection.normalized:
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(B, S).double())


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("ids", [[0], [10, 3, 7], list(range(11)), [5, 5]])
def test_a_subset_of_tokens_scores_as_in_the_whole(name: str, ids: list[int]) -> None:
    projection, (hidden, puzzle) = build(name), inputs()
    chosen = torch.tensor(ids)
    found = projection.score(hidden, chosen, puzzle)
    torch.testing.assert_close(found, projection(hidden, puzzle)[..., chosen], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    projection, (hidden, puzzle) = build(name), inputs()
    hidden, puzzle = hidden[:1, :2].clone().requires_grad_(), puzzle[:1].clone().requires_grad_()
    parameters = list(projection.parameters())

    def outputs(hidden: Tensor, puzzle: Tensor, *_: Tensor) -> Tensor:
        return projection(hidden, puzzle if projection.needs_puzzle else None)

    assert torch.autograd.gradcheck(outputs, (hidden, puzzle, *parameters))


@pytest.mark.parametrize("name", PROJECTIONS)
def test_bfloat16_gives_the_numbers_of_float32_roughly(name: str) -> None:
    projection, (hidden, puzzle) = build(name, torch.float32), inputs(torch.float32)
    exact = projection(hidden, puzzle)
    rough = projection(hidden.bfloat16(), puzzle.bfloat16())
    assert rough.dtype == (torch.float32 if projection.normalized else torch.bfloat16)
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.1)


def test_the_puzzle_changes_the_weights_of_its_row_alone() -> None:
    projection, (hidden, puzzle) = build("puzzle"), inputs()
    before = projection(hidden, puzzle)
    puzzle[1] += 1
    after = projection(hidden, puzzle)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])
    with pytest.raises(ValueError, match="needs the puzzle embedding"):
        projection(hidden)


def test_a_head_adapted_to_the_puzzle_learns_from_a_start_at_zero() -> None:
    torch.manual_seed(0)
    projection = tokens.PuzzleAdapted(D, V, puzzle_dim=WIDTH, rank=2)
    hidden, _ = inputs(torch.float32)
    logits = projection(hidden, torch.zeros(B, WIDTH))
    torch.testing.assert_close(logits, projection.base(hidden))
    (grad,) = torch.autograd.grad(logits.square().sum(), projection.up.weight)
    assert grad.any()


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_router_learns_from_the_logits(top_k: int) -> None:
    torch.manual_seed(0)
    projection = tokens.MixtureOfExperts(D, V, num_experts=3, top_k=top_k)
    loss = projection(inputs(torch.float32)[0]).square().sum()
    (grad,) = torch.autograd.grad(loss, projection.router.weight)
    assert grad.abs().max() > 1e-2


def test_balance_is_1_when_all_experts_get_the_same_and_more_otherwise() -> None:
    projection = tokens.MixtureOfExperts(2, V, num_experts=2)
    even = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    with torch.no_grad():
        projection.router.weight.copy_(torch.eye(2) * 50)
    outputs = projection.outputs(even)
    assert torch.equal(outputs["logits"], projection(even))
    torch.testing.assert_close(outputs["balance"], torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("count", [0, 12])
def test_clusters_that_cannot_be_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_clusters is {count}, expected 1 to 11"):
        tokens.Hierarchical(D, V, num_clusters=count)


# The head


@pytest.mark.parametrize("bias", [False, True])
def test_the_default_head_is_a_layer_norm_and_a_matrix(bias: bool) -> None:
    head, (hidden, _) = tokens.OutputHead(D, V, bias=bias), inputs(torch.float32)
    assert [type(block) for block in head.blocks] == [tokens.LayerNorm]
    assert head.weight.shape == (V, D)
    assert len(list(head.projection.parameters())) == 1 + bias
    expected = nn.functional.layer_norm(hidden, (D,)) @ head.weight.T
    torch.testing.assert_close(head(hidden), expected)
    assert head(hidden).shape == (B, S, V)


def test_a_norm_of_ones_own_and_none() -> None:
    hidden, _ = inputs(torch.float32)
    doubled = tokens.OutputHead(D, V, norm=nn.Identity())
    torch.testing.assert_close(doubled(hidden), hidden @ doubled.weight.T)
    # A module that is false, because it is empty, is one all the same.
    empty = tokens.OutputHead(D, V, norm=nn.Sequential())
    torch.testing.assert_close(empty(hidden), hidden @ empty.weight.T)
    without = tokens.OutputHead(D, V, use_norm=False)
    assert len(without.blocks) == 0
    with pytest.raises(ValueError, match="use_norm=False"):
        tokens.OutputHead(D, V, norm=nn.Identity(), use_norm=False)


@pytest.mark.parametrize("kind", ["module", "our embedding", "parameter", "frozen"])
def test_tied_weights_are_one_tensor(kind: str) -> None:
    torch.manual_seed(0)
    ours = kind == "our embedding"
    module = CastedEmbedding(V, D, 1.0, torch.float32) if ours else embedding()
    (matrix,) = module.parameters()
    matrix.requires_grad_(kind != "frozen")
    tied: Any = matrix if kind in ("parameter", "frozen") else module
    head = tokens.OutputHead(D, V, tied_embedding=tied, use_norm=False)
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
            self.head = tokens.OutputHead(D, V, tied_embedding=self.embed)

    first, second = Model(), Model()
    second.load_state_dict(first.state_dict())
    hidden, _ = inputs(torch.float32)
    assert torch.equal(second.head(hidden), first.head(hidden))
    with torch.no_grad():
        second.embed.weight.mul_(2)
    torch.testing.assert_close(second.head(hidden), 2 * first.head(hidden))


def test_untied_weights_start_as_a_copy() -> None:
    module = embedding()
    head = tokens.OutputHead(D, V, tied_embedding=module, tie_weights=False)
    assert torch.equal(head.weight, module.weight)
    assert head.weight.data_ptr() != module.weight.data_ptr()
    assert any(parameter is head.weight for parameter in head.parameters())
    with pytest.raises(ValueError, match=r"has shape \(11, 6\), expected \(12, 6\)"):
        tokens.OutputHead(D, 12, tied_embedding=embedding())


def test_chosen_positions_and_tokens() -> None:
    head, (hidden, _) = tokens.OutputHead(D, V, bias=True), inputs(torch.float32)
    positions, ids = torch.tensor([3, 0]), torch.tensor([9, 2, 4])
    whole = head(hidden)
    torch.testing.assert_close(head(hidden, positions=positions), whole[:, positions])
    torch.testing.assert_close(head.score(hidden, ids), whole[..., ids])
    both = head.score(hidden, ids, positions=positions)
    torch.testing.assert_close(both, whole[:, positions][..., ids])


@pytest.mark.parametrize("norm", [tokens.RMSNorm, tokens.LayerNorm])
def test_norms_are_computed_in_float32(norm: type[nn.Module]) -> None:
    x = torch.randn(5, D) * 1e3
    out = norm(D)(x.bfloat16())
    assert out.dtype == torch.bfloat16
    wide = norm(D)(x.bfloat16().float())
    torch.testing.assert_close(out, wide.bfloat16())
    if norm is tokens.RMSNorm:
        rms = wide.square().mean(-1).sqrt()
        torch.testing.assert_close(rms, torch.ones(5), rtol=1e-4, atol=1e-4)
    assert math.isclose(out.float().square().mean().item(), 1.0, rel_tol=0.02)


class Doubled(TokenHead):
    """A head of a user's own that has nothing but `forward`."""

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        return 2 * hidden


def test_a_head_needs_forward_or_score_alone() -> None:
    answer = Answer(torch.randn(2, 5, 4))
    part = Doubled().read_part(answer, cells=torch.tensor([3, 0]), tokens=torch.tensor([1]))
    assert torch.equal(part, 2 * answer.cells[:, [3, 0]][..., [1]])
    with pytest.raises(NotImplementedError, match="TokenHead defines neither score nor forward"):
        TokenHead().read(answer)
