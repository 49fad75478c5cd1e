"""Fields of the data set: where they are known."""

import torch

from models.heads.base import Examples, Targets
from tests.unit.models.heads.auxiliary_heads import CLASSES, build


def test_fields_are_right_where_they_are_known(examples: Examples, targets: Targets) -> None:
    for name, field in (("action", "a"), ("pixel", "p")):
        classes = examples[field].clamp_min(0)
        logits = torch.nn.functional.one_hot(classes, CLASSES).float()
        _, metrics = build(name).compare(logits, targets)
        assert metrics["accuracy"].tolist() == [1.0, 1.0, 1.0, 0.0]
        wrong = logits.roll(1, -1)
        assert not build(name).compare(wrong, targets)[1]["accuracy"].any()
