"""When to stop: where the head starts."""

import torch

from models.heads.base import Targets
from models.heads.halt.model import HaltHead
from tests.unit.models.heads.auxiliary_heads import B, fresh, logits_of, states


def test_halt_starts_near_going_on_and_is_right_when_it_says_so() -> None:
    head = fresh("halt")
    assert isinstance(head, HaltHead)
    logits = logits_of(head, states().float())
    assert torch.equal(logits, torch.tensor([[0.0, -5.0]]).expand(B, 2))
    whole = torch.tensor([True, False, True, False])
    targets = Targets({}, whole[:, None], whole[:, None], whole)
    assert head.compare(logits, targets)[1]["accuracy"].tolist() == [0, 1, 0, 1]
