"""Muon, batched by shape, against torch's Muon."""

import pytest
import torch
from torch import Tensor, nn

from training.config.schema import MuonConfig
from training.optim.muon import MUON, Muon, orthogonal

SHAPES = [(6, 4), (4, 6), (6, 4), (5, 5), (6, 4)]


def matrices(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def set_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    for p, gradient in zip(parameters, matrices(seed), strict=True):
        p.grad = gradient.detach().clone()


def build(parameters: list[nn.Parameter], scale: str = "original") -> Muon:
    config = MuonConfig.model_construct(momentum=0.9, rate_scale=scale)
    group = {"params": parameters, "lr": 0.1, "weight_decay": 0.2, MUON: True}
    return Muon([group], (0.9, 0.95), config)


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_steps_are_as_in_torch(scale: str) -> None:
    own, theirs = matrices(), matrices()
    optimizer = build(own, scale)
    twin = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.2, momentum=0.9, adjust_lr_fn=scale)
    for step in range(4):
        for each in (own, theirs):
            set_gradients(each, 1 + step)
        optimizer.step()
        twin.step()
    # Torch iterates in bfloat16 (8 bits), for five iterations in each of four steps.
    for p, q in zip(own, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=0.05, atol=0.05)
        assert (p - q).abs().max() < 0.1 * p.abs().max()


def test_singular_values_come_near_one() -> None:
    drawn = torch.stack([p.detach() for p in matrices() if p.shape == (6, 4)])
    for batch in (drawn, drawn.mT, 1e-3 * drawn):
        values = torch.linalg.svdvals(orthogonal(batch, 5))
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_a_skipped_step_changes_nothing() -> None:
    parameters = matrices()
    optimizer = build(parameters)
    set_gradients(parameters, 1)
    optimizer.step()
    kept = [p.detach().clone() for p in parameters]
    kept += [optimizer.state[p]["momentum"].clone() for p in parameters]
    set_gradients(parameters, 2)
    assert parameters[0].grad is not None
    parameters[0].grad.fill_(torch.nan)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    found = [*parameters, *(optimizer.state[p]["momentum"] for p in parameters)]
    assert all(torch.equal(p, k) for p, k in zip(found, kept, strict=True))


def test_everything_else_takes_adamw_s_steps() -> None:
    def vector() -> nn.Parameter:
        return nn.Parameter(torch.arange(1.0, 5.0))

    own, other = vector(), vector()
    rates = {"lr": 0.1, "weight_decay": 0.2}
    optimizer = Muon(
        [{"params": [own], MUON: False, **rates}, {"params": matrices(), MUON: True, **rates}],
        (0.8, 0.9),
        MuonConfig.model_construct(),
    )
    twin = torch.optim.AdamW([other], betas=(0.8, 0.9), fused=True, **rates)
    for step in range(3):
        for p in (own, other):
            p.grad = torch.full((4,), float(step)) - p.detach()
        optimizer.step()
        twin.step()
    assert torch.equal(own, other)
    assert isinstance(own, Tensor)
