"""In training, cells are shown what they should hold at each ACT step."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from apps.nca.config import NCAConfig
from models.act import AIMED_LABELS, ACTLossHead
from models.config import DataFacts
from models.heads.base import Examples
from models.techniques.hints import Hints
from models.transformer.config import TransformerConfig
from runtime.streams import Address
from tests.unit.models.tiny import shaken

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "L_cycles": 3, "halt_max_steps": 4}
SMALL |= {"forward_dtype": "float64", "keeps": "answers", "techniques": {"hints": {"pace": 2}}}
SMALL |= {"heads": {"action": {"field": "closer"}}}
FACTS = DataFacts(6, 9, 1, fields={"closer": (16, 0), "arrivals": (256, 2)}, kind="maze")
# Pairs of cells until the token and the closer neighbours are known; a step passes one pair.
TOKENS = [0, 0, 1, 1, 2, 2, 3, 3, 3]
CLOSER = [0, 1, 1, 2, 0, 1, 2, 3, 0]


def make_examples() -> Examples:
    cells = torch.full((2, 9), 2)
    examples = {"inputs": cells, "labels": cells + 3, "closer": cells * 0 + 7}
    examples |= {"arrivals": torch.tensor([[TOKENS, CLOSER]] * 2).mT}
    return {n: v.int() for n, v in examples.items()} | {"puzzle_identifiers": torch.zeros(2).int()}


def make_model(training: bool = True) -> ACTLossHead:
    return shaken(NCAConfig(**SMALL), FACTS).train(training)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_cell_shows_its_labels_once_they_can_be_known(steps: int) -> None:
    shown = Hints(pace=2).shown(make_examples(), torch.tensor([steps, 3]))
    assert shown["labels"][0].tolist() == [5 if time <= steps else 2 for time in TOKENS]
    assert shown["closer"][0].tolist() == [7 if time <= steps else 0 for time in CLOSER]
    assert shown["labels"][1].tolist() == [5] * 9
    assert shown["closer"][1].tolist() == [7] * 9


def test_a_faster_wave_shows_more() -> None:
    examples, one_step = make_examples(), torch.ones(2, dtype=torch.int32)
    known = [Hints(pace=pace).shown(examples, one_step)["labels"].eq(5).sum() for pace in (2, 4, 6)]
    assert [int(n) for n in known] == [2 * 4, 2 * 6, 2 * 9]


def test_cycles_go_on_from_each_other() -> None:
    examples, answers = make_examples(), []
    for cycles, updates in ((1, 6), (2, 3)):
        config = NCAConfig(**SMALL | {"H_cycles": cycles, "L_cycles": updates})
        model = shaken(config, FACTS).eval()
        carry = model.initial_carry(examples)
        for _ in range(2):
            carry, _ = model.model.think(carry, examples)
        answers.append(model.model.answer_of(carry))
    assert torch.equal(*answers)


def test_the_losses_compare_with_what_is_shown() -> None:
    model, examples = make_model(), make_examples()
    first = model(model.initial_carry(examples), examples)
    later = {**examples, "labels": examples["labels"].clone()}
    later["labels"][:, 4:] = 4  # Known after two steps.
    second = model(model.initial_carry(later), later)
    assert first.metrics["lm_loss"] == second.metrics["lm_loss"]
    # Diagnostics compare with the same labels.
    shown = Hints(pace=2).shown(examples, torch.ones(2, dtype=torch.int32))
    assert torch.equal(first.outputs[AIMED_LABELS], shown["labels"])
    sooner = {**examples, "labels": examples["labels"].clone()}
    sooner["labels"][:, 2] = 4
    third = model(model.initial_carry(sooner), sooner)
    assert first.metrics["lm_loss"] != third.metrics["lm_loss"]


def test_each_step_begins_with_what_cells_should_have_kept() -> None:
    model, examples, drawn = make_model(), make_examples(), {"min_steps": torch.full((2,), 4)}
    drawn["skipped"] = torch.tensor([0.3, 0.8])
    act = model.model
    carry, _ = act(act.initial_carry(examples), examples, drawn)
    assert carry.steps.tolist() == [2, 4]  # 0.3 and 0.8 of four steps are skipped, 1 and 3.
    carry.halted[:] = False
    spoilt = {name: torch.randn_like(z) for name, z in carry.inner.items()}
    before = act(carry, examples, drawn)[1]["logits"]
    carry.inner = spoilt
    torch.testing.assert_close(act(carry, examples, drawn)[1]["logits"], before)
    assert not torch.equal(act(carry, examples)[1]["logits"], before)
    shown = act.inner.techniques.active["hints"].shown(examples, carry.steps)
    carry.inner = act.inner.holding(spoilt, shown)
    torch.testing.assert_close(act(carry, examples)[1]["logits"], before)


def test_evaluations_are_not_shown_anything() -> None:
    found = []
    for techniques in (SMALL["techniques"], {}):
        model = shaken(NCAConfig(**SMALL | {"techniques": techniques}), FACTS).eval()
        examples = make_examples()
        out = model(model.initial_carry(examples), examples)
        out = model(out.carry, examples)
        found.append({name: value.item() for name, value in out.metrics.items()})
    assert found[0] == found[1]


def test_draws_cover_all_steps_and_depend_on_the_row_alone() -> None:
    whole = Hints().draw(Address(1, 5, 64, range(64), 1, 9))["skipped"]
    parts = Hints().draw(Address(1, 5, 64, range(32, 64), 2, 9))["skipped"]
    assert whole.shape == (1, 64)
    np.testing.assert_array_equal(parts.reshape(-1), whole[0, 32:])
    assert set((4 * whole).astype(int).reshape(-1).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"keeps": "states"}, "hints: it needs arch=nca with arch.keeps=answers"),
        ({"L_cycles": 1}, "pace=2 exceeds the 1 updates of a step"),
        ({"techniques": {"hints": {"pace": 3}}}, "3 is odd, and the data count pairs of cells"),
        ({"heads": {}}, "the heads must predict the field closer, and no other"),
        ({"techniques": {"random_starts": {}}}, "keeps=answers leaves no states to start at"),
        ({"techniques": {"anchors": {}}}, "no anchors"),
    ],
)
def test_what_does_not_fit_is_named(change: Any, named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        NCAConfig(**SMALL | change)


def test_other_architectures_and_curricula_are_refused() -> None:
    with pytest.raises(ValidationError, match="it needs arch=nca with"):
        TransformerConfig.model_validate({"techniques": {"hints": {}}})
    stages = {"curriculum": {"stages": [{"until": 0.5, "H_cycles": 1, "L_cycles": 1}]}}
    with pytest.raises(ValidationError, match="the number of updates in a step must not change"):
        NCAConfig(**SMALL | {"techniques": SMALL["techniques"] | stages})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_traces_as_one_graph() -> None:
    model, examples = make_model(), make_examples()
    drawn = {"skipped": torch.tensor([0.0, 0.8]), "min_steps": torch.zeros(2).int()}
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    first, second = (
        run(model.initial_carry(examples), examples, drawn) for run in (model, compiled)
    )
    torch.testing.assert_close(second.metrics, first.metrics)
