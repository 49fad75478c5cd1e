"""The exported step computes the same as the model, with named inputs and outputs."""

from functools import partial
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from apps.export.step import ExportedStep, Tensors
from apps.lattice.model import CONTRADICTION, DECIDED
from models.act import ACTLossHead
from models.architectures import ArchConfig
from models.config import DataFacts
from models.registry import build_model

FACTS = DataFacts(6, 16, 4)
SMALL: Any = {"hidden_size": 8, "num_heads": 2, "expansion": 1.0, "forward_dtype": "float32"}
CYCLES: Any = {"H_cycles": 1, "L_cycles": 2, "L_layers": 1}
TRM: Any = {"name": "trm", **CYCLES, "puzzle_emb_ndim": 8, "puzzle_emb_len": 2}
LATTICE: Any = {"name": "lattice", "L_layers": 1, "loops": 2, "strike_below": 0.5}
FORMS: dict[str, Any] = {
    "hrm": {"name": "hrm", **CYCLES, "H_layers": 1, "puzzle_emb_ndim": 8},
    "trm": TRM,
    "trm_singlez": TRM | {"name": "trm_singlez"},
    "mixer": TRM | {"mlp_t": True, "pos_encodings": "none", "puzzle_emb_ndim": 0},
    "transformer": {"name": "transformer", "H_layers": 1, "puzzle_emb_ndim": 8},
    "learned positions": {"name": "hrm", **CYCLES, "H_layers": 1, "pos_encodings": "learned"},
    "dec": {"name": "dec", **CYCLES},
    "dec, units": {"name": "dec", **CYCLES, "units": True},
    "lattice": LATTICE,
    "lattice, states kept": LATTICE | {"keep_states": True, "views": "none"},
    "lattice of digits": LATTICE | {"symmetry": "digits", "units": True, "pos_encodings": "none"},
    "damped": TRM
    | {"no_ACT_continue": False}
    | {"techniques": {"damped_noise": {"damping": 0.9, "noise": 0.0}}},
}
RANDOM = TRM | {"techniques": {"random_starts": {}}}


def built(settings: Any) -> ACTLossHead:
    """Return a tiny model in which all weights matter."""
    torch.manual_seed(0)
    model = build_model(TypeAdapter(ArchConfig).validate_python(SMALL | settings), FACTS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if model.puzzle_embedding is not None:
            model.puzzle_embedding.weights.normal_(std=0.3)
    return model


def puzzles(rows: int, seed: int = 0) -> Tensors:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randint(1, 6, (rows, 16), generator=draws, dtype=torch.int32)
    ids = torch.randint(0, 4, (rows,), generator=draws, dtype=torch.int32)
    return {"inputs": inputs, "puzzle_identifiers": ids}


def inputs_of(step: ExportedStep, given: Tensors) -> Tensors:
    """Return the inputs of the step, from `given` or else zeros."""
    zeros = step.zeros(len(given["inputs"]))
    return zeros | {name: value for name, value in given.items() if name in zeros}


def following(step: ExportedStep, outputs: Tensors) -> Tensors:
    return {name: outputs[f"next_{name}"] for name in step.states}


@torch.no_grad()
def own_steps(model: ACTLossHead, examples: Tensors, number: int) -> list[Tensors]:
    """Return the model's own outputs and latents after each step."""
    carry, expected = model.initial_carry(examples), []
    for _ in range(number):
        carry = model(carry, examples, measured=False).carry
        carry.halted = torch.zeros_like(carry.halted)
        read = model.model.inner.read(model.model.answer_of(carry), carry.examples)
        expected.append(read | carry.inner)
    return expected


def assert_same(outputs: Tensors, expected: Tensors, step: ExportedStep) -> None:
    """Compare in float64, up to a last bit: tensors may have another layout in memory."""
    same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
    for name, latent in step.states.items():
        same(outputs[f"next_{name}"], expected[latent])
    logits = [name for name in outputs if name.endswith("logits")]
    assert "logits" in logits
    for name in logits:
        same(outputs[name], expected[name])
    assert torch.equal(outputs["answers"], expected["logits"].argmax(-1).int())


@pytest.mark.parametrize("form", FORMS)
def test_steps_equal_the_steps_of_the_model(form: str) -> None:
    model, examples = built(FORMS[form] | {"forward_dtype": "float64"}), puzzles(3)
    own = own_steps(model, examples, 3)
    assert own[0]["logits"].dtype == torch.float64
    step = ExportedStep(model.model)
    assert not any(each.requires_grad for each in (*step.parameters(), *step.buffers()))
    given = inputs_of(step, examples)
    assert ("puzzle_identifiers" in given) == (model.puzzle_embedding is not None)
    for number, expected in enumerate(own):
        given["new"] = torch.full((3,), number == 0)
        outputs = step(given)
        assert_same(outputs, expected, step)
        given |= following(step, outputs)


@pytest.mark.parametrize("form", ["hrm", "lattice", "lattice, states kept"])
def test_new_rows_begin_beside_others_that_go_on(form: str) -> None:
    model, first, second = built(FORMS[form]), puzzles(2, seed=1), puzzles(2, seed=2)
    step = ExportedStep(model.model)
    one = step(inputs_of(step, first) | {"new": torch.tensor([True, True])})
    mixed = {name: torch.stack([first[name][0], second[name][1]]) for name in first}
    go_on = inputs_of(step, mixed) | following(step, one) | {"new": torch.tensor([False, True])}
    outputs = step(go_on)
    after = own_steps(model, first, 2)[1]["logits"][0]
    begun = own_steps(model, second, 1)[0]["logits"][1]
    # Rows of a batch share matrix products, so rounding differs.
    torch.testing.assert_close(outputs["logits"], torch.stack([after, begun]), rtol=0, atol=1e-5)
    assert (after - begun).abs().max() > 1e-3


def test_random_starts_are_given_by_the_caller() -> None:
    model, examples = built(RANDOM), puzzles(2)
    step = ExportedStep(model.model)
    assert set(step.zeros(2)) == {"inputs", "puzzle_identifiers", "z_H", "z_L"}
    draws = torch.Generator().manual_seed(0)
    starts = {name: torch.randn(2, 18, 8, generator=draws) for name in step.states}
    outputs, twin = (step(inputs_of(step, examples) | starts) for _ in range(2))
    latents, states = model.model.inner(starts, examples)
    assert torch.equal(outputs["next_z_L"], latents["z_L"])
    assert torch.equal(outputs["logits"], model.model.inner.read(states, examples)["logits"])
    assert torch.equal(outputs["logits"], twin["logits"])


HEADS: dict[str, tuple[Any, set[str]]] = {
    "Q learns to continue": ({"no_ACT_continue": False}, {"q_halt", "q_continue_logits"}),
    "Q learns to halt": ({}, {"q_halt"}),
    "a single step has no choice": ({"no_ACT_continue": False, "halt_max_steps": 1}, {"q_halt"}),
    "no Q": ({"heads": {"q": None}}, set()),
    "another head halts": ({"heads": {"q": None, "halt": {}}}, {"q_halt", "halt_logits"}),
    "further heads": ({"heads": {"confidence": {}}}, {"q_halt", "confidence_logits"}),
}


@pytest.mark.parametrize("case", HEADS)
def test_outputs_that_no_head_predicts_are_missing(case: str) -> None:
    settings, expected = HEADS[case]
    step = ExportedStep(built(TRM | settings).model)
    outputs = step(inputs_of(step, puzzles(2)))
    always = {"next_z_H", "next_z_L", "answers", "logits"}
    always |= {"q_halt_logits"} if "q_halt" in expected else set()
    assert set(outputs) == always | expected
    if "q_halt" in expected:
        assert torch.equal(outputs["q_halt"], outputs["q_halt_logits"].sigmoid())


def test_a_lattice_has_candidates_and_a_verdict() -> None:
    model = built(LATTICE)
    inner: Any = model.model.inner
    with torch.no_grad():
        inner.heads["candidates"].proj.weight.zero_()
        inner.heads["candidates"].proj.bias.copy_(torch.tensor([9.0, 9, 9, 9, -9, -9]))
        inner.heads["contradiction"].proj.weight.zero_()
        inner.heads["contradiction"].proj.bias.fill_(-9.0)
    step = ExportedStep(model.model)
    inputs = torch.full((3, 16), 2, dtype=torch.int32)  # The digit 1 everywhere.
    inputs[1, 0] = 1
    given = inputs_of(step, {"inputs": inputs, "new": torch.ones(3, dtype=torch.bool)})
    given["new"][2] = False
    outputs = step(given)
    assert outputs["next_candidates"][1, 0].tolist() == [False, False, True, True, False, False]
    assert not outputs["next_candidates"][2].any()
    assert outputs["verdict"].tolist() == [DECIDED, 0, CONTRADICTION]
