"""Token heads and states to try them with."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.heads.adaptive.model import Adaptive
from models.heads.base import TokenHead
from models.heads.factorized.model import Factorized
from models.heads.hierarchical.model import Hierarchical
from models.heads.linear.model import Linear
from models.heads.moe.model import MixtureOfExperts
from models.heads.puzzle.model import PuzzleAdapted
from models.heads.tied.model import Tied

B, S, D, V, WIDTH = 3, 4, 6, 11, 5


def embedding() -> nn.Embedding:
    return nn.Embedding(V, D)


PROJECTIONS: dict[str, Callable[[], TokenHead]] = {
    "linear": lambda: Linear(D, V),
    "linear with bias": lambda: Linear(D, V, bias=True),
    "tied": lambda: Tied(embedding()),
    "tied with bias": lambda: Tied(embedding(), bias=True),
    "factorized": lambda: Factorized(D, V, rank=2, bias=True),
    "puzzle": lambda: PuzzleAdapted(D, V, puzzle_dim=WIDTH, rank=2, bias=True),
    "experts": lambda: MixtureOfExperts(D, V, num_experts=3),
    "two experts of four": lambda: MixtureOfExperts(D, V, num_experts=4, top_k=2, bias=True),
    "one expert of three": lambda: MixtureOfExperts(D, V, num_experts=3, top_k=1),
    "hierarchical": lambda: Hierarchical(D, V, num_clusters=4),
    "hierarchical, equal clusters": lambda: Hierarchical(D, 12, num_clusters=4),
    "one cluster": lambda: Hierarchical(D, V, num_clusters=1),
    "adaptive": lambda: Adaptive(D, V, cutoffs=[4, 8], div_value=2.0),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> TokenHead:
    torch.manual_seed(0)
    projection = PROJECTIONS[name]().to(dtype)
    if isinstance(projection, Tied):
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
