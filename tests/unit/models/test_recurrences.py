"""TRM, its variant with one latent, and the transformer: the schedule of each, written out."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from models.act import ACTLossHead
from models.carry import Latents
from models.config import ArchConfig, DataFacts, HRMConfig, TransformerConfig, TRMConfig
from models.registry import build_model
from tests.unit.models.tiny import first_step, inner_of, make_examples

FACTS = DataFacts(vocab_size=7, seq_len=5, num_puzzle_identifiers=6)
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_heads": 2,
    "expansion": 2.0,
    "puzzle_emb_ndim": 16,
    "halt_max_steps": 4,
    "forward_dtype": "float64",
}
TRM = {**SMALL, "H_cycles": 3, "L_cycles": 2, "L_layers": 2, "puzzle_emb_len": 2}

CONFIGS: dict[str, ArchConfig] = {
    "trm": TRMConfig(**TRM),
    "trm mixer": TRMConfig(**TRM, mlp_t=True, pos_encodings="none"),
    "trm_singlez": TRMConfig(**TRM, name="trm_singlez"),
    "trm_singlez mixer": TRMConfig(**TRM, name="trm_singlez", mlp_t=True, pos_encodings="none"),
    "transformer": TransformerConfig(**SMALL, H_layers=3),
    "transformer learned": TransformerConfig(**SMALL, H_layers=3, pos_encodings="learned"),
    "transformer mixer": TransformerConfig(**SMALL, H_layers=2, mlp_t=True, puzzle_emb_len=3),
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
    return {
        name: torch.randn(z.shape, generator=generator, dtype=z.dtype)
        for name, z in inner.empty_carry(3).items()
    }


def written_out(inner: Any, config: Any, carry: Latents, injected: Tensor) -> Tensor:
    """The answer after one ACT step; `detach` marks where gradients begin."""
    rotary = inner.rotary_emb() if config.pos_encodings == "rope" else None
    if config.name == "transformer":
        return inner.H_level(carry["z_H"] + injected, rotary)
    if config.name == "trm_singlez":
        z = carry["z_L"]
        for cycle in range(config.H_cycles):
            z = z.detach() if cycle == config.H_cycles - 1 else z
            for _ in range(config.L_cycles):
                z = inner.L_level(z + injected, rotary)
            z = inner.L_level(z, rotary)
        return z
    answer, latent = carry["z_H"], carry["z_L"]
    for cycle in range(config.H_cycles):
        if cycle == config.H_cycles - 1:
            answer, latent = answer.detach(), latent.detach()
        for _ in range(config.L_cycles):
            latent = inner.L_level(latent + answer + injected, rotary)
        answer = inner.L_level(answer + latent, rotary)
    return answer


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_and_gradients_are_those_of_the_schedule(name: str) -> None:
    model, examples = build(CONFIGS[name]).train(), make_examples()
    inner = inner_of(model)
    carry = random_carry(inner)
    results = []
    for use_twin in (False, True):
        model.zero_grad()
        if use_twin:
            injected = inner._embed(examples["inputs"], examples["puzzle_identifiers"])
            answer = written_out(inner, CONFIGS[name], carry, injected)
            logits = inner.lm_head(answer)[:, inner.num_prefix :]
            q = inner.q_head(answer[:, 0])
        else:
            outputs = inner.read(inner(carry, examples)[1], examples)
            logits = outputs["logits"]
            q = torch.stack((outputs["q_halt_logits"], outputs["q_continue_logits"]), dim=-1)
        (logits.sin().sum() + q.double().sin().sum()).backward()
        grads = [parameter.grad.clone() for parameter in inner.parameters()]
        results.append([logits.detach(), q.detach().double(), *grads])
    for actual, expected in zip(*results, strict=True):
        # Q passes through float32.
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_learns(name: str) -> None:
    model, examples = build(CONFIGS[name]).train(), make_examples()
    output = first_step(model, examples)
    output.loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.any(), key


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("no_continue", [True, False])
def test_q_continue_is_learned_only_when_asked_for(name: str, no_continue: bool) -> None:
    config = CONFIGS[name].model_copy(update={"no_ACT_continue": no_continue})
    model, examples = build(config).train(), make_examples()
    output = first_step(model, examples)
    assert ("q_continue_loss" in output.metrics) == (not no_continue)


SAVED = {**TRM, "name": "hrm", "H_layers": 4, "gradient": "last_cycle", "no_ACT_continue": False}


def test_an_hrm_that_was_saved_with_shared_levels_is_trm() -> None:
    saved = SAVED | {"shared_levels": True, "puzzle_emb_len": 0}
    read = TypeAdapter(ArchConfig).validate_python(saved)
    trm = TRM | {"no_ACT_continue": False, "puzzle_emb_len": 0}
    assert read == TRMConfig(**trm)
    # What a saved configuration lacks was at HRM's default.
    for name in ("puzzle_emb_len", "no_ACT_continue", "H_cycles"):
        del saved[name]
    assert TypeAdapter(ArchConfig).validate_python(saved) == TRMConfig(**trm | {"H_cycles": 2})


def test_shared_levels_is_dropped_or_refused_where_it_is_no_trm() -> None:
    hrm = {key: value for key, value in SAVED.items() if key != "gradient"}
    read = TypeAdapter(ArchConfig).validate_python(hrm | {"shared_levels": False})
    assert read == HRMConfig.model_validate(hrm)
    with pytest.raises(ValidationError, match="one stack for both levels is not supported"):
        TypeAdapter(ArchConfig).validate_python(hrm | {"shared_levels": True})


@pytest.mark.parametrize(
    ("name", "levels", "starts"),
    [
        ("trm", {"L_level"}, {"H_init", "L_init"}),
        ("trm_singlez", {"L_level"}, {"L_init"}),
        ("transformer", {"H_level"}, {"H_init"}),
    ],
)
def test_the_keys_are_the_published_ones(name: str, levels: set[str], starts: set[str]) -> None:
    model = build(CONFIGS[name])
    keys = {key.removeprefix("model.inner.").split(".")[0] for key in model.state_dict()}
    assert keys == levels | starts | {"embed_tokens", "lm_head", "q_head", "puzzle_emb"}
    carry = model.initial_carry({"inputs": torch.zeros(2, 5)})
    assert set(carry.inner) == {f"z_{start[0]}" for start in starts}


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
