"""All auxiliary heads: losses against slow loops, gradients, metrics."""

import math

import pytest
import torch
from torch import Tensor

from models.heads.base import Answer, Targets
from tests.unit.models.heads.auxiliary_heads import (
    CHANNELS,
    CLASSES,
    NONE,
    B,
    P,
    S,
    build,
    logits_of,
    loss_of,
    states,
)

SHAPES = {
    "confidence": (B, S),
    "attention": (B, S),
    "action": (B, S, CLASSES),
    "pixel": (B, S, CHANNELS, CLASSES),
    "halt": (B, 2),
}


def expected(name: str, logits: Tensor, targets: Targets, b: int) -> Tensor:
    """The loss of row b, cell by cell."""
    terms, examples = [], targets.examples
    labels, inputs = examples["labels"][b], examples["inputs"][b]
    if name == "halt":
        return -logits[b].log_softmax(-1)[int(targets.whole_right[b])]
    for s in range(S):
        if name == "confidence" and labels[s] != NONE:
            share = 1 / (1 + math.exp(-logits[b, s]))
            terms.append(-math.log(share if targets.right[b, s] else 1 - share))
        if name == "attention" and labels[s] not in (NONE, inputs[s]):
            terms.append(float(logits[b].logsumexp(-1) - logits[b, s]))
        if name == "action" and (label := int(examples["a"][b, s])) != NONE:
            terms.append(float(-logits[b, s].log_softmax(-1)[label]))
        for c in range(CHANNELS if name == "pixel" else 0):
            if (label := int(examples["p"][b, s, c])) != NONE:
                terms.append(float(-logits[b, s, c].log_softmax(-1)[label]))
    return torch.tensor(sum(terms) / max(1, len(terms)))


@pytest.mark.parametrize("name", SHAPES)
def test_losses_are_those_of_a_slow_loop(name: str, targets: Targets) -> None:
    head, start = build(name), states()
    logits, loss = logits_of(head, start), loss_of(head, start, targets)
    assert logits.shape == SHAPES[name]
    assert loss.shape == (B,)
    for b in range(B):
        slow = expected(name, logits.detach(), targets, b)
        assert loss[b].item() == pytest.approx(slow.item(), abs=1e-6), b


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_finite_differences(name: str, targets: Targets) -> None:
    head = build(name)
    # The parameters are changed where they are.
    assert torch.autograd.gradcheck(
        lambda start, *_: loss_of(head, start, targets), (states(), *head.parameters())
    )


@pytest.mark.parametrize("name", SHAPES)
def test_only_a_head_that_is_not_detached_teaches_the_trunk(name: str, targets: Targets) -> None:
    for detach in (False, True):
        head, start = build(name, detach), states()
        loss_of(head, start, targets).sum().backward()
        assert (start.grad is None) == detach
        assert all(p.grad is not None and p.grad.any() for p in head.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_metrics_are_those_that_are_announced(name: str, targets: Targets) -> None:
    head = build(name)
    metrics = head.measure(head.read(Answer(states(), P)), targets).metrics
    assert tuple(metrics) == head.metric_names
    assert all(value.shape == (B,) and not value.requires_grad for value in metrics.values())
