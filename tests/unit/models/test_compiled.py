"""A compiled block is compiled once, for all blocks of its shape."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from models.registry import arch_on_device, compiled_forward
from runtime.schema import Schema
from tests.unit.models import tiny

# torch's compiler makes an object of each class of `autograd.Function`, and reads every `grad`.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)

HRM = {"H_layers": 1, "L_layers": 2}


@pytest.fixture(autouse=True)
def without_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch.compile only trace, as the rest takes most of a minute, and reset it afterwards."""
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield
    torch.compiler.reset()


def num_graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mlp_t", [False, True])
def test_all_blocks_share_their_code(dtype: str, mlp_t: bool) -> None:
    settings: dict[str, Any] = {**HRM, "forward_dtype": dtype, "mlp_t": mlp_t}
    model, twin = (tiny.make_model(**settings).train() for _ in range(2))
    forward = compiled_forward(model, "block")
    assert forward is model
    assert model.state_dict().keys() == twin.state_dict().keys()
    carry = twin_carry = model.initial_carry(tiny.make_examples())
    for step in range(3):
        examples = tiny.make_examples(seed=step)
        output, expected = forward(carry, examples), twin(twin_carry, examples)
        for loss in (output.loss, expected.loss):
            loss.backward()
        # Another kernel rounds differently, in bfloat16 to 8 bits, in each layer.
        bound = 1e-5 if dtype == "float32" else 0.1
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert own.grad is not None
            assert other.grad is not None
            assert (own.grad - other.grad).norm() <= bound * other.grad.norm()
        carry, twin_carry = output.carry, expected.carry
        assert num_graphs() == 2  # With gradients and without.
    model.eval()
    with torch.no_grad():
        forward(carry, tiny.make_examples())
    assert num_graphs() == 2


def test_what_has_no_weights_may_differ_on_a_device() -> None:
    class Overrides(Schema):
        attention: str | None = "math"
        halt_max_steps: int | None = 9
        H_cycles: int | None = 5
        loops: int | None = None

    arch = arch_on_device(tiny.make_config(), "cpu", Overrides())
    assert arch == tiny.make_config(attention="math", halt_max_steps=9, H_cycles=5)
