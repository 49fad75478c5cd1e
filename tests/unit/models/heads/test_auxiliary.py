"""Confidence, attention, fields and halt: losses and metrics against slow loops, gradients."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from models.act import Examples
from models.heads.auxiliary import (
    IGNORE_LABEL_ID,
    Answered,
    ConfidenceHead,
    FieldHead,
    FurtherHead,
    HaltHead,
    PositionAttentionHead,
)
from models.heads.calibration import CALIBRATION_ERROR, GAPS, with_calibration_error

B, S, P, D = 4, 6, 2, 5
CLASSES, CHANNELS = 3, 2
NONE = IGNORE_LABEL_ID

HEADS: dict[str, tuple[Callable[[bool], FurtherHead], tuple[int, ...]]] = {
    "confidence": (lambda detach: ConfidenceHead(D, detach), (B, S)),
    "attention": (lambda detach: PositionAttentionHead(D, detach), (B, S)),
    "action": (
        lambda detach: FieldHead(D, detach, name="action", field="a", num_classes=CLASSES),
        (B, S, CLASSES),
    ),
    "pixel": (
        lambda detach: FieldHead(
            D, detach, name="pixel", field="p", num_classes=CLASSES, channels=(CHANNELS,)
        ),
        (B, S, CHANNELS, CLASSES),
    ),
    "halt": (lambda detach: HaltHead(D, detach), (B, 2)),
}


@pytest.fixture
def examples() -> Examples:
    """The last row has no labels and no fields; the first changes nothing."""
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
def answered(examples: Examples) -> Answered:
    labelled = examples["labels"] != NONE
    right = labelled & (torch.rand(B, S, generator=torch.Generator().manual_seed(1)) < 0.5)
    right[0] = True
    return Answered(labelled, right, right.sum(-1) == labelled.sum(-1))


def build(name: str, detach: bool = False) -> FurtherHead:
    torch.manual_seed(0)
    head = HEADS[name][0](detach).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def answer() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(B, P + S, D, generator=generator, dtype=torch.float64, requires_grad=True)


def expected(name: str, logits: Tensor, examples: Examples, answered: Answered, b: int) -> Tensor:
    """The loss of row b, cell by cell."""
    terms = []
    labels, inputs = examples["labels"][b], examples["inputs"][b]
    if name == "halt":
        return -logits[b].log_softmax(-1)[int(answered.whole_right[b])]
    for s in range(S):
        if name == "confidence" and labels[s] != NONE:
            share = 1 / (1 + math.exp(-logits[b, s]))
            terms.append(-math.log(share if answered.right[b, s] else 1 - share))
        if name == "attention" and labels[s] not in (NONE, inputs[s]):
            terms.append(float(logits[b].logsumexp(-1) - logits[b, s]))
        if name == "action" and (label := int(examples["a"][b, s])) != NONE:
            terms.append(float(-logits[b, s].log_softmax(-1)[label]))
        for c in range(CHANNELS if name == "pixel" else 0):
            if (label := int(examples["p"][b, s, c])) != NONE:
                terms.append(float(-logits[b, s, c].log_softmax(-1)[label]))
    return torch.tensor(sum(terms) / max(1, len(terms)))


@pytest.mark.parametrize("name", HEADS)
def test_losses_are_those_of_a_slow_loop(name: str, examples: Examples, answered: Answered) -> None:
    head = build(name)
    logits = head(answer(), P)
    assert logits.shape == HEADS[name][1]
    loss = head.measure(logits, examples, answered).loss
    assert loss.shape == (B,)
    for b in range(B):
        slow = expected(name, logits.detach(), examples, answered, b)
        assert loss[b].item() == pytest.approx(slow.item(), abs=1e-6), b


@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_those_of_finite_differences(
    name: str, examples: Examples, answered: Answered
) -> None:
    head, start = build(name), answer()
    parameters = list(head.parameters())
    kept = [p.detach().clone().requires_grad_() for p in parameters]

    def loss(answer: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(dict(head.named_parameters()), values, strict=True))
        logits = torch.func.functional_call(head, named, (answer, P))
        return head.measure(logits, examples, answered).loss

    assert torch.autograd.gradcheck(loss, (start, *kept))


@pytest.mark.parametrize("name", HEADS)
def test_only_a_head_that_is_not_detached_teaches_the_trunk(
    name: str, examples: Examples, answered: Answered
) -> None:
    for detach in (False, True):
        head, start = build(name, detach), answer()
        head.measure(head(start, P), examples, answered).loss.sum().backward()
        assert (start.grad is None) == detach
        assert all(p.grad is not None and p.grad.any() for p in head.parameters())


@pytest.mark.parametrize("name", HEADS)
def test_metrics_are_those_that_are_announced(
    name: str, examples: Examples, answered: Answered
) -> None:
    head = build(name)
    metrics = head.measure(head(answer(), P), examples, answered).metrics
    assert tuple(metrics) == head.metric_names
    assert all(value.shape == (B,) and not value.requires_grad for value in metrics.values())


def test_confidence_says_how_often_and_how_much_it_errs(answered: Answered) -> None:
    head = build("confidence")
    logits = torch.randn(B, S, generator=torch.Generator().manual_seed(5))
    metrics = head.measure(logits, {}, answered).metrics
    for b in range(B):
        gaps, hits, number = [0.0] * 10, 0, int(answered.labelled[b].sum())
        for s in range(S):
            if answered.labelled[b, s]:
                share, right = logits[b, s].sigmoid().item(), bool(answered.right[b, s])
                hits += (share > 0.5) == right
                gaps[int(share * 10)] += (share - right) / number
        assert metrics["accuracy"][b].item() == pytest.approx(hits / max(1, number))
        for i, gap in enumerate(gaps):
            assert metrics[f"bin{i}_gap"][b].item() == pytest.approx(gap, abs=1e-6)


def test_a_confidence_of_one_is_in_the_last_bin(answered: Answered) -> None:
    metrics = build("confidence").measure(torch.full((B, S), 100.0), {}, answered).metrics
    assert metrics["bin9_gap"][1] > 0
    assert metrics["accuracy"][0] == 1


def test_the_calibration_error_is_what_the_bins_are_off() -> None:
    figures = dict.fromkeys(GAPS, 0.0) | {GAPS[2]: -0.25, GAPS[7]: 0.125, "accuracy": 0.5}
    assert with_calibration_error(figures) == {"accuracy": 0.5, CALIBRATION_ERROR: 0.375}
    assert with_calibration_error({"accuracy": 0.5}) == {"accuracy": 0.5}


def test_attention_is_precise_when_the_cells_that_change_come_first() -> None:
    inputs = torch.tensor([[1, 1, 1, 1]] * 3)
    labels = torch.tensor([[2, 1, 2, 1], [1, 1, 1, 1], [NONE, 2, NONE, 1]])
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0] * 4, [9.0, 5.0, 0.0, 1.0]])
    answered = Answered(labels != NONE, labels == labels, torch.ones(3, dtype=torch.bool))
    metrics = (
        build("attention").measure(logits, {"inputs": inputs, "labels": labels}, answered).metrics
    )
    # Of the two likeliest cells one changes; nothing changes; a cell without a label comes first.
    assert metrics["precision"].tolist() == [0.5, 1.0, 0.0]


def test_fields_are_right_where_they_are_known(examples: Examples, answered: Answered) -> None:
    for name, field in (("action", "a"), ("pixel", "p")):
        targets = examples[field].clamp_min(0)
        logits = torch.nn.functional.one_hot(targets, CLASSES).float()
        metrics = build(name).measure(logits, examples, answered).metrics
        assert metrics["accuracy"].tolist() == [1.0, 1.0, 1.0, 0.0]
        wrong = logits.roll(1, -1)
        assert not build(name).measure(wrong, examples, answered).metrics["accuracy"].any()


def test_halt_starts_near_going_on_and_is_right_when_it_says_so() -> None:
    head = HaltHead(D, detach=False)
    logits = head(answer().float(), P)
    assert torch.equal(logits, torch.tensor([[0.0, -5.0]]).expand(B, 2))
    whole = torch.tensor([True, False, True, False])
    answered = Answered(whole[:, None], whole[:, None], whole)
    assert head.measure(logits, {}, answered).metrics["accuracy"].tolist() == [0, 1, 0, 1]
