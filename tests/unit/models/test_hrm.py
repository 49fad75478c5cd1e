"""HRM: initialization, shapes of every variant, and the truncated gradient against a slow twin."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import models.hrm
from models.act import ACTLossHead
from models.carry import Examples, Latents
from models.config import DataFacts, HRMConfig
from models.hrm import HRMInner
from models.layers import add_rms_norm
from models.registry import build_model
from tests.unit.models.tiny import (
    FACTS,
    first_step,
    inner_of,
    make_config,
    make_examples,
    make_model,
    require_same_compiled,
)

GRADIENTS = ["last_step", "last_cycle"]

# Overrides of the tiny configuration; each is an HRM that someone may train.
VARIANTS: dict[str, dict[str, Any]] = {
    "rope": {},
    "learned": {"pos_encodings": "learned"},
    "no positions": {"pos_encodings": "none"},
    "more layers": {"H_layers": 2, "L_layers": 3},
    "cycles 1 and 3": {"H_cycles": 1, "L_cycles": 3},
    "cycles 3 and 1": {"H_cycles": 3, "L_cycles": 1},
    "cycles 1 and 1": {"H_cycles": 1, "L_cycles": 1},
    "mixer": {"mlp_t": True, "pos_encodings": "none"},
    "no puzzle embedding": {"puzzle_emb_ndim": 0},
    "mixer without puzzle embedding": {"mlp_t": True, "puzzle_emb_ndim": 0},
    "puzzle embedding narrower than a position": {"puzzle_emb_ndim": 5},
    "puzzle embedding of one and a half positions": {"puzzle_emb_ndim": 24},
    "puzzle embedding in more positions than it needs": {"puzzle_emb_len": 3},
}
PREFIX = {
    "no puzzle embedding": 0,
    "mixer without puzzle embedding": 0,
    "puzzle embedding of one and a half positions": 2,
    "puzzle embedding in more positions than it needs": 3,
}


# The twin: every formula written out, in float64, one head at a time


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    both = x @ gate_up.T
    gate, up = both.tensor_split(2, dim=-1)
    return (gate * gate.sigmoid() * up) @ down.T


def rotate(x: Tensor, theta: float) -> Tensor:
    """Turn [B, T, K], whose halves are the parts of complex numbers, by the positions."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * theta ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def attention(x: Tensor, weights: dict[str, Tensor], config: HRMConfig) -> Tensor:
    D, N = config.hidden_size, config.num_heads
    K = D // N
    heads = []
    for head in range(N):
        q, k, v = (
            x @ weights["self_attn.qkv_proj.weight"][i * D + head * K : i * D + (head + 1) * K].T
            for i in range(3)
        )
        if config.pos_encodings == "rope":
            q, k = rotate(q, config.rope_theta), rotate(k, config.rope_theta)
        heads.append((q @ k.mT / math.sqrt(K)).softmax(-1) @ v)
    return torch.cat(heads, dim=-1) @ weights["self_attn.o_proj.weight"].T


def block(x: Tensor, weights: dict[str, Tensor], config: HRMConfig) -> Tensor:
    eps = config.rms_norm_eps
    if config.mlp_t:
        y = x.mT
        mixed = swiglu(y, weights["mlp_t.gate_up_proj.weight"], weights["mlp_t.down_proj.weight"])
        x = rms_norm(y + mixed, eps).mT
    else:
        x = rms_norm(x + attention(x, weights, config), eps)
    out = swiglu(x, weights["mlp.gate_up_proj.weight"], weights["mlp.down_proj.weight"])
    return rms_norm(x + out, eps)


def level(
    x: Tensor, name: str, state: dict[str, Tensor], num_layers: int, config: HRMConfig
) -> Tensor:
    for layer in range(num_layers):
        prefix = f"{name}.layers.{layer}."
        weights = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        x = block(x, weights, config)
    return x


def embed(
    state: dict[str, Tensor], rows: Tensor | None, inputs: Tensor, config: HRMConfig
) -> Tensor:
    D = config.hidden_size
    embedding = state["embed_tokens.embedding_weight"][inputs.long()]
    if rows is not None:
        padded = torch.zeros(rows.shape[0], config.num_prefix * D, dtype=torch.float64)
        padded[:, : rows.shape[1]] = rows
        embedding = torch.cat((padded.view(-1, config.num_prefix, D), embedding), dim=1)
    if config.pos_encodings == "learned":
        embedding = (embedding + state["embed_pos.embedding_weight"]) / math.sqrt(2)
    return embedding * math.sqrt(D)


def twin_step(
    state: dict[str, Tensor], rows: Tensor | None, carry: Latents, inputs: Tensor, config: HRMConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z_H, z_L, logits, q logits [B, 2]; the states are cut off the graph before the last updates.

    The paper's approximation (arXiv:2506.21734, 2.1): whatever was computed before the last L and
    the last H update counts as a constant. With `last_cycle` that is before the last H cycle.
    """
    injected = embed(state, rows, inputs, config)
    schedule = (["L"] * config.L_cycles + ["H"]) * config.H_cycles
    kept = 2 if config.gradient == "last_step" else config.L_cycles + 1
    z_H, z_L = carry["z_H"].double(), carry["z_L"].double()
    for number, update in enumerate(schedule):
        if number == len(schedule) - kept:
            z_H, z_L = z_H.detach(), z_L.detach()
        if update == "L":
            z_L = level(z_L + (z_H + injected), "L_level", state, config.L_layers, config)
        else:
            z_H = level(z_H + z_L, "H_level", state, config.H_layers, config)
    logits = (z_H @ state["lm_head.weight"].T)[:, config.num_prefix :]
    q_logits = z_H[:, 0] @ state["q_head.weight"].T + state["q_head.bias"]
    return z_H, z_L, logits, q_logits


def step(
    model: ACTLossHead, carry: Latents, examples: Examples
) -> tuple[Latents, Tensor, tuple[Tensor, Tensor]]:
    """One pass: the new state, logits, (q_halt, q_continue)."""
    new_carry, answer = inner_of(model)(carry, examples)
    outputs = inner_of(model).read(answer, examples)
    q = outputs["q_halt_logits"], outputs["q_continue_logits"]
    return new_carry, outputs["logits"], q


def random_carry(inner: HRMInner, batch_size: int) -> Latents:
    carry = inner.empty_carry(batch_size)
    generator = torch.Generator().manual_seed(1)
    for z in (carry["z_H"], carry["z_L"]):
        z.copy_(torch.randn(z.shape, generator=generator))
    return carry


def some_loss(logits: Tensor, q_logits: Tensor) -> Tensor:
    """Any smooth function in which every output counts differently."""
    generator = torch.Generator().manual_seed(2)
    weights = (
        torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (logits, q_logits)
    )
    parts = [(w * torch.sin(x)).sum() for w, x in zip(weights, (logits, q_logits), strict=True)]
    return parts[0] + parts[1]


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_equal_the_slow_twin(variant: str, gradient: str) -> None:
    overrides = VARIANTS[variant] | {"gradient": gradient, "forward_dtype": "float64"}
    model = make_model(**overrides).train()
    inner, examples = inner_of(model), make_examples()
    carry = random_carry(inner, 3)

    new_carry, logits, q = step(model, carry, examples)
    some_loss(logits, torch.stack(q, dim=-1)).backward()

    state = {
        name: value.detach().double().requires_grad_(value.is_floating_point())
        for name, value in inner.state_dict().items()
    }
    rows = None
    if inner.config.num_prefix:
        rows = state["puzzle_emb.weights"][examples["puzzle_identifiers"].long()].detach()
        rows.requires_grad_()
    z_H, z_L, twin_logits, twin_q = twin_step(state, rows, carry, examples["inputs"], inner.config)
    some_loss(twin_logits, twin_q).backward()

    close: Any = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(logits, twin_logits, **close)
    torch.testing.assert_close(torch.stack(q, dim=-1), twin_q, **close)
    torch.testing.assert_close(new_carry["z_H"], z_H.detach(), **close)
    torch.testing.assert_close(new_carry["z_L"], z_L.detach(), **close)
    for name, parameter in inner.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
        twin = state[name].grad
        assert twin is not None
        torch.testing.assert_close(parameter.grad.double(), twin, **close, msg=name)
    if rows is not None:
        torch.testing.assert_close(inner.puzzle_emb.local_weights.grad.double(), rows.grad, **close)


def test_the_two_gradients_differ_where_there_are_several_updates() -> None:
    grads = []
    for gradient in GRADIENTS:
        model = make_model(gradient=gradient).train()
        _, logits, _ = step(model, random_carry(inner_of(model), 3), make_examples())
        logits.square().sum().backward()
        grads.append(inner_of(model).L_level.layers[0].mlp.down_proj.weight.grad)
    assert not torch.allclose(*grads, rtol=1e-2)


# What has gradients and what has not


def norms_in_graph(output: Tensor) -> int:
    """Count the block halves that autograd remembers: each ends in a norm."""
    found, pending = set(), [output.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in found:
            continue
        found.add(node)
        pending += [parent for parent, _ in node.next_functions]
    return sum("AddRMSNorm" in node.name() for node in found)


@pytest.mark.parametrize(("gradient", "updates_of_L"), [("last_step", 1), ("last_cycle", 3)])
def test_the_graph_holds_the_last_updates_alone(gradient: str, updates_of_L: int) -> None:
    model = make_model(gradient=gradient, L_cycles=3, L_layers=2, H_layers=3).train()
    _, logits, _ = step(model, random_carry(inner_of(model), 3), make_examples())
    assert norms_in_graph(logits) == 2 * (updates_of_L * 2 + 3)


def test_the_norm_is_what_the_graph_is_counted_by() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    assert norms_in_graph(add_rms_norm(add_rms_norm(x, x, 1e-5), x, 1e-5)) == 2


def test_no_gradient_reaches_the_start_of_the_recursion() -> None:
    model = make_model().train()
    inner = inner_of(model)
    carry = random_carry(inner, 3)
    carry["z_H"].requires_grad_()
    carry["z_L"].requires_grad_()
    _, logits, _ = step(model, carry, make_examples())
    logits.sum().backward()
    assert carry["z_H"].grad is None
    assert carry["z_L"].grad is None


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_carry_is_detached(gradient: str) -> None:
    model = make_model(gradient=gradient, H_cycles=1, L_cycles=1).train()
    examples = make_examples()
    output = first_step(model, examples)
    assert output.loss.requires_grad
    for name, tensor in output.carry.tensors().items():
        assert not tensor.requires_grad, name
        assert tensor.grad_fn is None, name
    for name, tensor in {**output.metrics, **output.rows}.items():
        assert not tensor.requires_grad, name


# Casting


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_casting_weights_once_changes_no_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for cast_once in (True, False):
        if not cast_once:
            monkeypatch.setattr(models.hrm, "weights_cast_once", lambda *_: nullcontext())
        model = make_model(forward_dtype=dtype).train()
        examples = make_examples()
        output = first_step(model, examples)
        output.loss.backward()
        grads = [parameter.grad for parameter in model.parameters()]
        results.append([output.loss, output.outputs["logits"], output.carry.inner["z_L"], *grads])
    for once, each_time in zip(*results, strict=True):
        assert torch.equal(once, each_time)


def test_weights_set_between_two_steps_are_used() -> None:
    model, examples = make_model(forward_dtype="bfloat16").eval(), make_examples()
    carry = random_carry(inner_of(model), 3)
    before = step(model, carry, examples)[1]
    with torch.no_grad():
        for parameter in inner_of(model).L_level.parameters():
            parameter.mul_(-2)
    assert not torch.allclose(before, step(model, carry, examples)[1], atol=0.05)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_is_close_to_float32(variant: str) -> None:
    outputs = []
    for dtype in ("float32", "bfloat16"):
        model = make_model(**VARIANTS[variant], forward_dtype=dtype).eval()
        carry, logits, (q_halt, q_continue) = step(
            model, random_carry(inner_of(model), 3), make_examples()
        )
        assert logits.dtype == carry["z_H"].dtype == carry["z_L"].dtype == getattr(torch, dtype)
        assert q_halt.dtype == q_continue.dtype == torch.float32
        outputs.append(logits.float())
    exact, rounded = outputs
    # Rounding grows with each of the layers that the recursion passes, up to 27 of them.
    assert (exact - rounded).norm() / exact.norm() < 0.15


# Shapes, keys and start values


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes(variant: str) -> None:
    model, examples = make_model(**VARIANTS[variant]), make_examples()
    prefix = PREFIX.get(variant, 1)
    assert inner_of(model).config.num_prefix == prefix
    for training in (True, False):
        output = first_step(model.train(training), examples)
        assert output.outputs["logits"].shape == (3, 5, 7)
        assert output.outputs["q_halt_logits"].shape == (3,)
        assert output.outputs["q_continue_logits"].shape == (3,)
        assert (
            output.carry.inner["z_H"].shape
            == output.carry.inner["z_L"].shape
            == (3, prefix + 5, 16)
        )
        assert output.loss.shape == ()


def test_without_puzzle_embedding_q_reads_the_first_cell() -> None:
    model, examples = make_model(puzzle_emb_ndim=0), make_examples()
    assert model.puzzle_embedding is None
    assert not any("puzzle_emb" in key for key in model.state_dict())
    inner = inner_of(model)
    carry, _, (q_halt, q_continue) = step(model, random_carry(inner, 3), examples)
    torch.testing.assert_close(
        torch.stack((q_halt, q_continue), -1), inner.q_head(carry["z_H"][:, 0])
    )
    # Nothing depends on who the puzzle is.
    other = examples | {"puzzle_identifiers": 5 - examples["puzzle_identifiers"]}
    again = step(model, random_carry(inner, 3), other)[1]
    assert torch.equal(again, step(model, random_carry(inner, 3), examples)[1])


def test_positions_matter_only_where_they_are_encoded() -> None:
    for positions, matter in (("none", False), ("rope", True), ("learned", True)):
        model = make_model(pos_encodings=positions, puzzle_emb_ndim=0, forward_dtype="float64")
        inner, examples = inner_of(model), make_examples()
        carry = inner.reset_carry(torch.ones(3, dtype=torch.bool), inner.empty_carry(3))
        reversed_examples = examples | {"inputs": examples["inputs"].flip(1)}
        logits = step(model, carry, examples)[1]
        reversed_logits = step(model, carry, reversed_examples)[1].flip(1)
        assert torch.allclose(logits, reversed_logits, atol=1e-9) != matter, positions


def test_state_dict_has_the_published_keys() -> None:
    keys = {"H_init", "L_init", "embed_tokens.embedding_weight", "embed_pos.embedding_weight"}
    keys |= {"lm_head.weight", "q_head.weight", "q_head.bias", "puzzle_emb.weights"}
    for stack in ("H_level", "L_level"):
        for layer in (
            "self_attn.qkv_proj",
            "self_attn.o_proj",
            "mlp.gate_up_proj",
            "mlp.down_proj",
        ):
            keys.add(f"{stack}.layers.0.{layer}.weight")
    model = build_model(make_config(pos_encodings="learned"), FACTS)
    assert set(model.state_dict()) == {f"model.inner.{key}" for key in keys}

    mixer = set(build_model(make_config(mlp_t=True), FACTS).state_dict())
    assert "model.inner.L_level.layers.0.mlp_t.gate_up_proj.weight" in mixer
    assert not any("self_attn" in key for key in mixer)


def test_every_parameter_starts_with_its_std() -> None:
    torch.manual_seed(0)
    D, V, S = 256, 60, 40
    config = HRMConfig.model_validate(
        {"hidden_size": D, "H_layers": 1, "L_layers": 2, "puzzle_emb_ndim": D}
        | {"pos_encodings": "learned"}
    )
    model = build_model(config, DataFacts(vocab_size=V, seq_len=S, num_puzzle_identifiers=9))
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    fan_in = {"down_proj": 768}
    checked = 0
    for key, tensor in tensors.items():
        name = key.removeprefix("model.inner.")
        layer = name.split(".")[-2] if "." in name else name
        if name == "q_head.bias":
            assert torch.equal(tensor, torch.full((2,), -5.0))
        elif name in ("q_head.weight", "puzzle_emb.weights"):
            assert not tensor.any(), name
        elif name.startswith("puzzle_emb.local"):
            assert not tensor.numel()
        else:
            is_init = name in ("H_init", "L_init")
            std = 1.0 if is_init else fan_in.get(layer, D) ** -0.5
            assert tensor.dtype == (torch.bfloat16 if is_init else torch.float32), name
            # Five standard errors of a standard deviation.
            assert tensor.float().std().item() == pytest.approx(
                std, rel=5 / math.sqrt(2 * tensor.numel())
            ), name
            assert abs(tensor.float().mean().item()) < 5 * std / math.sqrt(tensor.numel()), name
            assert tensor.abs().max().item() <= 2.2737 * std * 1.01, name
            checked += 1
    assert checked == 3 + 2 + 3 * 4  # embeddings and lm_head, H_init and L_init, three blocks


def test_mixer_blocks_start_with_the_std_of_their_fan_in() -> None:
    torch.manual_seed(0)
    config = HRMConfig.model_validate(
        {"hidden_size": 64, "num_heads": 4, "H_layers": 1, "L_layers": 1, "mlp_t": True}
        | {"puzzle_emb_ndim": 64, "puzzle_emb_len": 2}
    )
    model = build_model(config, DataFacts(vocab_size=11, seq_len=81, num_puzzle_identifiers=1))
    mixer = inner_of(model).H_level.layers[0].mlp_t
    assert mixer.gate_up_proj.weight.shape == (512, 83)
    assert mixer.down_proj.weight.shape == (83, 256)
    assert mixer.gate_up_proj.weight.std().item() == pytest.approx(83**-0.5, rel=0.02)
    assert mixer.down_proj.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["rope", "learned", "mixer", "no puzzle embedding"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_is_one_graph(variant: str, training: bool) -> None:
    model = make_model(**VARIANTS[variant]).train(training)
    require_same_compiled(model, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_compiles_to_the_same_numbers() -> None:
    model = make_model(H_cycles=1, no_ACT_continue=True).train()
    require_same_compiled(model, "inductor")
