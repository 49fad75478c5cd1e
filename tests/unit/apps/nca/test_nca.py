"""The recurrence whose updates read neighbours only."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from apps.graph.config import GraphConfig
from apps.grid.config import GridConfig
from apps.nca.config import NCAConfig
from models.config import DataFacts
from models.operations import act_step_flop, train_step_flop
from models.technique import TECHNIQUES
from tests.unit.models.tiny import shaken

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "L_cycles": 3, "halt_max_steps": 3}
SMALL |= {"forward_dtype": "float64"}


def logits(side: int, cells: Tensor, steps: int = 1) -> Tensor:
    """Return the logits [B, side, side, V] after some ACT steps."""
    model = shaken(NCAConfig(**SMALL), DataFacts(6, side * side, 1, kind="maze")).eval()
    flat = cells.flatten(1).int()
    examples = {"inputs": flat, "labels": flat, "puzzle_identifiers": torch.zeros(len(flat)).int()}
    found = model(model.initial_carry(examples), examples)
    for _ in range(steps - 1):
        found = model(found.carry, examples)
    return found.outputs["logits"].unflatten(1, (side, side))


def cells_of(side: int) -> Tensor:
    return torch.randint(1, 6, (2, side, side), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_change_travels_one_move_an_update(steps: int) -> None:
    side, cells = 11, cells_of(11)
    changed = cells.clone()
    changed[:, 0, 0] = changed[:, 0, 0] % 5 + 1
    differs = (logits(side, cells, steps) != logits(side, changed, steps)).any(-1)
    reach = 3 * steps  # A step has three updates.
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    assert differs[:, rows + columns <= reach].all()
    assert not differs[:, rows + columns > reach].any()


def test_the_same_weights_answer_alike_inside_a_larger_grid() -> None:
    small = cells_of(9)
    large = torch.nn.functional.pad(small, (0, 2, 0, 2), value=1)
    middle = logits(11, large)[:, :5, :5]
    torch.testing.assert_close(middle, logits(9, small)[:, :5, :5])


def test_settings_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValidationError, match="mlp_t=True has no meaning with name=nca; use False"):
        NCAConfig(**SMALL, mlp_t=True)
    with pytest.raises(ValidationError, match="puzzle_emb_ndim=8 has no meaning with name=nca"):
        NCAConfig(**SMALL, puzzle_emb_ndim=8)


@pytest.mark.parametrize("config", [NCAConfig, GraphConfig, GridConfig])
def test_without_attention_its_settings_may_have_any_value(config: Any) -> None:
    assert not config(hidden_size=36, num_heads=8).has_attention


@pytest.mark.parametrize("config", [NCAConfig, GraphConfig, GridConfig])
def test_a_width_has_a_limit(config: Any) -> None:
    with pytest.raises(ValidationError, match="less than or equal to 1024"):
        config(expansion=1025.0)


def test_no_technique_starts_states_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    step_weights: Any = TECHNIQUES["step_weights"].schema
    settings = SMALL | {"keeps": "answers", "techniques": {"step_weights": {}}}
    NCAConfig(**settings)
    monkeypatch.setattr(step_weights, "start", lambda self, z, draws: z, raising=False)
    with pytest.raises(ValidationError, match="no states to start at: no step_weights"):
        NCAConfig(**settings)
    NCAConfig(**settings | {"keeps": "states"})


def test_answers_are_all_that_cells_keep_between_steps() -> None:
    facts = DataFacts(6, 9, 1, fields={"closer": (16, 0)}, kind="maze")
    settings = SMALL | {"keeps": "answers", "heads": {"action": {"field": "closer"}}}
    model = shaken(NCAConfig(**settings), facts).eval()
    cells = torch.randint(1, 6, (2, 9), generator=torch.Generator().manual_seed(1)).int()
    examples = {"inputs": cells, "labels": cells, "closer": cells}
    examples["puzzle_identifiers"] = torch.zeros(2).int()
    inner = model.model.inner
    first = model(model.initial_carry(examples), examples)
    answers = {"labels": first.outputs["logits"], "closer": first.outputs["action_logits"]}
    chosen = {name: value.argmax(-1) for name, value in answers.items()}
    held = inner.holding(first.carry.inner, examples | chosen)["z_kept"]
    torch.testing.assert_close(first.carry.inner["z_kept"], held)
    assert inner.reached(first.outputs).tolist() == (chosen["closer"] > 0).tolist()
    second = model(first.carry, examples).outputs["logits"]
    first.carry.inner["z_L"] += 1.0
    torch.testing.assert_close(model(first.carry, examples).outputs["logits"], second)
    first.carry.inner["z_kept"] += 1.0
    assert not torch.equal(model(first.carry, examples).outputs["logits"], second)


def test_an_unchanged_cell_without_an_answer_is_kept_as_the_start() -> None:
    facts = DataFacts(6, 9, 1, fields={"closer": (16, 0)}, kind="maze")
    settings = SMALL | {"keeps": "answers", "heads": {"action": {"field": "closer"}}}
    inner = shaken(NCAConfig(**settings), facts).model.inner
    cells = torch.tensor([[1, 2, 3]])
    answered = {"inputs": cells, "labels": torch.tensor([[1, 5, 3]])}
    codes = inner.holding({}, answered | {"closer": torch.tensor([[0, 0, 4]])})["z_kept"][0]
    assert codes.any(-1).tolist() == [False, True, True]
    start = inner.reset_carry(torch.ones(1).bool(), {"z_kept": codes[None]})["z_kept"][0]
    assert not start.any()


def test_the_sums_over_neighbours_are_among_the_operations() -> None:
    facts = DataFacts(6, 25, 1, kind="maze")
    sums = 5 * 2 * 25 * 9 * 32 * 32  # Five updates of 25 cells.
    assert act_step_flop(NCAConfig(), facts) > sums
    assert train_step_flop(NCAConfig(), facts) > 3 * sums
