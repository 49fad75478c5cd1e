"""The recurrence that treats all nodes of a graph alike."""

from typing import Any

import pytest
import torch
from torch import Tensor

from apps.graph.config import GraphConfig
from models.config import DataFacts
from runtime.errors import ConfigError
from tests.unit.models.tiny import shaken

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "halt_max_steps": 2, "forward_dtype": "float64"}
NODES = 6


def logits(boards: Tensor) -> Tensor:
    """Return the logits [B, N, N, V] of boards [B, N, N] after an ACT step."""
    model = shaken(GraphConfig(**SMALL), DataFacts(7, NODES**2, 1, kind="colouring")).eval()
    cells = boards.flatten(1).int()
    examples = {"inputs": cells, "labels": cells, "puzzle_identifiers": cells.new_zeros(len(cells))}
    found = model(model.initial_carry(examples), examples).outputs["logits"]
    return found.unflatten(1, (NODES, NODES))


def boards() -> Tensor:
    return torch.randint(1, 7, (3, NODES, NODES), generator=torch.Generator().manual_seed(0))


def test_nodes_in_another_order_have_the_same_answers() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = logits(boards()[:, order][:, :, order])
    torch.testing.assert_close(moved, logits(boards())[:, order][:, :, order])


def test_each_node_hears_of_all_edges() -> None:
    before, changed = logits(boards()), boards()
    changed[:, 4, 5] = changed[:, 4, 5] % 6 + 1
    assert (logits(changed) != before).any(-1).all()


def test_only_a_square_board_is_accepted() -> None:
    GraphConfig().require_data(DataFacts(7, 36, 1))
    with pytest.raises(ConfigError, match="graph reads square grids; 42 cells form none"):
        GraphConfig().require_data(DataFacts(7, 42, 1))
