"""Heads of built models: start values, ties, what is asked for in part, what is missing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from models.act import Examples
from models.config import DataFacts, HRMConfig, QHeadConfig, TRMConfig
from models.heads.build import QHead
from models.losses import ACTLossHead
from models.registry import build_model

MakeExamples = Callable[..., Examples]

FACTS = DataFacts(7, 5, 6, fields={"actions": (4, 0), "pixels": (8, 3)})
SMALL = {
    "H_layers": 1,
    "L_layers": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "expansion": 1.0,
    "puzzle_emb_ndim": 16,
    "halt_max_steps": 4,
    "forward_dtype": "float32",
}
SOFTMAX = {"loss_type": "softmax_cross_entropy"}
TOKEN_HEADS: dict[str, dict[str, Any]] = {
    "linear": {"bias": True},
    "tied": {},
    "factorized": {"rank": 3},
    "adaptive": {},
    "puzzle": {"rank": 2},
    "moe": {"top_k": 2},
    "hierarchical": {},
}
FURTHER = {
    "confidence": {},
    "attention": {},
    "action": {"field": "actions"},
    "pixel": {"field": "pixels"},
    "halt": {},
}


def build(heads: dict[str, Any], loss: dict[str, Any] | None = None, **arch: Any) -> ACTLossHead:
    torch.manual_seed(0)
    settings = SMALL | {"heads": heads, "loss": loss or {}} | arch
    model = build_model(HRMConfig.model_validate(settings), FACTS)
    model.prepare(3)
    if model.puzzle_embedding is not None:
        model.puzzle_embedding.weights.normal_(std=0.3)
    return model


def with_fields(examples: Examples) -> Examples:
    generator = torch.Generator().manual_seed(3)
    actions = torch.randint(4, (3, 5), generator=generator, dtype=torch.int32)
    pixels = torch.randint(8, (3, 5, 3), generator=generator, dtype=torch.int32)
    return examples | {"actions": actions, "pixels": pixels}


def inner_of(model: ACTLossHead) -> Any:
    return model.model.inner


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
@pytest.mark.parametrize("name", TOKEN_HEADS)
def test_every_token_head_trains_every_parameter(
    name: str, norm: str, make_examples: MakeExamples
) -> None:
    heads = {"lm": {"name": name, "norm": norm, **TOKEN_HEADS[name]}}
    softmax = SOFTMAX if name in ("adaptive", "hierarchical") else {}
    model, examples = build(heads, softmax), make_examples()
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    output = model(model.initial_carry(examples), examples)
    output.loss.backward()
    assert tuple(output.metrics) == model.metric_names
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        # Of 2 of 4 experts one may not be asked; it is in the sum all the same.
        assert parameter.grad.any(), key


def test_all_further_heads_together(make_examples: MakeExamples) -> None:
    model = build(FURTHER, no_ACT_continue=True).train()
    examples = with_fields(make_examples())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    output = model(model.initial_carry(examples), examples)
    output.loss.backward()
    assert tuple(output.metrics) == model.metric_names
    assert all(parameter.grad is not None for parameter in model.parameters())
    losses = {name: output.metrics[f"{name}_loss"].item() for name in ("lm", "q_halt", *FURTHER)}
    weighed = losses.pop("lm") + 0.5 * sum(losses.values())
    assert output.loss.item() == pytest.approx(weighed, rel=1e-5)
    assert {"confidence_accuracy", "attention_precision", "pixel_accuracy"} <= set(output.rows)


@pytest.mark.parametrize("name", ["action", "pixel"])
def test_a_field_that_the_data_lack_is_named(name: str) -> None:
    config = HRMConfig.model_validate(SMALL | {"heads": {name: FURTHER[name]}})
    with pytest.raises(ValueError, match=rf"arch\.heads\.{name} needs the field '{name}s'"):
        build_model(config, DataFacts(7, 5, 6))


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_dropout_is_for_training_and_has_no_key(norm: str, make_examples: MakeExamples) -> None:
    examples = make_examples()
    plain, dropping = build({"lm": {"norm": norm}}), build({"lm": {"norm": norm, "dropout": 0.5}})
    dropping.load_state_dict(plain.state_dict())

    def logits(model: ACTLossHead) -> Tensor:
        return model(model.initial_carry(examples), examples).output.logits

    assert torch.equal(logits(dropping.eval()), logits(plain.eval()))
    dropping.train()
    assert not torch.equal(logits(dropping), logits(dropping))


# Q


def test_the_target_of_q_continue_asks_no_other_head(make_examples: MakeExamples) -> None:
    model, examples = build({"pixel": FURTHER["pixel"]}).train(), with_fields(make_examples())
    calls: list[str] = []
    for name in ("lm_head", "q_head", "pixel_head"):
        head = getattr(inner_of(model), name)
        head.register_forward_hook(lambda *_, name=name: calls.append(name))
    output = model(model.initial_carry(examples), examples)
    assert output.output.target_q_continue is not None
    # with_balance of a plain projection calls it.
    assert sorted(calls) == ["lm_head", "pixel_head", "q_head", "q_head"]


def test_q_starts_where_it_is_told() -> None:
    plain = inner_of(build({})).q_head
    assert not plain.weight.any()
    assert plain.bias.tolist() == [-5.0, -5.0]
    own = inner_of(build({"q": {"init_bias": 1.5, "init_std": 0.25}})).q_head
    assert own.bias.tolist() == [1.5, 1.5]
    assert 0.1 < own.weight.std() < 0.4


def test_the_gradient_of_q() -> None:
    torch.manual_seed(0)
    head = QHead(4, QHeadConfig(init_std=0.5)).double()
    answer = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    # The parameters are changed where they are.
    assert torch.autograd.gradcheck(
        lambda answer, *_: head.read(answer), (answer, *head.parameters())
    )


@pytest.mark.parametrize(
    ("q", "no_continue", "compares"),
    [({}, False, True), ({}, True, False), ({"rule": "zero"}, False, False)],
)
def test_the_halting_rule(q: dict[str, Any], no_continue: bool, compares: bool) -> None:
    model = build({"q": q}, no_ACT_continue=no_continue)
    assert model.model.rule is not None
    assert model.model.rule.compares == compares
    assert model.model.learns_continue != no_continue


def test_without_q_every_row_takes_all_steps(make_examples: MakeExamples) -> None:
    model, examples = build({"q": None}).train(), make_examples()
    assert not any("q_head" in key for key in model.state_dict())
    carry = model.initial_carry(examples)
    for step in range(1, 5):
        output = model(carry, examples)
        carry = output.carry
        assert carry.steps.tolist() == [step] * 3
        assert carry.halted.tolist() == [step == 4] * 3
    assert set(model.metric_names) == {"count", "accuracy", "exact_accuracy", "steps", "lm_loss"}
    assert tuple(output.metrics) == model.metric_names


def test_without_q_the_halt_head_says_when_to_stop(make_examples: MakeExamples) -> None:
    model, examples = build({"q": None, "halt": {}}).train(), make_examples()
    assert not model(model.initial_carry(examples), examples).carry.halted.any()
    with torch.no_grad():
        inner_of(model).halt_head.proj.bias.copy_(torch.tensor([0.0, 0.5]))
    output = model(model.initial_carry(examples), examples)
    assert output.carry.halted.all()
    assert output.output.q_halt_logits.tolist() == pytest.approx([0.5] * 3)


# Tied


def test_a_tied_head_is_the_embedding() -> None:
    model = build({"lm": {"name": "tied", "norm": "layer"}})
    inner = inner_of(model)
    assert inner.lm_head.weight.data_ptr() == inner.embed_tokens.embedding_weight.data_ptr()
    keys = [key for key in model.state_dict() if "lm_head" in key]
    assert keys == [f"model.inner.lm_head.blocks.0.{name}" for name in ("weight", "bias")]
    moved = model.to(torch.float64)
    inner = inner_of(moved)
    assert inner.lm_head.weight is inner.embed_tokens.embedding_weight


def test_gradients_of_both_uses_add_up(make_examples: MakeExamples) -> None:
    """The tied gradient is the sum of those of a twin with two equal matrices."""
    tied, twin, examples = build({"lm": {"name": "tied"}}), build({}), make_examples()
    state = tied.state_dict()
    state["model.inner.lm_head.weight"] = state["model.inner.embed_tokens.embedding_weight"]
    twin.load_state_dict(state)
    outputs = [model.train()(model.initial_carry(examples), examples) for model in (tied, twin)]
    assert torch.equal(outputs[0].loss, outputs[1].loss)
    for output in outputs:
        output.loss.backward()
    both = inner_of(twin).embed_tokens.embedding_weight.grad + inner_of(twin).lm_head.weight.grad
    torch.testing.assert_close(inner_of(tied).embed_tokens.embedding_weight.grad, both)


# Parts of the logits


@pytest.mark.parametrize("name", TOKEN_HEADS)
def test_logits_of_chosen_cells_and_tokens(name: str, make_examples: MakeExamples) -> None:
    softmax = SOFTMAX if name in ("adaptive", "hierarchical") else {}
    model = build({"lm": {"name": name, "norm": "rms", **TOKEN_HEADS[name]}}, softmax).eval()
    examples = make_examples()
    inner, read = inner_of(model), model.model.read
    with torch.no_grad():
        _, answer = inner(inner.empty_carry(3), examples)
        whole = read(answer, examples).logits
        cells, tokens = torch.tensor([4, 0]), torch.tensor([6, 2, 3])
        part = read.token_logits(answer, examples, positions=cells, tokens=tokens)  # type: ignore[attr-defined]
        torch.testing.assert_close(part, whole[:, cells][..., tokens])
        torch.testing.assert_close(read.token_logits(answer, examples), whole)  # type: ignore[attr-defined]
        probabilities = model.log_probs(whole).exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 5))


# Compiled

SAGE = {"q": None, **{name: FURTHER[name] for name in ("confidence", "action", "pixel", "halt")}}
ENHANCED = {"confidence": {}, "attention": {}}


@pytest.fixture
def require_heads_compile(
    make_examples: MakeExamples, require_same_compiled: Callable[..., None]
) -> Callable[..., None]:
    def require(heads: dict[str, Any], backend: str, **arch: Any) -> None:
        lm = heads.get("lm", {}).get("name")
        model = build(heads, SOFTMAX if lm in ("adaptive", "hierarchical") else {}, **arch).train()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        fields = [heads[name]["field"] for name in ("action", "pixel") if name in heads]

        def examples(seed: int = 0) -> Examples:
            plain = make_examples(seed=seed)
            told = with_fields(plain)
            return plain | {field: told[field] for field in fields}

        require_same_compiled(model, examples, backend=backend)

    return require


@pytest.mark.slow
@pytest.mark.parametrize(
    "heads", [*({"lm": {"name": name, **more}} for name, more in TOKEN_HEADS.items()), FURTHER]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_with_any_heads_is_one_graph(
    heads: dict[str, Any], require_heads_compile: Callable[..., None]
) -> None:
    require_heads_compile(heads, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("heads", [ENHANCED, SAGE], ids=["enhanced", "sage"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_with_further_heads_compiles_to_the_same_numbers(
    heads: dict[str, Any], require_heads_compile: Callable[..., None]
) -> None:
    require_heads_compile(heads, "inductor", H_cycles=1, no_ACT_continue=True)


# What does not fit


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"heads": {"lm": {"name": "adaptive"}}}, "loss=act_softmax"),
        ({"heads": {"lm": {"name": "hierarchical"}}}, "loss=act_softmax"),
        ({"heads": {"lm": {"name": "puzzle"}}, "puzzle_emb_ndim": 0}, "puzzle_emb_ndim=0"),
        ({"heads": {"lm": {"name": "moe", "num_experts": 2, "top_k": 3}}}, "top_k=3"),
        ({"heads": {"lm": {"name": "adaptive", "cutoffs": [4, 4]}}, "loss": SOFTMAX}, "ascend"),
        ({"heads": {"q": {"halt_min_steps": 5}}}, "halt_max_steps=4"),
        ({"heads": {"q": {"rule": "continue"}}, "no_ACT_continue": True}, "rule=zero"),
        ({"heads": {"action": {}}}, "field"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        HRMConfig.model_validate(SMALL | settings)


def test_a_single_latent_has_the_heads_too(make_examples: MakeExamples) -> None:
    settings = {key: value for key, value in SMALL.items() if key != "H_layers"}
    config = TRMConfig.model_validate(settings | {"name": "trm_singlez", "heads": FURTHER})
    model, examples = build_model(config, FACTS), with_fields(make_examples())
    model.prepare(3)
    output = model.train()(model.initial_carry(examples), examples)
    assert tuple(output.metrics) == model.metric_names
