"""The choice of device and number format."""

import pytest
import torch
from torch import Tensor

from models import layers
from runtime import device as device_module
from runtime.device import (
    prepare_host,
    require_deterministic_algorithms,
    resolve_device,
    resolve_dtype,
)
from runtime.errors import ConfigError


@pytest.mark.parametrize("has_cuda", [True, False])
def test_auto_is_cuda_if_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, has_cuda: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if has_cuda else "cpu")
    if has_cuda:
        assert resolve_device("cuda") == "cuda"
    else:
        with pytest.raises(ConfigError, match="device=cuda: torch sees no CUDA device"):
            resolve_device("cuda")


@pytest.mark.parametrize(
    ("device", "has_bfloat16", "asked", "given"),
    [
        ("cpu", True, "bfloat16", "bfloat16"),
        ("cpu", False, "bfloat16", "float32"),
        ("cpu", False, "float64", "float64"),
        ("cuda", False, "bfloat16", "bfloat16"),
        ("cuda", False, "float16", "float16"),
    ],
)
def test_bfloat16_needs_the_hardware_for_it(
    monkeypatch: pytest.MonkeyPatch, device: str, has_bfloat16: bool, asked: str, given: str
) -> None:
    monkeypatch.setattr(device_module, "cpu_has_bfloat16", lambda: has_bfloat16)
    assert resolve_dtype(asked, device) == given
    with pytest.raises(ConfigError, match=r"arch\.forward_dtype=float16"):
        resolve_dtype("float16", "cpu")


def test_attention_is_deterministic_if_everything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **options: bool) -> Tensor:
        asked.append(options.get("deterministic", False))
        return q

    monkeypatch.setitem(layers._LOADED, "fa2", flash_attn_func)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    q = torch.zeros(1, 2, 1, 4)
    layers.attend(q, q, q, "fa2")
    require_deterministic_algorithms()
    layers.attend(q, q, q, "fa2")
    assert asked == [False, True]
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))


def test_threads_are_set_when_asked_for_and_denormal_numbers_flushed() -> None:
    torch.set_num_threads(1)
    prepare_host(None)
    assert torch.get_num_threads() == 1
    prepare_host(2)
    assert torch.get_num_threads() == 2
    # Processors that cannot flush denormal numbers keep them.
    assert torch.tensor([1e-39]).mul(0.5).item() == 0.0 or not torch.set_flush_denormal(True)
