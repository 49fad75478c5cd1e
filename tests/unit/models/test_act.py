"""Adaptive computation time on a scripted recurrence with Q values chosen by the test."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.act import ACT, ACTCarry, Drawn, min_halt_steps
from models.heads.base import Answer, Examples, Head, Outputs
from models.heads.q import QHead
from models.hrm.config import HRMConfig
from models.recurrence import Latents
from models.technique import TechniquesConfig
from runtime.streams import Address
from tests.unit.models.tiny import first_step, make_examples, make_model

START_H, START_L = 100.0, 200.0

Q = tuple[list[float], list[float]]


class ScriptedQ(QHead):
    """A Q head with a script: one pair (q_halt, q_continue) a call, and then the last one."""

    def __init__(self, config: HRMConfig, script: tuple[Q, ...]) -> None:
        super().__init__(config)
        self.script = list(script)

    def read(self, answer: Answer) -> Outputs:
        halt, proceed = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        scale = answer.states
        return {
            "q_halt_logits": torch.tensor(halt) * scale,
            "q_continue_logits": torch.tensor(proceed) * scale,
        }


class Scripted(nn.Module):
    """A recurrence that counts: each call adds 1 to z_H and 2 to z_L, and reads the inputs."""

    latents = ("z_H", "z_L")
    techniques = TechniquesConfig()

    def __init__(self, config: HRMConfig, script: tuple[Q, ...]) -> None:
        super().__init__()
        self.heads: dict[str, Head] = {"q": ScriptedQ(config, script)} if config.heads.q else {}
        self.weight = nn.Parameter(torch.ones(()))
        self.calls: list[tuple[Tensor, Examples, bool]] = []

    def draw_by(self, keys: Tensor | None, steps: Tensor) -> None:
        assert keys is None

    def empty_carry(self, batch_size: int) -> Latents:
        return {"z_H": torch.zeros(batch_size, 2, 1), "z_L": torch.zeros(batch_size, 2, 1)}

    def reset_carry(self, reset: Tensor, carry: Latents) -> Latents:
        where = reset.view(-1, 1, 1)
        starts = {"z_H": START_H, "z_L": START_L}
        return {name: torch.where(where, starts[name], z) for name, z in carry.items()}

    def forward(self, carry: Latents, examples: Examples) -> tuple[Latents, Tensor]:
        self.calls.append((carry["z_H"][:, 0, 0].clone(), examples, torch.is_grad_enabled()))
        return {"z_H": carry["z_H"] + 1, "z_L": carry["z_L"] + 2}, self.weight

    def answer(self, states: Tensor, examples: Examples) -> Answer:
        return Answer(states)

    def read(self, states: Tensor, examples: Examples) -> Outputs:
        outputs = {"logits": examples["inputs"].float().unsqueeze(-1) * states}
        for head in self.heads.values():
            outputs |= head.read(Answer(states))
        return outputs


def offer(number: int, batch_size: int = 3) -> Examples:
    """Return batch `number`; its row r holds 10 * number + r everywhere."""
    rows = 10 * number + torch.arange(batch_size, dtype=torch.int32)
    cells = rows[:, None].expand(-1, 2).contiguous()
    return {"inputs": cells, "labels": cells + 1000, "puzzle_identifiers": rows.clone()}


def min_steps(*steps: int) -> Drawn:
    return {"min_steps": torch.tensor(steps, dtype=torch.int32)}


def working_on(carry: ACTCarry) -> list[int]:
    rows = carry.examples["puzzle_identifiers"]
    assert torch.equal(carry.examples["inputs"], rows[:, None].expand(-1, 2))
    assert torch.equal(carry.examples["labels"], rows[:, None].expand(-1, 2) + 1000)
    return rows.tolist()


def build(*script: Q, halt_max_steps: int = 4, learns_continue: bool = True) -> ACT:
    config = HRMConfig.model_validate(
        {"halt_max_steps": halt_max_steps, "no_ACT_continue": not learns_continue}
        | {"hidden_size": 8, "num_heads": 1}
    )
    inner: Any = Scripted(config, script)
    return ACT(inner, config).train()


def calls_of(act: ACT) -> list[tuple[Tensor, Examples, bool]]:
    inner: Any = act.inner
    return inner.calls


def test_halted_slots_take_the_row_offered_the_others_discard_it() -> None:
    # Only slot 1 wants to halt, and only at the first step.
    wants, waits = ([-1.0, 1.0, -1.0], [0.0] * 3), ([-1.0] * 3, [0.0] * 3)
    act = build(wants, waits)
    carry, _ = act(act.initial_carry(offer(0)), offer(1))
    assert carry.halted.tolist() == [False, True, False]
    # The halted slot keeps its example until the next step: the loss is measured on it.
    assert working_on(carry) == [10, 11, 12]

    carry, _ = act(carry, offer(2))
    assert working_on(carry) == [10, 21, 12]
    assert carry.steps.tolist() == [2, 1, 2]
    assert carry.inner["z_H"][:, 0, 0].tolist() == [START_H + 2, START_H + 1, START_H + 2]
    assert carry.inner["z_L"][:, 0, 0].tolist() == [START_L + 4, START_L + 2, START_L + 4]
    assert not carry.halted.any()

    # Rows 20 and 22 were discarded: they never come back.
    carry, _ = act(carry, offer(3))
    assert working_on(carry) == [10, 21, 12]
    carry, _ = act(carry, offer(4))
    assert carry.halted.tolist() == [True, False, True]
    carry, _ = act(carry, offer(5))
    assert working_on(carry) == [50, 21, 52]
    assert carry.steps.tolist() == [1, 4, 1]
    assert carry.halted.tolist() == [False, True, False]


def test_hrm_halts_when_q_halt_is_above_q_continue_or_at_the_last_step() -> None:
    act = build(([0.5, 0.5, -0.2], [0.5, 0.4, -0.3]))
    carry, _ = act(act.initial_carry(offer(0)), offer(1))
    assert carry.halted.tolist() == [False, True, True]

    act = build(([-9.0] * 3, [9.0] * 3), halt_max_steps=2)
    carry, _ = act(act.initial_carry(offer(0)), offer(1))
    assert carry.halted.tolist() == [False] * 3
    carry, _ = act(carry, offer(2))
    assert carry.halted.tolist() == [True] * 3
    assert carry.steps.tolist() == [2] * 3


def test_trm_halts_when_q_halt_is_positive_whatever_q_continue_says() -> None:
    act = build(([0.0, 0.1, -0.1], [-5.0, 5.0, -5.0]), learns_continue=False)
    carry, outputs = act(act.initial_carry(offer(0)), offer(1))
    assert carry.halted.tolist() == [False, True, False]
    assert "target_q_continue" not in outputs
    assert len(calls_of(act)) == 1


def test_exploration_delays_halting_but_not_beyond_the_last_step() -> None:
    act = build(([1.0] * 3, [0.0] * 3), halt_max_steps=3)
    carry, _ = act(act.initial_carry(offer(0)), offer(1), min_steps(0, 2, 3))
    assert carry.halted.tolist() == [True, False, False]
    carry, _ = act(carry, offer(2), min_steps(0, 2, 3))
    assert carry.halted.tolist() == [True, True, False]
    assert carry.steps.tolist() == [1, 2, 2]
    carry, _ = act(carry, offer(3), min_steps(2, 2, 3))
    assert carry.halted.tolist() == [False, False, True]
    assert carry.steps.tolist() == [1, 1, 3]
    # Exploration never makes a slot halt.
    act = build(([-1.0] * 3, [0.0] * 3))
    carry, _ = act(act.initial_carry(offer(0)), offer(1), min_steps(0, 1, 2))
    assert not carry.halted.any()


@pytest.mark.parametrize("learns_continue", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_with_one_step_every_step_halts_and_nothing_is_bootstrapped(
    learns_continue: bool, training: bool
) -> None:
    act = build(([-9.0] * 3, [9.0] * 3), halt_max_steps=1, learns_continue=learns_continue)
    act.train(training)
    carry = act.initial_carry(offer(0))
    for number in (1, 2, 3):
        carry, outputs = act(carry, offer(number), min_steps(0, 0, 0))
        assert carry.halted.all()
        assert carry.steps.tolist() == [1, 1, 1]
        assert working_on(carry) == [10 * number + row for row in range(3)]
        assert "target_q_continue" not in outputs


@pytest.mark.parametrize("wish", [-1.0, 1.0])
def test_target_of_q_continue_looks_one_step_ahead_also_where_a_slot_halts(wish: float) -> None:
    now, ahead = ([wish] * 3, [0.0] * 3), ([2.0, -2.0, 0.5], [1.0, -1.0, 3.0])
    act = build(now, ahead)
    carry, outputs = act(act.initial_carry(offer(0)), offer(1))
    assert carry.halted.tolist() == [wish > 0] * 3
    better = torch.tensor([2.0, -1.0, 3.0])
    torch.testing.assert_close(outputs["target_q_continue"], better.sigmoid())
    assert not outputs["target_q_continue"].requires_grad
    assert outputs["q_continue_logits"].requires_grad

    (z_first, _, grad_first), (z_ahead, examples, grad_ahead) = calls_of(act)
    # One more pass from the new state on the same examples, without gradients; the state is
    # not kept.
    assert grad_first
    assert not grad_ahead
    assert torch.equal(z_ahead, z_first + 1)
    assert examples["puzzle_identifiers"].tolist() == [10, 11, 12]
    assert torch.equal(carry.inner["z_H"][:, 0, 0], z_first + 1)


def test_target_of_q_continue_at_the_last_step_is_halting() -> None:
    now, ahead = ([-1.0] * 3, [0.0] * 3), ([2.0, -2.0, 0.5], [1.0, -1.0, 3.0])
    act = build(now, now, now, ahead, halt_max_steps=2)
    carry, _ = act(act.initial_carry(offer(0)), offer(1))
    carry.steps[1] = 0  # slot 1 is one step behind
    carry, outputs = act(carry, offer(2))
    assert carry.halted.tolist() == [True, False, True]
    expected = torch.tensor([2.0, -1.0, 0.5]).sigmoid()
    torch.testing.assert_close(outputs["target_q_continue"], expected)


@pytest.mark.parametrize("learns_continue", [True, False])
def test_evaluation_runs_all_steps_and_looks_at_no_target(learns_continue: bool) -> None:
    act = build(([9.0] * 3, [-9.0] * 3), halt_max_steps=3, learns_continue=learns_continue).eval()
    carry = act.initial_carry(offer(0))
    for step in (1, 2, 3):
        carry, outputs = act(carry, offer(step))
        assert carry.steps.tolist() == [step] * 3
        assert carry.halted.tolist() == [step == 3] * 3
        assert working_on(carry) == [10, 11, 12]
        assert "target_q_continue" not in outputs
    assert len(calls_of(act)) == 3


def test_the_rows_of_a_batch_do_not_see_each_other() -> None:
    model, examples = make_model(), make_examples()
    model.eval()
    whole = first_step(model, examples)
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in examples.items()}
        output = model(model.initial_carry(alone), alone)
        torch.testing.assert_close(output.outputs["logits"][0], whole.outputs["logits"][row])
        for name in output.rows:
            torch.testing.assert_close(output.rows[name][0], whole.rows[name][row])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_step_that_is_measured_later_gives_the_same(compiled: bool) -> None:
    model, examples = make_model(signal=True).eval(), make_examples()
    torch.compiler.reset()
    forward = torch.compile(model, fullgraph=True, backend="eager") if compiled else model
    carry = model.initial_carry(examples)
    with torch.no_grad():
        expected = model(carry, examples)
        later = forward(carry, examples, measured=False)
        assert (later.metrics, later.rows, later.outputs) == ({}, {}, {})
        found = model.measure(later.carry)
    near = {"rtol": 1e-4, "atol": 1e-4} if compiled else {"rtol": 0, "atol": 0}
    assert_close = partial(torch.testing.assert_close, **near)
    assert_close(found.carry.tensors(), expected.carry.tensors())
    assert_close(found.loss, expected.loss)
    assert_close(found.rows, expected.rows)
    assert_close(found.outputs, expected.outputs)


def test_a_slot_is_done_by_the_rule_or_at_the_last_step() -> None:
    act = build(([1.0, 0.0, 0.0], [0.0] * 3), halt_max_steps=2)
    act.inner.latents = ("z_H",)
    act.inner.answer = lambda states, examples: Answer(torch.ones(()))
    carry, _ = act.eval().think(act.initial_carry(offer(0)), offer(1))
    assert (carry.halted.tolist(), act.halts(carry).tolist()) == ([False] * 3, [True, False, False])
    carry, _ = act.think(carry, offer(2))
    assert act.halts(carry).tolist() == [True] * 3


def exploring(seed: int, step: int, rows: int, probability: float, most: int) -> np.ndarray:
    at = Address(seed, step, rows, range(rows), num_parts=1, seq_len=0)
    return min_halt_steps(at, probability, most)


def test_exploration_is_pinned_and_each_seed_and_step_has_its_own() -> None:
    """The draws stay the same, so that a resumed run continues, even after an update of numpy."""
    assert exploring(1, 2, 10, 0.6, 9).tolist() == [3, 9, 0, 8, 0, 0, 0, 0, 0, 5]
    seeds = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    steps = (0, 1, 2, 2**40)
    others = {exploring(seed, step, 64, 0.5, 16).tobytes() for seed in seeds for step in steps}
    assert len(others) == len(seeds) * len(steps)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_exploration_asks_for_2_to_all_steps(most: int) -> None:
    counts = np.bincount(exploring(0, 0, 60_000, 0.5, most), minlength=most + 1)
    explored = 30_000 / (most - 1) if most > 1 else 0
    expected = [60_000 - (most - 1) * explored, 0, *[explored] * (most - 1)]
    # Six standard deviations of a count.
    assert counts == pytest.approx(np.array(expected), abs=6 * 15_000**0.5)
    assert counts[1] == 0
