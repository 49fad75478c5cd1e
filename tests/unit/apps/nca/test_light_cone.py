"""Cells count only once what their label depends on can have reached them."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from apps.nca.config import NCAConfig
from models.config import DataFacts
from models.transformer.config import TransformerConfig
from tests.unit.models.tiny import shaken

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "L_cycles": 2, "halt_max_steps": 3}
SMALL |= {"forward_dtype": "float64", "techniques": {"light_cone": {}}}
SMALL |= {"heads": {"action": {"field": "closer"}}}
FACTS = DataFacts(6, 9, 1, fields={"closer": (16, 0), "arrivals": (256, 0)}, kind="maze")
# Pairs of updates: known before the first step ends (2 updates), after one, two and three steps.
ARRIVALS = torch.tensor([[0, 0, 1, 1, 2, 2, 3, 3, 3]])


def losses(training: bool, labels: Tensor, closer: Tensor) -> list[list[float]]:
    """Return the losses of tokens and of `closer` after each of three steps, for one puzzle."""
    model = shaken(NCAConfig(**SMALL), FACTS).train(training)
    inputs = torch.full((1, 9), 2)
    examples = {"inputs": inputs, "labels": labels, "puzzle_identifiers": torch.zeros(1).long()}
    examples = {name: value.int() for name, value in examples.items()}
    examples |= {"closer": closer.int(), "arrivals": ARRIVALS.int()}
    carry, found = model.initial_carry(examples), []
    for _ in range(3):
        out = model(carry, examples)
        carry = out.carry
        found.append([out.metrics["lm_loss"].item(), out.metrics["action_loss"].item()])
    return found


def test_a_cell_counts_from_the_step_in_which_the_wave_arrives() -> None:
    labels, closer = torch.full((1, 9), 5), torch.full((1, 9), 3)
    before = losses(True, labels, closer)
    for cell, arrives in ((1, 0), (3, 0), (5, 1), (8, 2)):
        other, another = labels.clone(), closer.clone()
        other[0, cell], another[0, cell] = 4, 7
        changed = losses(True, other, another)
        for step in range(3):
            same = before[step] == changed[step]
            assert same == (step < arrives), (cell, step)


def test_a_cell_that_keeps_its_token_counts_from_the_start() -> None:
    closer, path = torch.zeros(1, 9), torch.full((1, 9), 5)
    kept = path.clone()
    kept[0, 8] = 2
    assert losses(True, path, closer)[0][0] != losses(True, kept, closer)[0][0]


def test_in_evaluations_all_cells_count() -> None:
    labels, closer = torch.full((1, 9), 5), torch.full((1, 9), 3)
    other, another = labels.clone(), closer.clone()
    other[0, 8], another[0, 8] = 4, 7
    first, second = losses(False, labels, closer)[0], losses(False, other, another)[0]
    assert all(one != two for one, two in zip(first, second, strict=True))


def test_it_needs_local_updates_and_its_field() -> None:
    assert NCAConfig(**SMALL).fields == {
        "heads.action": "closer",
        "techniques.light_cone": "arrivals",
    }
    with pytest.raises(
        ValidationError, match="light_cone: one update of arch.name=transformer reaches all"
    ):
        TransformerConfig.model_validate({"techniques": {"light_cone": {}}})
    stages = {"curriculum": {"stages": [{"until": 0.5, "H_cycles": 1, "L_cycles": 1}]}}
    with pytest.raises(ValidationError, match="the number of updates in a step must not change"):
        NCAConfig(**SMALL | {"techniques": SMALL["techniques"] | stages})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_traces_as_one_graph() -> None:
    model = shaken(NCAConfig(**SMALL), FACTS).train()
    cells = torch.full((1, 9), 2).int()
    examples = {"inputs": cells, "labels": cells + 1, "puzzle_identifiers": cells[:, 0] * 0}
    examples |= {"closer": cells, "arrivals": ARRIVALS.int()}
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    first, second = (run(model.initial_carry(examples), examples) for run in (model, compiled))
    torch.testing.assert_close(second.metrics, first.metrics)
