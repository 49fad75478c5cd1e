"""Token heads against slow references."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import RecurrenceConfig
from models.heads.build import RMSNorm
from models.heads.config import TOKEN_HEADS
from models.heads.factorized import Factorized
from models.heads.hierarchical import Hierarchical
from models.heads.linear import Linear, Tied
from models.heads.moe import MixtureOfExperts
from models.heads.puzzle import PuzzleAdapted
from models.layers import CastedEmbedding, LayerNorm

B, S, D, V, WIDTH = 3, 4, 6, 11, 5
SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear"},
    "linear with bias": {"name": "linear", "bias": True},
    "tied": {"name": "tied"},
    "tied with bias": {"name": "tied", "bias": True},
    "factorized": {"name": "factorized", "rank": 2, "bias": True},
    "puzzle": {"name": "puzzle", "rank": 2, "bias": True},
    "experts": {"name": "moe", "num_experts": 3},
    "two experts of four": {"name": "moe", "top_k": 2, "bias": True},
    "one expert of three": {"name": "moe", "num_experts": 3, "top_k": 1},
    "hierarchical": {"name": "hierarchical"},
    "hierarchical, equal clusters": {"name": "hierarchical", "num_clusters": 4, "vocab": 12},
    "one cluster": {"name": "hierarchical", "num_clusters": 1},
    "adaptive": {"name": "adaptive", "cutoffs": [4, 8], "div_value": 2.0},
}


def fresh(name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    lm = SETTINGS[name] | more
    vocab = lm.pop("vocab", V)
    heads = {"lm": lm, "q": None}
    sizes = {"hidden_size": D, "num_heads": 1, "puzzle_emb_ndim": WIDTH}
    loss = {"loss_type": "softmax_cross_entropy"}
    config = RecurrenceConfig.model_validate({**sizes, "heads": heads, "loss": loss})
    return TOKEN_HEADS.load(lm["name"])(
        config, vocab, CastedEmbedding(vocab, D, 1.0, torch.float32)
    )


def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    projection = fresh(name).to(dtype)
    if isinstance(projection, Tied):
        projection._source[0].to(dtype)
    with torch.no_grad():
        for parameter in projection.parameters():
            parameter.normal_(std=0.5)
    return projection


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(B, S, D, generator=generator, dtype=dtype)
    return hidden, torch.randn(B, WIDTH, generator=generator, dtype=dtype)


def slow(head: Any, x: Tensor, p: Tensor, v: int) -> Any:
    """Compute the output of one cell for one token."""
    if isinstance(head, Linear | Tied):
        return head.weight[v] @ x + (0 if head.bias is None else head.bias[v])
    if isinstance(head, Factorized):
        narrow = [row @ x for row in head.down.weight]
        out = sum(u * n for u, n in zip(head.up.weight[v], narrow, strict=True))
        return out + head.up.bias[v]
    if isinstance(head, PuzzleAdapted):
        steer = torch.diag(1 + head.steer.weight @ p)
        change = head.up.weight @ steer @ head.down.weight
        return (head.base.weight + change)[v] @ x + head.base.bias[v]
    if isinstance(head, MixtureOfExperts):
        weights = (head.router.weight @ x).softmax(0)
        kept = sorted(range(len(weights)), key=lambda e: -weights[e].item())
        kept = kept[: head.top_k or len(weights)]
        total = sum(weights[e] for e in kept) if len(kept) > 1 else 1
        out = sum(weights[e] / total * (head.experts[e, v] @ x) for e in kept)
        return out + (0 if head.bias is None else head.bias[v])
    if isinstance(head, Hierarchical):
        coarse = (head.coarse.weight @ x + head.coarse.bias).exp()
        fine = (head.fine.weight @ x + head.fine.bias).exp()
        cluster = v // head.cluster_size
        members = fine[cluster * head.cluster_size :][: head.cluster_size]
        return (coarse[cluster] / coarse.sum() * fine[v] / members.sum()).log()
    shares = (head.softmax.head.weight @ x).softmax(0)
    if v < 4:
        return shares[v].log()
    tail, begin = (0, 4) if v < 8 else (1, 8)
    scores = head.softmax.tail[tail][1].weight @ (head.softmax.tail[tail][0].weight @ x)
    return (shares[4 + tail] * scores.exp()[v - begin] / scores.exp().sum()).log()


@pytest.mark.parametrize("name", SETTINGS)
def test_outputs_equal_the_slow_reference(name: str) -> None:
    head, (hidden, puzzle) = build(name), inputs()
    logits = head(hidden, puzzle)
    for b in range(B):
        for s in range(S):
            for v in range(logits.shape[-1]):
                expected = slow(head, hidden[b, s], puzzle[b], v)
                torch.testing.assert_close(logits[b, s, v], expected, rtol=0, atol=1e-6)
    if head.normalized:
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(B, S).double())


@pytest.mark.parametrize("name", SETTINGS)
def test_bfloat16_gives_the_numbers_of_float32_roughly(name: str) -> None:
    projection, (hidden, puzzle) = build(name, torch.float32), inputs(torch.float32)
    exact = projection(hidden, puzzle)
    rough = projection(hidden.bfloat16(), puzzle.bfloat16())
    assert rough.dtype == (torch.float32 if projection.normalized else torch.bfloat16)
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_router_learns_from_the_logits(top_k: int) -> None:
    projection = fresh("experts", top_k=top_k)
    loss = projection(inputs(torch.float32)[0]).square().sum()
    (grad,) = torch.autograd.grad(loss, projection.router.weight)
    assert grad.abs().max() > 1e-2


def test_balance_is_1_when_all_experts_get_the_same_and_more_otherwise() -> None:
    projection = fresh("experts", num_experts=2)
    even = torch.zeros(2, 2, D)
    even[0, :, :2] = torch.eye(2)
    even[1, :, 0] = 1
    with torch.no_grad():
        projection.router.weight.copy_(50 * torch.eye(2, D))
    outputs = projection.outputs(even)
    assert torch.equal(outputs["logits"], projection(even))
    torch.testing.assert_close(outputs["balance"], torch.tensor([1.0, 2.0]))


def test_the_puzzle_changes_the_weights_of_its_row_alone_and_learns_from_0() -> None:
    projection, (hidden, puzzle) = build("puzzle"), inputs()
    before = projection(hidden, puzzle)
    puzzle[1] += 1
    after = projection(hidden, puzzle)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])

    projection, hidden = fresh("puzzle").double(), hidden
    logits = projection(hidden, torch.zeros_like(puzzle))
    torch.testing.assert_close(logits, projection.base(hidden))
    (grad,) = torch.autograd.grad(logits.square().sum(), projection.up.weight)
    assert grad.any()


@pytest.mark.parametrize("norm", [lambda: RMSNorm(D, eps=1e-5), lambda: LayerNorm(D)])
def test_norms_are_computed_in_float32(norm: Any) -> None:
    x = torch.randn(5, D) * 1e3
    out, wide = norm()(x.bfloat16()), norm()(x.bfloat16().float())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wide.bfloat16())
    torch.testing.assert_close(wide.square().mean(), torch.tensor(1.0), rtol=1e-3, atol=0)
