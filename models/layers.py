"""The layers that all models share. Parameters are float32, cast to the input's dtype in forward.

All attention goes through `attend`; no other code knows the kernels.

Shape letters: B batch, T positions, D hidden width, N heads, K head width.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import BACKENDS_WITH_BIAS
from runtime.errors import ConfigError

# Backend -> (module of `flash_attn_func`, how to install it). CUDA kernels on [B, T, N, K].
_FLASH_ATTENTION = {
    "fa2": ("flash_attn", "pip install flash-attn --no-build-isolation"),
    "fa3": ("flash_attn_interface", "build the hopper/ folder of the flash-attention repository"),
    "fa4": ("flash_attn.cute", "pip install flash-attn-4"),
}
_AUTO_SETTING = "arch.attention=auto (evaluate.py: arch_overrides.attention=auto)"
# Kernels by backend, imported by `require_backend`, because compiled code cannot import.
_LOADED: dict[str, Callable[..., Tensor]] = {}


def trunc_normal_(tensor: Tensor, std: float = 1.0) -> Tensor:
    """Fill `tensor` from a normal distribution that is cut at twice its deviation. The *result* has
    standard deviation `std`, as in JAX; with torch's own function it is smaller.
    """
    if std == 0 or tensor.is_meta:  # Drawing on the meta device would load torch's compiler.
        return tensor.zero_()
    below = 0.5 * math.erfc(2 / math.sqrt(2))
    mass = 0.5 * math.erfc(-2 / math.sqrt(2)) - below
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)
    scale = std / math.sqrt(1 - 4 * density / mass)
    with torch.no_grad():
        # uniform_ gives multiples of 2^-24, 0 included; half a step more avoids ndtri(0).
        draws = tensor.uniform_().double().add_(2.0**-25).mul_(mass).add_(below)
        torch.special.ndtri(draws, out=draws)
        return tensor.copy_(draws.clamp_(-2.0, 2.0).mul_(scale))


class CastedLinear(nn.Module):
    """Linear layer, [..., in] to [..., out]. The float32 weight [out, in] starts with deviation
    1/sqrt(in), the bias with 0; both are cast to the input's dtype.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        weight = torch.empty(out_features, in_features)
        self.weight = nn.Parameter(trunc_normal_(weight, std=in_features**-0.5))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self._cast_weight: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight_in(x.dtype), bias)

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """Return the weight cast to `dtype`; gradients flow back through the cast."""
        if self._cast_weight is None or torch.is_grad_enabled():
            return self._cast(dtype)
        return self._cast_weight

    def _cast(self, dtype: torch.dtype) -> Tensor:
        return self.weight.to(dtype)


class PositionLinear(CastedLinear):
    """Linear layer over the first dimension, [in, N] to [out, N], without bias. Its weight [out,
    in] multiplies from the left, so nothing is transposed.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.weight_in(x.dtype) @ x

    def _cast(self, dtype: torch.dtype) -> Tensor:
        weight = super()._cast(dtype)
        return aligned(weight) if weight.is_cuda else weight


def aligned(matrix: Tensor) -> Tensor:
    """Return the same matrix with rows, or else columns, that start at multiples of 8 elements. The
    fast bfloat16 products of CUDA need this.
    """
    return matrix if matrix.shape[1] % 8 == 0 else matrix.t().contiguous().t()


@contextmanager
def weights_cast_once(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Cast each `CastedLinear` weight below `module` once, for all passes without gradients inside.

    With gradients each use has its own cast: gradients are then added up in float32, as published.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, CastedLinear)]
    for layer in layers:
        # Detached, because a module would register a parameter a second time.
        layer._cast_weight = layer._cast(dtype).detach()
    try:
        yield
    finally:
        for layer in layers:
            layer._cast_weight = None


class CastedEmbedding(nn.Module):
    """Embedding with a float32 table [num, D]. Maps integer ids [...] to [..., D] in `dtype`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, init_std: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.dtype = dtype
        table = torch.empty(num_embeddings, embedding_dim)
        self.embedding_weight = nn.Parameter(trunc_normal_(table, std=init_std))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embedding_weight.to(self.dtype))


class CastedSparseEmbedding(nn.Module):
    """The puzzle embedding, a large table. Each step touches only a few of its rows.

    The table is a buffer, not a parameter: float32 [num, width]. The batch's rows are copied to a
    leaf that receives the gradient; `training.optim.sparse_sign_sgd` applies it to the table.
    """

    weights: Tensor
    local_weights: Tensor  # the leaf [B, width]: rows of the last training batch
    local_ids: Tensor  # int64 [B], their identifiers

    def __init__(self, num_rows: int, width: int, init_std: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        table = trunc_normal_(torch.empty(num_rows, width), std=init_std)
        self.register_buffer("weights", table)
        self.prepare(0)

    def prepare(self, batch_size: int) -> None:
        """Allocate the leaf for `batch_size` rows. Its shape stays fixed from then on."""
        device, width = self.weights.device, self.weights.shape[1]
        leaf = torch.zeros(batch_size, width, device=device).requires_grad_()
        self.register_buffer("local_weights", leaf, persistent=False)
        ids = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.register_buffer("local_ids", ids, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map integer ids [B] to [B, width]; in training with gradients, through the leaf."""
        if not (self.training and torch.is_grad_enabled()):
            return self.weights[ids].to(self.dtype)
        with torch.no_grad():
            self.local_weights.copy_(self.weights[ids])
            self.local_ids.copy_(ids)
        return self.local_weights.to(self.dtype)

    def rows_in_use(self, ids: Tensor) -> Tensor:
        """Return the same rows that `forward` has just returned for these ids."""
        if not self.training:
            return self.weights[ids].to(self.dtype)
        # A copy, because the next `forward` overwrites the leaf, perhaps before this backward.
        return self.local_weights.to(self.dtype, copy=True)


def add_rms_norm(x: Tensor, update: Tensor, eps: float, dim: int = -1) -> Tensor:
    """Return rms_norm(x + update) over `dim`, in float32 (float64 stays), without learned scale."""
    return cast(Tensor, _AddRMSNorm.apply(x, update, eps, dim))


class _AddRMSNorm(torch.autograd.Function):
    """y = s * r with s = x + update and r = 1 / rms(s); ds = r * (dy - y * mean(dy * y)).

    Written by hand: uncompiled, autograd's chain of float32 tensors takes three times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, eps: float, dim: int) -> Tensor:
        wide = widened(x + update)
        square_sum = torch.linalg.vector_norm(wide, dim=dim, keepdim=True).square()
        inverse_rms = (square_sum / x.shape[dim] + eps).rsqrt()
        y = narrowed(wide * inverse_rms, x.dtype)
        ctx.save_for_backward(y, inverse_rms)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        y, inverse_rms = ctx.saved_tensors
        wide, grad_y = widened(y), widened(grads[0])
        mean = (wide * grad_y).mean(ctx.dim, keepdim=True)
        grad = torch.addcmul(grad_y, wide, mean, value=-1).mul_(inverse_rms).to(y.dtype)
        return grad, grad, None, None


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


# Compiled by torch 2.11, an `autograd.Function` has gradients of 0 if its forward returns a tensor
# that was changed in place, or cast to the dtype that it has.
def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x` in `dtype`."""
    return x if x.dtype == dtype else x.to(dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm over D with learned scale and shift, in float32 (float64 stays)."""

    def forward(self, input: Tensor) -> Tensor:
        wide = widened(input)
        weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        return F.layer_norm(wide, self.normalized_shape, weight, bias, self.eps).to(input.dtype)


def swiglu_width(width: int, expansion: float, multiple: int = 256) -> int:
    """Return the inner width of SwiGLU: expansion * width * 2/3, rounded up to a `multiple`."""
    return -(-max(1, round(expansion * width * 2 / 3)) // multiple) * multiple


class SwiGLU(nn.Module):
    """Gated feed-forward layer on [..., width], gate and up in one matrix (gate first)."""

    linear: type[CastedLinear] = CastedLinear
    dim = -1

    def __init__(self, width: int, expansion: float, multiple: int = 256) -> None:
        super().__init__()
        inner = swiglu_width(width, expansion, multiple)
        self.gate_up_proj = self.linear(width, 2 * inner)
        self.down_proj = self.linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(cast(Tensor, _SiluGate.apply(self.gate_up_proj(x), self.dim)))


class PositionSwiGLU(SwiGLU):
    """SwiGLU on [width, N]."""

    linear, dim = PositionLinear, 0


class _SiluGate(torch.autograd.Function):
    """silu(gate) * up for [gate, up] side by side in dimension `dim`. Saves only its input."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.dim = dim
        gate, up = gate_up.chunk(2, dim)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, ctx.dim)
        if torch.compiler.is_compiling():  # The compiler fuses this form; it takes no views as out.
            grad_gate = torch.ops.aten.silu_backward(grads[0] * up, gate)
            return torch.cat((grad_gate, grads[0] * F.silu(gate)), ctx.dim), None
        grad = torch.empty_like(gate_up)
        grad_gate, grad_up = grad.chunk(2, ctx.dim)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=grad_gate)
        torch.ops.aten.silu.out(gate, out=grad_up)
        grad_up.mul_(grads[0])
        return grad, None


def rotary_tables(head_dim: int, num_positions: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [T, K], to rotate the two halves of heads of width K."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys [B, T, N, K] by the tables [T, K] of their positions, in float32."""
    return cast(Tensor, _Rotate.apply(x, cos[:, None], sin[:, None]))


class _Rotate(torch.autograd.Function):
    """x * cos + rotate_half(x) * sin. The gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grads[0], cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide, half = widened(x), x.shape[-1] // 2
    out = wide * cos
    out[..., :half].addcmul_(wide[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(wide[..., :half], sin[..., half:])
    return narrowed(out, x.dtype)


def require_backend(backend: str, device: torch.device, dtype: str = "bfloat16") -> None:
    """Import the package of `backend` if it needs one. Call this before `attend`.

    Raises:
        ConfigError: the package is missing, `device` is not a CUDA device, or the kernel does not
            compute in `dtype`.
    """
    if backend not in _FLASH_ATTENTION:
        return
    module, install = _FLASH_ATTENTION[backend]
    asked = f"arch.attention={backend} needs a CUDA device"
    try:
        _LOADED[backend] = importlib.import_module(module).flash_attn_func
    except (ImportError, AttributeError, OSError):
        raise ConfigError(
            f"{asked} and the package {module}, which is missing or does not import: {install}; "
            f"or use {_AUTO_SETTING}"
        ) from None
    if device.type != "cuda":
        raise ConfigError(f"{asked}, but this run is on {device.type}; use {_AUTO_SETTING}")
    if dtype not in ("bfloat16", "float16"):
        wrong = f"arch.attention={backend} does not compute in arch.forward_dtype={dtype}"
        raise ConfigError(f"{wrong}; use bfloat16, or {_AUTO_SETTING}")


def attend(
    q: Tensor, k: Tensor, v: Tensor, backend: str = "auto", bias: Tensor | None = None
) -> Tensor:
    """Bidirectional softmax attention, softmax(q k^T / sqrt(K) + bias) v.

    Args:
        q, k, v: [B, T, N, K], one dtype.
        backend: `math` computes plain products. With `auto` torch picks a kernel, but on a CPU with
            gradients we use plain products, which are four times as fast.
        bias: [N, T, T] in the same dtype, only with BACKENDS_WITH_BIAS; None: no bias.
    Returns:
        [B, T, N, K] in the dtype of `q`.
    """
    if backend in _FLASH_ATTENTION:
        assert backend in _LOADED, "require_backend was not called"
        exact = {"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}
        out = _LOADED[backend](q, k, v, causal=False, **exact)
        return out[0] if isinstance(out, tuple) else out
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if backend == "math" or (q.device.type == "cpu" and q.requires_grad):
        return _by_products(q, k, v, bias).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


def _by_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return attention [B, N, T, K] by plain products; softmax in float32 (float64 stays)."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
    scores = scores if bias is None else scores + bias
    return scores.softmax(-1, dtype=wide).to(v.dtype) @ v


class Attention(nn.Module):
    """Multi-head self-attention over all T positions, optionally with rotary positions and with a
    `bias` module of `models.biases.base`.

    Raises:
        ConfigError: the backend takes no bias.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, backend: str, bias: nn.Module | None = None
    ) -> None:
        super().__init__()
        if bias is not None and backend not in BACKENDS_WITH_BIAS:
            raise ConfigError(
                f"arch.attention={backend} takes no arch.attention_bias; use {_AUTO_SETTING}"
            )
        self.num_heads, self.backend = num_heads, backend
        self.qkv_proj = CastedLinear(hidden_size, 3 * hidden_size)
        self.o_proj = CastedLinear(hidden_size, hidden_size)
        self.bias = bias

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]; `rotary` is (cos, sin), each [T, K], or None."""
        bias = None if self.bias is None else self.bias(x.dtype)
        out = attend(*self.projected(x, rotary), self.backend, bias)
        return self.o_proj(out.reshape(x.shape))

    def projected(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, T, N, K] each."""
        B, T, D = x.shape
        qkv = self.qkv_proj(x).view(B, T, 3 * self.num_heads, D // self.num_heads)
        if rotary is None:
            q, k, v = qkv.split(self.num_heads, dim=2)
        else:
            qk, v = qkv.split((2 * self.num_heads, self.num_heads), dim=2)
            q, k = apply_rotary(qk, *rotary).chunk(2, dim=2)
        return q, k, v
