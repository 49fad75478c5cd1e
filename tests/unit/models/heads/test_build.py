"""Heads of built models: initial values, ties, faulty settings."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from models.act import ACTLossHead
from models.config import DataFacts
from models.heads.q import QHead
from models.registry import build_model
from tests.unit.models.tiny import (
    first_step,
    inner_of,
    make_config,
    make_examples,
    make_model,
    require_same_compiled,
)

SOFTMAX = {"loss_type": "softmax_cross_entropy"}
TOKEN_HEADS: dict[str, dict[str, Any]] = {"adaptive": {}, "hierarchical": {}, "tied": {}}
TOKEN_HEADS |= {"linear": {"bias": True}, "factorized": {"rank": 3}, "puzzle": {"rank": 2}}
TOKEN_HEADS |= {"moe": {"top_k": 2}}
AUXILIARY = {"confidence": {}, "attention": {}, "halt": {}}
AUXILIARY |= {"action": {"field": "actions"}, "pixel": {"field": "pixels"}}


def loss_for(lm: str) -> dict[str, Any]:
    return SOFTMAX if lm in ("adaptive", "hierarchical") else {}


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
@pytest.mark.parametrize("name", TOKEN_HEADS)
def test_every_token_head_trains_every_parameter(name: str, norm: str) -> None:
    heads = {"lm": {"name": name, "norm": norm, **TOKEN_HEADS[name]}}
    model, examples = make_model(heads=heads, loss=loss_for(name), signal=True), make_examples()
    output = first_step(model.train(), examples)
    output.loss.backward()
    assert tuple(output.metrics) == model.metric_names
    probabilities = model.log_probs(output.outputs["logits"]).exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 5))
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        # All experts are one parameter, so it does not matter if one gets no cell.
        assert parameter.grad.any(), key


def test_all_auxiliary_heads_together() -> None:
    model = make_model(heads=AUXILIARY, no_ACT_continue=True, signal=True).train()
    examples = make_examples()
    output = first_step(model, examples)
    output.loss.backward()
    assert tuple(output.metrics) == model.metric_names
    assert all(parameter.grad is not None for parameter in model.parameters())
    losses = {name: output.metrics[f"{name}_loss"].item() for name in ("lm", "q_halt", *AUXILIARY)}
    weighted = losses.pop("lm") + 0.5 * sum(losses.values())
    assert output.loss.item() == pytest.approx(weighted, rel=1e-5)
    assert {"confidence_accuracy", "attention_precision", "pixel_accuracy"} <= set(output.rows)


@pytest.mark.parametrize("name", ["action", "pixel"])
def test_a_field_that_the_data_lack_is_named(name: str) -> None:
    config = make_config(heads={name: AUXILIARY[name]})
    with pytest.raises(ValueError, match=rf"arch\.heads\.{name} needs the field '{name}s'"):
        build_model(config, DataFacts(7, 5, 6))


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_dropout_is_for_training_and_has_no_key(norm: str) -> None:
    examples = make_examples()
    plain = make_model(heads={"lm": {"norm": norm}})
    dropping = make_model(heads={"lm": {"norm": norm, "dropout": 0.5}})
    dropping.load_state_dict(plain.state_dict())

    def logits(model: ACTLossHead) -> Tensor:
        return first_step(model, examples).outputs["logits"]

    assert torch.equal(logits(dropping.eval()), logits(plain.eval()))
    dropping.train()
    assert not torch.equal(logits(dropping), logits(dropping))


# Q


def test_the_target_of_q_continue_asks_no_other_head() -> None:
    model, examples = make_model(heads={"pixel": AUXILIARY["pixel"]}).train(), make_examples()
    calls: list[str] = []
    for name, head in model.heads.items():
        head.register_forward_hook(lambda *_, name=name: calls.append(name))
    output = first_step(model, examples)
    assert "target_q_continue" in output.outputs
    assert sorted(calls) == ["lm", "pixel", "q", "q"]


def test_q_starts_where_it_is_told() -> None:
    plain = QHead(make_config())
    own = QHead(make_config(heads={"q": {"init_bias": 1.5, "init_std": 0.25}}))
    assert not plain.weight.any()
    for head, bias in ((plain, -5.0), (own, 1.5)):
        assert head.bias is not None
        assert head.bias.tolist() == [bias, bias]
    assert 0.1 < own.weight.std() < 0.4


def test_without_q_every_row_takes_all_steps() -> None:
    model, examples = make_model(heads={"q": None}).train(), make_examples()
    assert not any("q_head" in key for key in model.state_dict())
    assert model.halting_head is None
    carry = model.initial_carry(examples)
    for step in range(1, 5):
        output = model(carry, examples)
        carry = output.carry
        assert carry.steps.tolist() == [step] * 3
        assert carry.halted.tolist() == [step == 4] * 3
    assert set(model.metric_names) == {"count", "accuracy", "exact_accuracy", "steps", "lm_loss"}
    assert tuple(output.metrics) == model.metric_names
    assert not output.outputs["q_halt_logits"].any()


def test_without_q_the_halt_head_says_when_to_stop() -> None:
    model, examples = make_model(heads={"q": None, "halt": {}}).train(), make_examples()
    assert model.halting_head == "halt_head"
    assert not first_step(model, examples).carry.halted.any()
    with torch.no_grad():
        inner_of(model).halt_head.proj.bias.copy_(torch.tensor([0.0, 0.5]))
    output = first_step(model, examples)
    assert output.carry.halted.all()
    assert output.outputs["q_halt_logits"].tolist() == pytest.approx([0.5] * 3)


# Tied


def test_a_tied_head_is_the_embedding() -> None:
    model = make_model(heads={"lm": {"name": "tied", "norm": "layer"}})
    inner = inner_of(model)
    assert (
        inner.lm_head.projection.weight.data_ptr() == inner.embed_tokens.embedding_weight.data_ptr()
    )
    keys = [key for key in model.state_dict() if "lm_head" in key]
    assert keys == [f"model.inner.lm_head.blocks.0.{name}" for name in ("weight", "bias")]
    inner = inner_of(model.to(torch.float64))
    assert inner.lm_head.projection.weight is inner.embed_tokens.embedding_weight


# Compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    "heads", [*({"lm": {"name": name, **more}} for name, more in TOKEN_HEADS.items()), AUXILIARY]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_with_any_heads_is_one_graph(heads: dict[str, Any]) -> None:
    loss = loss_for(heads.get("lm", {}).get("name", "linear"))
    model = make_model(heads=heads, loss=loss, signal=True).train()
    require_same_compiled(model, "aot_eager")


# Faulty settings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"heads": {"lm": {"name": "adaptive"}}}, "loss=act_softmax"),
        ({"heads": {"lm": {"name": "hierarchical"}}}, "loss=act_softmax"),
        ({"heads": {"lm": {"name": "puzzle"}}, "puzzle_emb_ndim": 0}, "puzzle_emb_ndim=0"),
        ({"heads": {"lm": {"name": "moe", "num_experts": 2, "top_k": 3}}}, "top_k=3"),
        ({"heads": {"lm": {"name": "adaptive", "cutoffs": [4, 4]}}, "loss": SOFTMAX}, "ascend"),
        ({"heads": {"action": {}}}, "field"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        make_config(**settings)
