"""Token heads against slow references, subsets and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.heads.base import Answer, TokenHead
from models.heads.factorized.model import Factorized
from models.heads.hierarchical.model import Hierarchical
from models.heads.linear.model import Linear
from models.heads.moe.model import MixtureOfExperts
from models.heads.puzzle.model import PuzzleAdapted
from models.heads.tied.model import Tied
from tests.unit.models.heads.token_heads import PROJECTIONS, B, S, V, build, inputs


def slow(head: TokenHead, x: Tensor, p: Tensor) -> Tensor:
    """Outputs [V] of one cell, token by token."""
    outputs = []
    projection: Any = head
    for v in range(getattr(projection, "vocab_size", V)):
        if isinstance(head, Linear | Tied):
            out = (projection.weight[v] * x).sum()
            out = out + (0 if projection.bias is None else projection.bias[v])
        elif isinstance(head, Factorized):
            narrow = [(row * x).sum() for row in projection.down.weight]
            out = sum(u * n for u, n in zip(projection.up.weight[v], narrow, strict=True))
            out = out + projection.up.bias[v]
        elif isinstance(head, PuzzleAdapted):
            steer = 1 + projection.steer.weight @ p
            change = projection.up.weight @ torch.diag(steer) @ projection.down.weight
            out = ((projection.base.weight + change)[v] * x).sum() + projection.base.bias[v]
        elif isinstance(head, MixtureOfExperts):
            weights = (projection.router.weight @ x).softmax(0)
            kept = sorted(range(len(weights)), key=lambda e: -weights[e].item())
            kept = kept[: projection.top_k or len(weights)]
            total = sum(weights[e] for e in kept) if len(kept) > 1 else 1
            out = sum(weights[e] / total * (projection.experts[e, v] * x).sum() for e in kept)
            out = out + (0 if projection.bias is None else projection.bias[v])
        elif isinstance(head, Hierarchical):
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
        return projection(hidden, puzzle if name == "puzzle" else None)

    assert torch.autograd.gradcheck(outputs, (hidden, puzzle, *parameters))


@pytest.mark.parametrize("name", PROJECTIONS)
def test_bfloat16_gives_the_numbers_of_float32_roughly(name: str) -> None:
    projection, (hidden, puzzle) = build(name, torch.float32), inputs(torch.float32)
    exact = projection(hidden, puzzle)
    rough = projection(hidden.bfloat16(), puzzle.bfloat16())
    assert rough.dtype == (torch.float32 if projection.normalized else torch.bfloat16)
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.1)


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
