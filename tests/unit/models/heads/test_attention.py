"""Which cells change: how precise the head is."""

import torch

from models.heads.base import Targets
from tests.unit.models.heads.auxiliary_heads import NONE, build


def test_attention_is_precise_when_the_cells_that_change_come_first() -> None:
    inputs = torch.tensor([[1, 1, 1, 1]] * 3)
    labels = torch.tensor([[2, 1, 2, 1], [1, 1, 1, 1], [NONE, 2, NONE, 1]])
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0] * 4, [9.0, 5.0, 0.0, 1.0]])
    examples = {"inputs": inputs, "labels": labels}
    targets = Targets(examples, labels != NONE, labels == labels, torch.ones(3, dtype=torch.bool))
    _, metrics = build("attention").compare(logits, targets)
    # Of the two likeliest cells one changes; nothing changes; a cell without a label comes first.
    assert metrics["precision"].tolist() == [0.5, 1.0, 0.0]
