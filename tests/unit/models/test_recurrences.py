"""HRM, TRM, its variant with one latent, and the transformer: the schedule of each, written out."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import models.recurrence
from models.act import ACTLossHead
from models.architectures import ArchConfig
from models.config import DataFacts
from models.heads.base import Examples
from models.hrm.config import HRMConfig
from models.layers import add_rms_norm
from models.recurrence import Latents
from models.registry import build_model
from models.transformer.config import TransformerConfig
from models.trm.config import TRMConfig
from tests.unit.models import tiny
from tests.unit.models.tiny import FACTS, first_step, inner_of, make_examples, make_model

# Overrides of the tiny configuration; each is an HRM that someone may train.
VARIANTS: dict[str, dict[str, Any]] = {
    "rope": {},
    "learned": {"pos_encodings": "learned"},
    "no positions": {"pos_encodings": "none"},
    "more layers": {"H_layers": 2, "L_layers": 3},
    "cycles 1 and 3": {"H_cycles": 1, "L_cycles": 3},
    "cycles 3 and 1": {"H_cycles": 3, "L_cycles": 1},
    "mixer": {"mlp_t": True, "pos_encodings": "none"},
    "no puzzle embedding": {"puzzle_emb_ndim": 0},
    "mixer without puzzle embedding": {"mlp_t": True, "puzzle_emb_ndim": 0},
    "puzzle embedding narrower than a position": {"puzzle_emb_ndim": 5},
    "puzzle embedding of one and a half positions": {"puzzle_emb_ndim": 24},
    "puzzle embedding in more positions than it needs": {"puzzle_emb_len": 3},
}
SMALL: Any = {"hidden_size": 16, "num_heads": 2, "expansion": 2.0, "puzzle_emb_ndim": 16}
SMALL |= {"halt_max_steps": 4, "forward_dtype": "float64"}
TRM: Any = {**SMALL, "H_cycles": 3, "L_cycles": 2, "L_layers": 2, "puzzle_emb_len": 2}
MIXER: Any = {"mlp_t": True, "pos_encodings": "none"}
GRADIENTS = ["last_step", "last_cycle"]

CONFIGS: dict[str, ArchConfig] = {
    "trm": TRMConfig(**TRM),
    "trm mixer": TRMConfig(**TRM, **MIXER),
    "trm_singlez": TRMConfig(**TRM, name="trm_singlez"),
    "trm_singlez mixer": TRMConfig(**TRM, name="trm_singlez", **MIXER),
    "transformer": TransformerConfig(**SMALL, H_layers=3),
    "transformer learned": TransformerConfig(**SMALL, H_layers=3, pos_encodings="learned"),
    "transformer mixer": TransformerConfig(**SMALL, H_layers=2, mlp_t=True, puzzle_emb_len=3),
} | {
    f"hrm {name}, {gradient}": tiny.make_config(
        **overrides, gradient=gradient, forward_dtype="float64"
    )
    for name, overrides in VARIANTS.items()
    for gradient in GRADIENTS
}


def build(config: ArchConfig) -> ACTLossHead:
    torch.manual_seed(0)
    model = build_model(config, FACTS)
    model.prepare(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def random_carry(inner: Any) -> Latents:
    generator = torch.Generator().manual_seed(1)
    carry = inner.empty_carry(3)
    return {n: torch.randn(z.shape, generator=generator).to(z.dtype) for n, z in carry.items()}


def step(model: ACTLossHead, carry: Latents, examples: Examples) -> tuple[Latents, Any]:
    """Run one pass; return the new state and the outputs."""
    new_carry, answer = inner_of(model)(carry, examples)
    return new_carry, inner_of(model).read(answer, examples)


def written_out(inner: Any, config: Any, carry: Latents, injected: Tensor) -> Latents:
    """Return the latents after one ACT step; gradients begin after `detach`."""
    rotary = (inner.cos, inner.sin) if config.pos_encodings == "rope" else None
    if config.name == "transformer":
        return {"z_H": inner.H_level(carry["z_H"] + injected, rotary)}
    schedule = (["L"] * config.L_cycles + ["H"]) * config.H_cycles
    # HRM's approximation (arXiv:2506.21734): all before the last updates is constant.
    last_step = config.name == "hrm" and config.gradient == "last_step"
    with_gradients = 2 if last_step else config.L_cycles + 1
    H_level = inner.H_level if config.name == "hrm" else inner.L_level
    z_H, z_L = carry.get("z_H", torch.zeros(())), carry["z_L"]
    for number, update in enumerate(schedule):
        if number == len(schedule) - with_gradients:
            z_H, z_L = z_H.detach(), z_L.detach()
        if config.name == "trm_singlez":
            z_L = inner.L_level(z_L + injected if update == "L" else z_L, rotary)
        elif update == "L":
            z_L = inner.L_level(z_L + (z_H + injected), rotary)
        else:
            z_H = H_level(z_H + z_L, rotary)
    return {"z_L": z_L} if config.name == "trm_singlez" else {"z_H": z_H, "z_L": z_L}


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_and_gradients_are_those_of_the_schedule(name: str) -> None:
    model, examples, config = build(CONFIGS[name]).train(), make_examples(), CONFIGS[name]
    inner = inner_of(model)
    carry = random_carry(inner)
    results = []
    for use_twin in (False, True):
        model.zero_grad()
        if use_twin:
            injected = inner.embed_puzzle(examples["inputs"], examples["puzzle_identifiers"])
            new_carry = written_out(inner, config, carry, injected)
            answer = new_carry[inner.latents[0]]
            logits = inner.lm_head(answer)[:, config.num_prefix :]
            q = inner.q_head(answer[:, 0])
        else:
            new_carry, outputs = step(model, carry, examples)
            assert all(z.shape == (3, config.num_prefix + 5, 16) for z in new_carry.values())
            logits = outputs["logits"]
            q = torch.stack((outputs["q_halt_logits"], outputs["q_continue_logits"]), dim=-1)
        assert logits.shape == (3, 5, 7)
        (logits.sin().sum() + q.double().sin().sum()).backward()
        leaves = list(inner.parameters())
        if model.puzzle_embedding is not None:
            leaves.append(model.puzzle_embedding.local_weights)
        assert all(leaf.grad.any() for leaf in leaves)
        states = [new_carry[name].detach() for name in inner.latents]
        grads = [leaf.grad.clone() for leaf in leaves]
        results.append([logits.detach(), q.double().detach(), *states, *grads])
        for leaf in leaves:
            leaf.grad = None
    for actual, expected in zip(*results, strict=True):
        # Q passes through float32.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["hrm mixer, last_step", "trm mixer", "trm_singlez mixer"])
def test_states_have_one_layout_whatever_a_step_uses_inside(name: str) -> None:
    inner = inner_of(build(CONFIGS[name]))
    carry = random_carry(inner)
    scattered = {n: z.permute(2, 1, 0).contiguous().permute(2, 1, 0) for n, z in carry.items()}
    results = [inner(c, make_examples()) for c in (carry, scattered)]
    for states, answer in results:
        assert all(z.is_contiguous() for z in (*states.values(), answer))
    for z in carry:
        assert torch.equal(results[0][0][z], results[1][0][z])


# Gradients


def norms_in_graph(output: Tensor) -> int:
    """Count the halves of blocks in autograd's graph; each ends in a norm."""
    found, pending = set(), [output.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending += [parent for parent, _ in node.next_functions]
    return sum("AddRMSNorm" in node.name() for node in found)


@pytest.mark.parametrize(("gradient", "updates_of_L"), [("last_step", 1), ("last_cycle", 3)])
def test_the_graph_holds_the_last_updates_alone(gradient: str, updates_of_L: int) -> None:
    model = make_model(gradient=gradient, L_cycles=3, L_layers=2, H_layers=3).train()
    carry = random_carry(inner_of(model))
    for z in carry.values():
        z.requires_grad_()
    _, outputs = step(model, carry, make_examples())
    assert norms_in_graph(outputs["logits"]) == 2 * (updates_of_L * 2 + 3)
    outputs["logits"].sum().backward()
    assert all(z.grad is None for z in carry.values())
    x = torch.randn(2, 4, requires_grad=True)
    assert norms_in_graph(add_rms_norm(add_rms_norm(x, x, 1e-5), x, 1e-5)) == 2


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_carry_is_detached(gradient: str) -> None:
    output = first_step(make_model(gradient=gradient, H_cycles=1, L_cycles=1).train())
    assert output.loss.requires_grad
    for name, tensor in {**output.carry.tensors(), **output.metrics, **output.rows}.items():
        assert not tensor.requires_grad, name
        assert tensor.grad_fn is None, name


# Casting


@pytest.mark.parametrize("mlp_t", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_casting_weights_once_changes_no_bit(
    dtype: str, mlp_t: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for cast_once in (True, False):
        if not cast_once:
            monkeypatch.setattr(models.recurrence, "weights_cast_once", lambda *_: nullcontext())
        model = make_model(forward_dtype=dtype, mlp_t=mlp_t).train()
        output = first_step(model)
        output.loss.backward()
        grads = [parameter.grad for parameter in model.parameters()]
        results.append([output.loss, output.outputs["logits"], output.carry.inner["z_L"], *grads])
    for once, each_time in zip(*results, strict=True):
        assert torch.equal(once, each_time)


# Positions, keys and start values


@pytest.mark.parametrize(
    ("positions", "matter"), [("none", False), ("rope", True), ("learned", True)]
)
def test_positions_matter_only_where_they_are_encoded(positions: str, matter: bool) -> None:
    model = make_model(pos_encodings=positions, puzzle_emb_ndim=0, forward_dtype="float64")
    inner, examples = inner_of(model), make_examples()
    carry = inner.reset_carry(torch.ones(3, dtype=torch.bool), inner.empty_carry(3))
    reverse = examples | {"inputs": examples["inputs"].flip(1)}
    first, second = (step(model, carry, e)[1]["logits"] for e in (examples, reverse))
    assert torch.allclose(first, second.flip(1), atol=1e-9) != matter


@pytest.mark.parametrize(
    ("name", "levels", "starts"),
    [
        ("hrm rope, last_step", {"H_level", "L_level"}, {"H_init", "L_init"}),
        ("trm", {"L_level"}, {"H_init", "L_init"}),
        ("trm_singlez", {"L_level"}, {"L_init"}),
        ("transformer", {"H_level"}, {"H_init"}),
    ],
)
def test_the_keys_are_the_published_ones(name: str, levels: set[str], starts: set[str]) -> None:
    model = build(CONFIGS[name])
    state = {key.removeprefix("model.inner.") for key in model.state_dict()}
    assert {key.split(".")[0] for key in state} == (
        levels | starts | {"embed_tokens", "lm_head", "q_head", "puzzle_emb"}
    )
    layers = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    stacks = {f"{level}.layers.0.{layer}.weight" for level in levels for layer in layers}
    assert stacks == {key for key in state if ".layers.0." in key}
    carry = model.initial_carry({"inputs": torch.zeros(2, 5)})
    assert set(carry.inner) == {f"z_{start[0]}" for start in starts}


def test_every_parameter_starts_with_its_std() -> None:
    torch.manual_seed(0)
    D = 256
    sizes = {"hidden_size": D, "puzzle_emb_ndim": D, "H_layers": 1, "L_layers": 2}
    config = HRMConfig.model_validate(sizes | {"pos_encodings": "learned"})
    model = build_model(config, DataFacts(60, 40, 9))
    checked = 0
    for key, tensor in (dict(model.named_parameters()) | dict(model.named_buffers())).items():
        name = key.removeprefix("model.inner.")
        if name == "q_head.bias":
            assert torch.equal(tensor, torch.full((2,), -5.0))
        elif name in ("q_head.weight", "puzzle_emb.weights"):
            assert not tensor.any(), name
        elif name.startswith("puzzle_emb.local"):
            assert not tensor.numel()
        else:
            is_init = name in ("H_init", "L_init")
            std = 1.0 if is_init else (768 if "down_proj" in name else D) ** -0.5
            assert tensor.dtype == (torch.bfloat16 if is_init else torch.float32), name
            # Five standard errors of a standard deviation.
            bound = 5 / math.sqrt(2 * tensor.numel())
            assert tensor.float().std().item() == pytest.approx(std, rel=bound), name
            assert abs(tensor.float().mean().item()) < 5 * std / math.sqrt(tensor.numel()), name
            assert tensor.abs().max().item() <= 2.2737 * std * 1.01, name
            checked += 1
    assert checked == 3 + 2 + 3 * 4  # embeddings and lm_head, H_init and L_init, three blocks


def test_published_sizes() -> None:
    facts = DataFacts(vocab_size=12, seq_len=900, num_puzzle_identifiers=1)
    sizes = {
        config.name: sum(p.numel() for p in build_model(config, facts).parameters())
        for config in (HRMConfig(), TRMConfig(), TransformerConfig())
    }
    # 27 M (arXiv:2506.21734), 7 M (arXiv:2510.04871); the baseline matches HRM layer by layer.
    assert round(sizes["hrm"] / 1e6) == 27
    assert round(sizes["trm"] / 1e6) == 7
    assert sizes["transformer"] == sizes["hrm"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["rope", "learned", "mixer", "no puzzle embedding"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_is_one_graph(variant: str, training: bool) -> None:
    tiny.require_same_compiled(make_model(**VARIANTS[variant]).train(training), "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_compiles_to_the_same_numbers() -> None:
    model = make_model(H_cycles=1, no_ACT_continue=True).train()
    tiny.require_same_compiled(model, "inductor")
