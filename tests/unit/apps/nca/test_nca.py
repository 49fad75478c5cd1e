"""The recurrence whose updates read neighbours only."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from apps.nca.config import NCAConfig
from models.config import DataFacts
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
