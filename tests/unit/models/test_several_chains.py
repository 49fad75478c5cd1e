"""Several chains of each puzzle in training, of which the best one counts (arXiv:2601.19085)."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from models.act import ACTLossHead, LossOutput
from models.carry import ACTCarry, Exploration, Latents
from tests.unit.models.tiny import inner_of, make_examples, make_model

K, ROWS = 4, 3
STAYS = Exploration(torch.full((ROWS,), 9, dtype=torch.int32))  # No slot halts early.


def make(chains: int, **overrides: Any) -> ACTLossHead:
    settings = {"chains": chains, "init": "random", "forward_dtype": "float64", **overrides}
    return make_model(signal=True, **settings).train()


def after_one_step(model: ACTLossHead) -> ACTCarry:
    torch.manual_seed(1)
    return model(model.initial_carry(make_examples()), make_examples(1), STAYS).carry


def with_latents(carry: ACTCarry, latents: Latents) -> ACTCarry:
    return replace(carry, inner=latents)


def gradient_of(model: ACTLossHead, output: LossOutput) -> Tensor:
    output.loss.backward()
    leaves: list[Any] = [*model.parameters(), inner_of(model).puzzle_emb.local_weights]
    return torch.cat([leaf.grad.flatten() for leaf in leaves])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mlp_t": True, "pos_encodings": "none", "gradient": "last_cycle"},
        {"heads": {"lm": {"name": "puzzle"}, "confidence": {}}},
    ],
)
def test_a_step_is_that_of_the_chain_with_the_lowest_loss(settings: dict[str, Any]) -> None:
    model, single = make(K, **settings), make(1, **settings)
    carry = after_one_step(model)
    z_H = carry.inner["z_H"]
    own = [{"z_H": z_H, "z_L": z} for z in carry.inner["z_L"].unflatten(0, (ROWS, K)).unbind(1)]
    offered = make_examples(2)
    alone = [single(with_latents(carry, latents), offered, STAYS) for latents in own]
    best = torch.stack([output.rows["lm_loss"] for output in alone]).argmin(0)
    assert best.any()  # Not the first chain in each row.
    z_L = torch.stack([own[k]["z_L"][row] for row, k in enumerate(best)])

    twin = single(with_latents(carry, {"z_H": z_H, "z_L": z_L}), offered, STAYS)
    output = model(carry, offered, STAYS)
    assert_close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12)
    assert_close(output.loss, twin.loss)
    assert_close(output.metrics, twin.metrics)
    assert_close(output.outputs, twin.outputs)
    # Tables and casts are float32.
    found, expected = gradient_of(model, output), gradient_of(single, twin)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # All chains go on from the winner's answer, each with its own reasoning.
    assert_close(output.carry.inner["z_H"], twin.carry.inner["z_H"])
    kept = torch.stack([one.carry.inner["z_L"] for one in alone], 1).flatten(0, 1)
    assert_close(output.carry.inner["z_L"], kept)


def test_chains_start_apart_and_again_where_their_slot_halts() -> None:
    model = make(K)
    carry = after_one_step(model)
    starts = carry.inner["z_L"].view(ROWS, K, -1)
    assert all(len({tuple(z.tolist()) for z in of_slot}) == K for of_slot in starts)
    carry = replace(carry, halted=torch.tensor([False, True, False]))
    steps = model(carry, make_examples(2), STAYS).carry.steps
    assert steps.tolist() == [2, 1, 2]
    seen = []
    inner_of(model).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(carry, make_examples(2), STAYS)
    given = seen[0]["z_L"].view(ROWS, K, -1)
    same = (given == starts).all(-1)
    answers = seen[0]["z_H"].view(ROWS, K, -1)
    assert torch.equal(answers, answers[:, :1].expand_as(answers))
    assert same.tolist() == [[True] * K, [False] * K, [True] * K]


def test_the_winner_says_when_a_slot_halts_and_evaluations_have_one_chain() -> None:
    model = make(K)
    free = Exploration(torch.zeros(ROWS, dtype=torch.int32))
    output = model(model.initial_carry(make_examples()), make_examples(1), free)
    wants = output.outputs["q_halt_logits"] > output.outputs["q_continue_logits"]
    assert output.carry.halted.shape == (ROWS,)
    assert torch.equal(output.carry.halted, wants)
    assert output.carry.num_chains == K
    carry = model.eval().initial_carry(make_examples())
    assert carry.num_chains == 1
    assert model(carry, make_examples()).carry.inner["z_L"].shape == carry.inner["z_L"].shape


def test_a_carry_is_cut_between_slots() -> None:
    carry = after_one_step(make(K))
    parts = carry.split(ROWS)
    assert [part.num_chains for part in parts] == [K] * ROWS
    assert torch.equal(parts[1].inner["z_L"], carry.inner["z_L"][K : 2 * K])
    torch.testing.assert_close(ACTCarry.join(parts).tensors(), carry.tensors(), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_chains_are_the_same() -> None:
    model = make(K, forward_dtype="float32")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    carry = after_one_step(model)
    inner_of(model).starts_anywhere = False  # What torch draws there is no graph.
    for step in range(2):
        offered = make_examples(step)
        output, twin = compiled(carry, offered, STAYS), model(carry, offered, STAYS)
        torch.testing.assert_close(output.loss, twin.loss, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(output.carry.tensors(), twin.carry.tensors())
        carry = twin.carry
