"""Every installed attention kernel gives the values and gradients of the plain products."""

from typing import get_args

import pytest
import torch

from models.config import AttentionBackend
from models.layers import attend, require_backend
from runtime.device import require_deterministic_algorithms, undisturbed
from runtime.errors import ConfigError

pytestmark = pytest.mark.gpu

# Relative errors: 32 roundings of float32 (kernels sum in different orders), 8 of bfloat16.
BOUNDS = {torch.float32: 2**-19, torch.bfloat16: 2**-6}


@pytest.fixture(params=get_args(AttentionBackend))
def backend(request: pytest.FixtureRequest, gpu: str) -> str:
    try:
        require_backend(request.param, torch.device(gpu))
    except ConfigError as error:
        pytest.skip(str(error))
    return request.param


def inputs(positions: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Draw queries, keys, values and a gradient for the output."""
    shape = (8, positions, 8, 64) if device == "cuda" else (1, positions, 1, 64)
    return [torch.randn(shape, device=device).to(dtype) for _ in range(4)]


def with_gradients(tensors: list[torch.Tensor], backend: str) -> list[torch.Tensor]:
    """Return the output and the gradients of queries, keys and values."""
    *leaves, incoming = (x.detach().clone().requires_grad_(i < 3) for i, x in enumerate(tensors))
    out = attend(*leaves, backend)
    return [out.detach(), *torch.autograd.grad(out, leaves, incoming)]


# Sudoku with 1 and with 16 positions of puzzle embedding, and ARC.
@pytest.mark.parametrize("positions", [82, 97, 901])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_values_and_gradients(backend: str, gpu: str, positions: int, dtype: torch.dtype) -> None:
    if dtype == torch.float32 and backend not in ("auto", "math"):
        pytest.skip("this kernel supports only bfloat16")
    given = inputs(positions, dtype, gpu)
    plain = with_gradients([x.double().cpu() for x in given], "math")
    for name, own, other in zip("oqkv", with_gradients(given, backend), plain, strict=True):
        assert own.dtype == dtype
        error = ((own.double().cpu() - other).norm() / other.norm()).item()
        assert error < BOUNDS[dtype], name


@pytest.mark.parametrize(("positions", "exact"), [(82, False), (901, True)])
def test_the_default_kernel_gives_equal_bits(gpu: str, positions: int, exact: bool) -> None:
    given = inputs(positions, torch.bfloat16, gpu)
    with undisturbed():
        if exact:  # Otherwise gradients over more than one block of keys are added in any order.
            require_deterministic_algorithms()
        first, *others = (with_gradients(given, "auto") for _ in range(5))
    for again in others:
        for name, own, other in zip("oqkv", again, first, strict=True):
            assert torch.equal(own, other), name
