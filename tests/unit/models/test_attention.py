"""Every attention backend against a plain, slow softmax attention."""

import importlib.machinery
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import models.layers
from models.layers import attend, require_backend

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CPU_BACKENDS = ["auto", "math"]
# T, N: sequences shorter and longer than the number of heads, and one position.
SHAPES = [(3, 8), (8, 3), (17, 2), (1, 4), (5, 5)]


def slow_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute softmax attention on [B, T, N, K], one query of one head at a time."""
    out = torch.zeros_like(v)
    rows = []
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            for n in range(q.shape[2]):
                scores = torch.stack([q[b, t, n] @ key for key in k[b, :, n]])
                shares = torch.exp(scores / math.sqrt(q.shape[-1]))
                shares = shares / shares.sum()
                rows.append(sum(s * value for s, value in zip(shares, v[b, :, n], strict=True)))
    return torch.stack(rows).view(out.shape)


def random_qkv(T: int, N: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(T * 100 + N)
    return [torch.randn(2, T, N, 8, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize(("T", "N"), SHAPES)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_backends_equal_slow_attention_and_its_gradients(backend: str, T: int, N: int) -> None:
    q, k, v = leaves = [x.requires_grad_() for x in random_qkv(T, N)]
    out, twin = attend(q, k, v, backend), slow_attention(q, k, v)
    torch.testing.assert_close(out, twin, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, backend), twin, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(out)
    grads = torch.autograd.grad((out * weight).sum(), leaves)
    twins = torch.autograd.grad((twin * weight).sum(), leaves)
    torch.testing.assert_close(grads, twins, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_backends_keep_the_dtype(backend: str, dtype: torch.dtype, with_gradients: bool) -> None:
    q, k, v = (x.requires_grad_(with_gradients) for x in random_qkv(9, 2, dtype))
    out = attend(q, k, v, backend)
    assert out.dtype == dtype
    assert out.requires_grad == with_gradients
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-12
    twin = slow_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(out.double(), twin, rtol=tolerance, atol=tolerance)


# Backends asked for by name


@pytest.fixture
def no_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("no_flash_attention")
@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize(
    ("backend", "hint"),
    [("fa2", "flash-attn --no-build-isolation"), ("fa3", "hopper/"), ("fa4", "flash-attn-4")],
)
def test_missing_package_says_how_to_install_it(backend: str, hint: str, device: Any) -> None:
    with pytest.raises(ValueError, match=f"arch.attention={backend} needs .*{hint}") as error:
        require_backend(backend, device)
    assert "\n" not in str(error.value)


def test_a_package_that_does_not_import_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn.py").write_text("raise OSError('libcudart.so.12: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    with pytest.raises(ValueError, match="does not import: pip install flash-attn"):
        require_backend("fa2", CUDA)


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize(
    ("backend", "module"), [("fa2", "flash_attn"), ("fa3", "flash_attn_interface")]
)
def test_flash_attention_is_called_in_its_own_layout(
    backend: str, module: str, with_lse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> object:
        assert not causal
        out = slow_attention(q, k, v)
        return (out, None) if with_lse else out

    stand_in = ModuleType(module)
    stand_in.__spec__ = importlib.machinery.ModuleSpec(module, None)
    vars(stand_in)["flash_attn_func"] = flash_attn_func
    monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setattr(models.layers, "_LOADED", {})
    require_backend(backend, CUDA)
    with pytest.raises(ValueError, match="CUDA"):
        require_backend(backend, CPU)
    for dtype in ("float32", "float64"):
        with pytest.raises(ValueError, match=f"not compute in arch.forward_dtype={dtype}; use"):
            require_backend(backend, CUDA, dtype)
    q, k, v = random_qkv(5, 3)
    torch.testing.assert_close(attend(q, k, v, backend), slow_attention(q, k, v))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "math", "fa2"])
def test_a_backend_is_part_of_one_graph(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return attend(q, k, v, "math")

    monkeypatch.setitem(models.layers._LOADED, "fa2", flash_attn_func)
    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=False, backend="aot_eager")
    q, k, v = (x.requires_grad_() for x in random_qkv(5, 3))
    torch.testing.assert_close(compiled(q, k, v, backend), slow_attention(q, k, v))
