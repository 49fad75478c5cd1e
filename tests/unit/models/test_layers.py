"""Layers: initialization against scipy, hand-written backwards against autograd."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from models.layers import (
    CastedLinear,
    PositionLinear,
    PositionSwiGLU,
    SwiGLU,
    add_rms_norm,
    aligned,
    apply_rotary,
    rotary_tables,
    swiglu_width,
    trunc_normal_,
    weights_cast_once,
)


@pytest.mark.parametrize("std", [1.0, 0.02])
def test_trunc_normal_has_the_moments_of_scipy(std: float) -> None:
    torch.manual_seed(3)
    drawn = trunc_normal_(torch.empty(50_000), std).double().numpy()
    twin = stats.truncnorm(-2, 2, scale=std / stats.truncnorm(-2, 2).std())
    mean, variance, _, kurtosis = (float(m) for m in twin.stats("mvsk"))
    assert math.sqrt(variance) == pytest.approx(std)
    five_errors = 5 / math.sqrt(len(drawn))
    assert drawn.mean() == pytest.approx(mean, abs=five_errors * std)
    spread_of_variance = math.sqrt(kurtosis + 2) * variance
    assert drawn.var() == pytest.approx(variance, abs=five_errors * spread_of_variance)
    lowest, highest = twin.support()
    assert drawn.min() >= lowest - 1e-6 * abs(lowest)
    assert drawn.max() <= highest + 1e-6 * abs(highest)
    assert stats.kstest(drawn, twin.cdf).pvalue > 1e-4


def test_trunc_normal_of_no_width_is_zero() -> None:
    assert torch.equal(trunc_normal_(torch.ones(5), std=0.0), torch.zeros(5))


def test_trunc_normal_of_no_memory_does_not_load_the_compiler() -> None:
    """Loading the compiler takes seconds, at every start."""
    code = "import sys, torch\nfrom models.layers import trunc_normal_\n"
    code += "assert trunc_normal_(torch.empty(5, device='meta')).is_meta\n"
    code += "raise SystemExit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("width", "expansion", "inner"),
    [(512, 4, 1536), (128, 2, 256), (82, 4, 256), (96, 4, 256), (97, 4, 512), (384, 1, 256)]
    + [(8, 1e-4, 256)],
)
def test_swiglu_width(width: int, expansion: float, inner: int) -> None:
    assert swiglu_width(width, expansion) == inner
    layer = SwiGLU(width, expansion)
    assert layer.gate_up_proj.weight.shape == (2 * inner, width)
    assert layer.down_proj.weight.shape == (width, inner)


# Hand-written backwards


def naive_add_rms_norm(x: Tensor, update: Tensor, eps: float, dim: int = -1) -> Tensor:
    total = x + update
    return total / (total.square().mean(dim, keepdim=True) + eps).sqrt()


def naive_swiglu(layer: SwiGLU, x: Tensor) -> Tensor:
    both = x @ layer.gate_up_proj.weight.to(x.dtype).T
    inner = both.shape[-1] // 2
    gate, up = both[..., :inner], both[..., inner:]
    return (gate * torch.sigmoid(gate) * up) @ layer.down_proj.weight.to(x.dtype).T


def complex_rotary(x: Tensor, theta: float) -> Tensor:
    """Rotate heads [B, T, N, K] as complex numbers with a head's halves as parts."""
    half = x.shape[-1] // 2
    numbers = torch.complex(x[..., :half].double(), x[..., half:].double())
    positions = torch.arange(x.shape[1], dtype=torch.float64)[:, None]
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = numbers * torch.exp(1j * positions * frequencies)[:, None, :]
    return torch.cat((turned.real, turned.imag), dim=-1)


def double_input(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_hand_written_layers_equal_their_twins() -> None:
    torch.manual_seed(0)
    exact: Any = {"rtol": 1e-12, "atol": 1e-12}
    x, y = double_input(2, 3, 12), double_input(2, 3, 12)
    for dim in (-1, 0, 1):
        norms = (f(x, y, 1e-5, dim) for f in (add_rms_norm, naive_add_rms_norm))
        torch.testing.assert_close(*norms, **exact)
    # Small inputs, so that eps matters in the norm.
    small = torch.full((1, 4), 1e-3, dtype=torch.float64)
    torch.testing.assert_close(add_rms_norm(small, small, 1e-5), small * 2 / math.sqrt(4e-6 + 1e-5))
    layer = SwiGLU(12, 1.0)
    torch.testing.assert_close(layer(x), naive_swiglu(layer, x), **exact)
    heads = double_input(2, 9, 3, 8)
    turned = apply_rotary(heads, *rotary_tables(8, 9, theta=100.0))
    # The tables are float32.
    torch.testing.assert_close(turned, complex_rotary(heads, 100.0), rtol=0, atol=3e-6)
    torch.testing.assert_close(turned[:, 0], heads[:, 0], rtol=0, atol=0)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    norm_inputs = double_input(2, 3, 6), double_input(2, 3, 6)
    for dim in (-1, 0):
        assert torch.autograd.gradcheck(
            lambda x, y, d=dim: add_rms_norm(x, y, 1e-5, d), norm_inputs
        )
    assert torch.autograd.gradcheck(SwiGLU(4, 1.0), double_input(2, 4))
    assert torch.autograd.gradcheck(PositionSwiGLU(4, 1.0), double_input(4, 2))
    tables = rotary_tables(6, 4, theta=10000.0)
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, *tables), double_input(2, 4, 2, 6))


@pytest.mark.parametrize("positions", [97, 81, 16])
def test_aligned_weights_change_no_value_and_have_no_odd_row(
    positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer, x = PositionSwiGLU(positions, 1.0), double_input(positions, 24)
    results = []
    for align in (False, True):
        if align:
            # The layer does this on CUDA.
            monkeypatch.setattr(
                PositionLinear, "_cast", lambda self, t: aligned(CastedLinear._cast(self, t))
            )
        for linear in (layer.gate_up_proj, layer.down_proj):
            strides = linear.weight_in(torch.float64).stride()
            assert max(strides) % 8 == 0 or not align
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


# Casting


def test_weights_are_cast_once_inside_and_anew_outside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(CastedLinear(8, 8), CastedLinear(8, 2, bias=True))
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    plain = model(x)
    with torch.no_grad(), weights_cast_once(model, torch.bfloat16):
        assert torch.equal(model(x), plain)
        first = model[0]
        assert isinstance(first, CastedLinear)
        first.weight.zero_()
        assert torch.equal(model(x), plain)
    # The first layer now gives 0, and the second adds its bias, 0.
    assert not model(x).any()


def test_cast_weights_are_dropped_when_the_block_raises() -> None:
    layer = CastedLinear(4, 4)
    with pytest.raises(KeyError), weights_cast_once(layer, torch.bfloat16):
        raise KeyError
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is not None
