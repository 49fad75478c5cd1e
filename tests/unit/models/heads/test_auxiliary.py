"""Auxiliary heads: losses against slow loops, gradients, metrics."""

import math

import pytest
import torch
from torch import Tensor

from models.config import DataFacts
from models.heads.auxiliary import AuxiliaryHead
from models.heads.base import Answer, Examples, Targets
from models.heads.config import AUXILIARY_HEADS
from models.heads.schemas import CALIBRATION_ERROR, GAPS
from models.hrm.config import HRMConfig
from models.losses import IGNORE_LABEL_ID as NONE
from models.metrics import as_reported

B, S, P, D = 4, 6, 2, 6
CLASSES, CHANNELS = 3, 2
FACTS = DataFacts(5, S, 1, fields={"a": (CLASSES, 0), "p": (CLASSES, CHANNELS)})
FIELDS = {"action": {"field": "a"}, "pixel": {"field": "p"}}
SHAPES = {
    "confidence": (B, S),
    "attention": (B, S),
    "action": (B, S, CLASSES),
    "pixel": (B, S, CHANNELS, CLASSES),
    "halt": (B, 2),
}


def make_examples() -> Examples:
    """Return three rows: the first changes nothing, the last has no labels and no fields."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(5, (B, S), generator=generator)
    labels = torch.randint(5, (B, S), generator=generator)
    labels[0] = inputs[0]
    labels[1, ::2] = NONE
    actions = torch.randint(CLASSES, (B, S), generator=generator)
    pixels = torch.randint(CLASSES, (B, S, CHANNELS), generator=generator)
    for field in (labels, actions, pixels):
        field[-1] = NONE
    actions[1, 3:] = pixels[2, 1] = NONE
    return {"inputs": inputs, "labels": labels, "a": actions, "p": pixels}


@pytest.fixture
def targets() -> Targets:
    examples = make_examples()
    labelled = examples["labels"] != NONE
    right = labelled & (torch.rand(B, S, generator=torch.Generator().manual_seed(1)) < 0.5)
    right[0] = True
    return Targets(examples, labelled, right, right.sum(-1) == labelled.sum(-1))


def fresh(name: str, detach: bool = False) -> AuxiliaryHead:
    torch.manual_seed(0)
    heads = {name: {"detach": detach, **FIELDS.get(name, {})}}
    config = HRMConfig.model_validate({"hidden_size": D, "num_heads": 1, "heads": heads})
    return AUXILIARY_HEADS.load(name)(name, config, FACTS)


def build(name: str, detach: bool = False) -> AuxiliaryHead:
    head = fresh(name, detach).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def states() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(B, P + S, D, generator=generator, dtype=torch.float64, requires_grad=True)


def logits_of(head: AuxiliaryHead, states: Tensor) -> Tensor:
    return head.read(Answer(states, P))[f"{head.name}_logits"]


def loss_of(head: AuxiliaryHead, states: Tensor, targets: Targets) -> Tensor:
    measured = head.measure(head.read(Answer(states, P)), targets)
    assert tuple(measured.losses) == head.loss_names == (head.name,)
    assert tuple(measured.metrics) == head.metric_names
    assert all(m.shape == (B,) and not m.requires_grad for m in measured.metrics.values())
    return measured.losses[head.name]


def expected(name: str, logits: Tensor, targets: Targets, b: int) -> float:
    """Compute the loss of row b, cell by cell."""
    terms, examples = [], targets.examples
    labels, inputs = examples["labels"][b], examples["inputs"][b]
    if name == "halt":
        return -logits[b].log_softmax(-1)[int(targets.whole_right[b])].item()
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
    return sum(terms) / max(1, len(terms))


@pytest.mark.parametrize("name", SHAPES)
def test_losses_are_those_of_a_slow_loop_and_of_finite_differences(
    name: str, targets: Targets
) -> None:
    head, start = build(name), states()
    logits, loss = logits_of(head, start), loss_of(head, start, targets)
    assert logits.shape == SHAPES[name]
    slow = [expected(name, logits.detach(), targets, b) for b in range(B)]
    assert loss.tolist() == pytest.approx(slow, abs=1e-6)
    # The parameters are changed where they are.
    assert torch.autograd.gradcheck(
        lambda start, *_: loss_of(head, start, targets), (start, *head.parameters())
    )


@pytest.mark.parametrize("name", SHAPES)
def test_only_a_head_that_is_not_detached_teaches_the_trunk(name: str, targets: Targets) -> None:
    for detach in (False, True):
        head, start = build(name, detach), states()
        loss_of(head, start, targets).sum().backward()
        assert (start.grad is None) == detach
        assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_attention_is_precise_when_the_cells_that_change_come_first() -> None:
    inputs = torch.tensor([[1, 1, 1, 1]] * 3)
    labels = torch.tensor([[2, 1, 2, 1], [1, 1, 1, 1], [NONE, 2, NONE, 1]])
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0] * 4, [9.0, 5.0, 0.0, 1.0]])
    examples = {"inputs": inputs, "labels": labels}
    targets = Targets(examples, labels != NONE, labels == labels, torch.ones(3, dtype=torch.bool))
    _, metrics = build("attention").compare(logits, targets)
    # Of the two likeliest cells one changes; nothing changes; a cell without a label comes first.
    assert metrics["precision"].tolist() == [0.5, 1.0, 0.0]


def test_fields_are_right_where_they_are_known(targets: Targets) -> None:
    for name, field in (("action", "a"), ("pixel", "p")):
        classes = targets.examples[field].clamp_min(0)
        logits = torch.nn.functional.one_hot(classes, CLASSES).float()
        _, metrics = build(name).compare(logits, targets)
        assert metrics["accuracy"].tolist() == [1.0, 1.0, 1.0, 0.0]
        wrong = logits.roll(1, -1)
        assert not build(name).compare(wrong, targets)[1]["accuracy"].any()


def test_halt_starts_near_going_on_and_is_right_when_it_says_so() -> None:
    head = fresh("halt")
    logits = logits_of(head, states().float())
    assert torch.equal(logits, torch.tensor([[0.0, -5.0]]).expand(B, 2))
    whole = torch.tensor([True, False, True, False])
    targets = Targets({}, whole[:, None], whole[:, None], whole)
    assert head.compare(logits, targets)[1]["accuracy"].tolist() == [0, 1, 0, 1]


def test_confidence_says_how_often_and_how_much_it_errs(targets: Targets) -> None:
    head = build("confidence")
    logits = torch.randn(B, S, generator=torch.Generator().manual_seed(5))
    logits[1] = 100.0  # In the last bin.
    metrics = head.compare(logits, targets)[1]
    for b in range(B):
        gaps, hits, number = [0.0] * 10, 0, int(targets.labelled[b].sum())
        for s in range(S):
            if targets.labelled[b, s]:
                share, right = logits[b, s].sigmoid().item(), bool(targets.right[b, s])
                hits += (share > 0.5) == right
                gaps[min(9, int(share * 10))] += (share - right) / number
        assert metrics["accuracy"][b].item() == pytest.approx(hits / max(1, number))
        found = [metrics[f"bin{i}_gap"][b].item() for i in range(10)]
        assert found == pytest.approx(gaps, abs=1e-6)


def test_the_calibration_error_is_what_the_bins_are_off() -> None:
    figures = dict.fromkeys(GAPS, 0.0) | {GAPS[2]: -0.25, GAPS[7]: 0.125, "accuracy": 0.5}
    assert as_reported(figures) == {"accuracy": 0.5, CALIBRATION_ERROR: 0.375}
    assert as_reported({"accuracy": 0.5}) == {"accuracy": 0.5}
