"""Attention behind one function, `attend`; everyone else is unaware of kernels.

`auto` is torch's scaled_dot_product_attention, which picks its own kernel (on a CPU plain products
where gradients are needed). Other kernels are used only when asked for by name.

Shape letters: B batch, S cells, P puzzle prefix, T = P + S positions, D hidden width, N heads,
K head width.
"""

import importlib
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.config import BACKENDS_WITH_BIAS
from models.layers import CastedLinear, apply_rotary
from runtime.errors import ConfigError

_SDPA_KERNELS = {"sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}

# Backend -> (module of `flash_attn_func`, how to install it): CUDA kernels on [B, T, N, K].
_FLASH_ATTENTION = {
    "fa2": ("flash_attn", "pip install flash-attn --no-build-isolation"),
    "fa3": ("flash_attn_interface", "build the hopper/ folder of the flash-attention repository"),
    "fa4": ("flash_attn.cute", "pip install flash-attn-4"),
}

_TORCH_S_OWN = "arch.attention=auto (evaluate.py: arch_overrides.attention=auto)"
# Kernels by backend, put here by `require_backend`: a graph that is compiled cannot import.
_LOADED: dict[str, Callable[..., Tensor]] = {}


def require_backend(backend: str, device: torch.device) -> None:
    """Raise when `backend` was asked for by name and cannot run on `device`; load it otherwise.

    To be called before `attend` with a backend that is not torch's own.

    Raises:
        ConfigError: names the backend, what is missing and how to install it.
    """
    if backend in ("auto", "math") or (backend == "sdpa_flash" and device.type == "cpu"):
        return
    asked = f"arch.attention={backend} needs a CUDA device"
    if backend in _FLASH_ATTENTION:
        module, install = _FLASH_ATTENTION[backend]
        try:
            _LOADED[backend] = importlib.import_module(module).flash_attn_func
        except (ImportError, AttributeError, OSError):
            raise ConfigError(
                f"{asked} and the package {module}, which is missing or does not import: {install};"
                f" or use {_TORCH_S_OWN}"
            ) from None
    if device.type != "cuda":
        raise ConfigError(f"{asked}, this run is on {device.type}; use {_TORCH_S_OWN}")


def attend(
    q: Tensor, k: Tensor, v: Tensor, backend: str = "auto", bias: Tensor | None = None
) -> Tensor:
    """Bidirectional softmax attention, softmax(q k^T / sqrt(K) + bias) v.

    Args:
        q, k, v: [B, T, N, K], one dtype.
        backend: a value of `models.config.AttentionBackend`.
        bias: [N, T, T] in the same dtype, with one of BACKENDS_WITH_BIAS; None: 0.
    Returns:
        [B, T, N, K] in the dtype of `q`.
    """
    if backend in _FLASH_ATTENTION:
        assert backend in _LOADED, "require_backend was not called"
        exact = {"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}
        out = _LOADED[backend](q, k, v, causal=False, **exact)
        return out[0] if isinstance(out, tuple) else out
    # Backward through torch's CPU kernel takes four times as long as through the plain products.
    if backend == "auto" and q.device.type == "cpu" and q.requires_grad:
        backend = "math"
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if backend == "auto":
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    elif backend == "math":
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        wide = torch.promote_types(scores.dtype, torch.float32)
        out = scores.softmax(-1, dtype=wide).to(v.dtype) @ v
    else:
        with sdpa_kernel(_SDPA_KERNELS[backend]):
            out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention over all T positions, with optional rotary tables and a bias, as
    `models.biases.base` has them.

    Raises:
        ConfigError: the backend takes no bias.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, backend: str, bias: nn.Module | None = None
    ) -> None:
        super().__init__()
        if bias is not None and backend not in BACKENDS_WITH_BIAS:
            raise ConfigError(
                f"arch.attention={backend} takes no arch.attention_bias; use {_TORCH_S_OWN}"
            )
        self.num_heads, self.backend = num_heads, backend
        self.qkv_proj = CastedLinear(hidden_size, 3 * hidden_size)
        self.o_proj = CastedLinear(hidden_size, hidden_size)
        self.bias = bias

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]; `rotary` is (cos, sin), each [T, K], or None."""
        B, T, D = x.shape
        qkv = self.qkv_proj(x).view(B, T, 3 * self.num_heads, D // self.num_heads)
        if rotary is None:
            q, k, v = qkv.split(self.num_heads, dim=2)
        else:
            qk, v = qkv.split((2 * self.num_heads, self.num_heads), dim=2)
            q, k = apply_rotary(qk, *rotary).chunk(2, dim=2)
        bias = None if self.bias is None else self.bias(x.dtype)
        out = attend(q, k, v, self.backend, bias)
        return self.o_proj(out.reshape(B, -1, D))
