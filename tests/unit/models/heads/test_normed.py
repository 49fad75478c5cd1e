"""Norms in front of a token head."""

import math

import pytest
import torch
from torch import nn

from models.heads.normed import RMSNorm
from models.layers import LayerNorm
from tests.unit.models.heads.token_heads import D


@pytest.mark.parametrize("norm", [RMSNorm, LayerNorm])
def test_norms_are_computed_in_float32(norm: type[nn.Module]) -> None:
    x = torch.randn(5, D) * 1e3
    out = norm(D)(x.bfloat16())
    assert out.dtype == torch.bfloat16
    wide = norm(D)(x.bfloat16().float())
    torch.testing.assert_close(out, wide.bfloat16())
    if norm is RMSNorm:
        rms = wide.square().mean(-1).sqrt()
        torch.testing.assert_close(rms, torch.ones(5), rtol=1e-4, atol=1e-4)
    assert math.isclose(out.float().square().mean().item(), 1.0, rel_tol=0.02)
