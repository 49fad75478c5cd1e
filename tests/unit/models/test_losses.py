"""Losses against their definitions in float64; metrics against a slow loop over rows and cells."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.act import ACT, COUNTED_METRICS, ACTCarry, ACTLossHead, Drawn, LossOutput
from models.config import ACTLossConfig
from models.heads.base import Examples, Outputs
from models.heads.linear import Linear
from models.heads.q import QHead
from models.hrm.config import HRMConfig
from models.losses import IGNORE_LABEL_ID as NONE
from models.losses import LOG_PROBS, CrossEntropy, stablemax_log_probs


def defined_stablemax(logits: Tensor) -> Tensor:
    """Return log(s(x) / sum s(x)): s(x) = x + 1 for x >= 0, 1 / (1 - x) below; in float64."""
    x = logits.double()
    s = torch.where(x >= 0, x.clamp_min(0) + 1, 1 / (1 - x.clamp_max(0)))
    return (s / s.sum(-1, keepdim=True)).log()


def test_stablemax_equals_its_definition() -> None:
    torch.manual_seed(0)
    for scale in (1e-3, 1.0, 30.0, 1e4):
        logits = scale * torch.randn(50, 11)
        actual = stablemax_log_probs(logits)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), defined_stablemax(logits), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("huge", [1e4, 1e15, 1e30, 3e38])
def test_stablemax_of_huge_logits(huge: float) -> None:
    logits = torch.tensor([[huge, 0.0, -huge], [huge, huge, 1.0], [-huge, -huge, -1.0]])
    logits.requires_grad_()
    actual = stablemax_log_probs(logits)
    torch.testing.assert_close(
        actual.double(), defined_stablemax(logits.detach()), rtol=1e-5, atol=2e-6
    )
    actual.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_stablemax_gradient_equals_that_of_its_definition_zero_included() -> None:
    torch.manual_seed(0)
    values = torch.randn(20, 7, dtype=torch.float64)
    values[:, ::3] = 0.0
    values[0] = -0.0
    weight = torch.randn_like(values)
    grads = []
    for function in (stablemax_log_probs, defined_stablemax):
        leaf = values.clone().requires_grad_()
        (grad,) = torch.autograd.grad((function(leaf) * weight).sum(), leaf)
        grads.append(grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-9)
    # log s has slope 1 at 0: a head that starts at 0 learns.
    at_zero = torch.zeros(1, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(stablemax_log_probs(at_zero)[0, 0], at_zero)
    torch.testing.assert_close(grad, torch.tensor([[0.75, -0.25, -0.25, -0.25]]))


# The loss head on chosen outputs


class Fixed(nn.Module):
    """A stand-in for ACT with chosen outputs."""

    judge = ACT.judge

    def __init__(self, carry: ACTCarry, outputs: Outputs, config: HRMConfig) -> None:
        super().__init__()
        self.carry, self.outputs = carry, outputs
        self.halt_max_steps, self.at_targets = config.halt_max_steps, []
        lm = Linear(1, 5)
        lm.loss = CrossEntropy(config.loss)
        heads = {"lm": lm, "q": QHead(config)}
        self.inner = SimpleNamespace(heads=heads, techniques=config.techniques)

    def forward(
        self, carry: ACTCarry, offered: Examples, drawn: Drawn | None
    ) -> tuple[ACTCarry, Outputs]:
        return self.carry, self.outputs


def measured_as(carry: ACTCarry, outputs: Outputs, **settings: Any) -> ACTLossHead:
    """Build a loss head on these outputs, with `settings` of the loss or `techniques`."""
    own = {"techniques": settings.pop("techniques", {}), "loss": settings}
    config = HRMConfig.model_validate({"hidden_size": 8, "num_heads": 1, **own})
    act: Any = Fixed(carry, outputs, config)
    return ACTLossHead(act, config.loss)


def measure(**settings: Any) -> LossOutput:
    """Measure the outputs below, with `settings` as in `measured_as`."""
    carry = ACTCarry({}, torch.tensor(STEPS), torch.tensor(HALTED), {"labels": LABELS})
    outputs = {
        "logits": answering(PREDICTIONS),
        "q_halt_logits": torch.tensor(Q_HALT),
        "q_continue_logits": torch.tensor(Q_CONTINUE),
        "target_q_continue": torch.tensor(TARGET),
    }
    return measured_as(carry, outputs, **settings)(carry, {}, None)


def answering(predictions: Tensor, vocab_size: int = 5) -> Tensor:
    """Return logits with the prediction as largest entry."""
    torch.manual_seed(0)
    logits = torch.randn(*predictions.shape, vocab_size)
    return logits.scatter(-1, predictions.long().unsqueeze(-1), 5.0)


def binary_cross_entropy(logit: float, target: float) -> float:
    share = 1 / (1 + math.exp(-logit))
    return -target * math.log(share) - (1 - target) * math.log(1 - share)


LABELS = torch.tensor(
    [
        [1, 2, 3, 4],  # all right, halted
        [1, 2, 3, NONE],  # two of three right, halted
        [NONE, NONE, 0, NONE],  # its one cell right, halted
        [1, 2, 3, 4],  # all right, not halted
        [NONE, NONE, NONE, NONE],  # no labels, halted
        [4, 3, NONE, NONE],  # none right, not halted
    ],
    dtype=torch.int32,
)
PREDICTIONS = torch.tensor(
    [[1, 2, 3, 4], [1, 0, 3, 0], [3, 3, 0, 3], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 4, 3]]
)
HALTED = [True, True, True, False, True, False]
STEPS = [3, 1, 4, 2, 4, 1]
Q_HALT = [0.0, 1.5, -0.5, 2.0, 3.0, -1.0]
Q_CONTINUE = [0.3, -1.0, 0.0, 2.0, -0.7, 0.1]
TARGET = [0.9, 0.2, 0.5, 0.0, 1.0, 0.4]
WHOLE_RIGHT = [True, False, True, True, True, False]
NAMES = ("lm", "q_halt", "q_continue")


def test_counted_metrics_are_those_of_halted_rows_with_labels() -> None:
    output = measure()
    metrics = {name: value.item() for name, value in output.metrics.items()}
    assert metrics["count"] == 3
    assert metrics["accuracy"] == pytest.approx(1 + 2 / 3 + 1)
    assert metrics["exact_accuracy"] == 2
    # q_halt >= 0 says "right": rows 0 (at exactly 0), not 1, not 2.
    assert metrics["q_halt_accuracy"] == 1
    assert metrics["steps"] == 3 + 1 + 4
    assert set(metrics) == {"count", *COUNTED_METRICS, *(f"{name}_loss" for name in NAMES)}
    assert output.rows["count"].tolist() == [1, 1, 1, 0, 0, 0]
    assert output.rows["exact_accuracy"].tolist() == [1, 0, 1, 0, 0, 0]
    assert output.rows["steps"].tolist() == [3, 1, 4, 0, 0, 0]


@pytest.mark.parametrize("loss_type", LOG_PROBS)
def test_losses_are_sums_over_all_rows(loss_type: str) -> None:
    output = measure(loss_type=loss_type)
    lm, q_halt, q_continue = [], [], []
    log_probs = LOG_PROBS[loss_type](answering(PREDICTIONS))
    for row, labels in enumerate(LABELS.tolist()):
        cells = [-log_probs[row, s, y].item() for s, y in enumerate(labels) if y != NONE]
        lm.append(sum(cells) / max(1, len(cells)))
        q_halt.append(binary_cross_entropy(Q_HALT[row], float(WHOLE_RIGHT[row])))
        q_continue.append(binary_cross_entropy(Q_CONTINUE[row], TARGET[row]))
    for name, values in (("lm_loss", lm), ("q_halt_loss", q_halt), ("q_continue_loss", q_continue)):
        assert output.rows[name].tolist() == pytest.approx(values, rel=1e-5), name
        assert output.metrics[name].item() == pytest.approx(sum(values), rel=1e-5), name
    whole = sum(lm) + 0.5 * (sum(q_halt) + sum(q_continue))
    assert output.loss.item() == pytest.approx(whole, rel=1e-5)


# Weights, smoothing


def parts(output: LossOutput) -> list[Tensor]:
    return [output.rows[f"{name}_loss"] for name in NAMES]


def test_weights_are_those_of_the_configuration() -> None:
    weights = {"lm": 2.0, "q_halt": 0.25, "q_continue": 0.0, "confidence": 9.0}
    output = measure(weights=weights)
    lm, q_halt, _ = (part.sum() for part in parts(output))
    torch.testing.assert_close(output.loss, 2 * lm + 0.25 * q_halt)


def test_later_steps_count_less_and_all_together_as_much() -> None:
    techniques = {"step_weights": {}}
    output = measure(techniques=techniques, weights={"q_continue": 2.0})
    shares = [0.7**step for step in range(16)]
    share_of = {step: 16 * shares[step - 1] / sum(shares) for step in STEPS}
    lm, q_halt, q_continue = parts(output)
    each = lm + 0.5 * q_halt + 2 * q_continue
    whole = sum(share_of[step] * row for step, row in zip(STEPS, each.tolist(), strict=True))
    assert output.loss.item() == pytest.approx(whole, rel=1e-5)
    # Recorded losses and evaluations are not weighted.
    assert output.metrics == measure().metrics
    head = measured_as(output.carry, output.outputs, techniques=techniques).eval()
    assert head(output.carry, {}, None).loss == measure().loss


def test_uncertainty_weights_by_what_is_learned() -> None:
    output = measure(weighting="uncertainty")
    # It starts like fixed weights.
    torch.testing.assert_close(output.loss, measure().loss)

    head = measured_as(output.carry, output.outputs, weighting="uncertainty")
    assert set(head.log_variances) == set(NAMES)
    learned = {"lm": 0.7, "q_halt": -0.3, "q_continue": 2.0}
    for name, value in learned.items():
        head.log_variances[name].data.fill_(value)
    output = head(output.carry, {}, None)
    whole = 0.0
    for name, part in zip(NAMES, parts(output), strict=True):
        s, weight = learned[name], 1.0 if name == "lm" else 0.5
        whole += weight * sum(math.exp(-s) * value + s for value in part.tolist())
    assert output.loss.item() == pytest.approx(whole, rel=1e-5)
    weights = {name: math.exp(-s) * (1.0 if name == "lm" else 0.5) for name, s in learned.items()}
    assert head.learned_weights() == pytest.approx(weights, rel=1e-6)


@pytest.mark.parametrize("loss_type", LOG_PROBS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_and_label_smoothing_equal_their_definition(
    loss_type: str, smoothing: float
) -> None:
    logits = answering(PREDICTIONS).double().requires_grad_()
    settings = {"loss_type": loss_type, "label_smoothing": smoothing}
    judge = CrossEntropy(ACTLossConfig.model_validate(settings))
    losses, logs = judge(logits, LABELS, judge.log_probs), LOG_PROBS[loss_type](logits)
    for b, row in enumerate(LABELS.tolist()):
        for s, label in enumerate(row):
            target = torch.full((5,), smoothing / 5, dtype=torch.float64)
            target[label if label != NONE else 0] += 1 - smoothing
            expected = 0.0 if label == NONE else -(target * logs[b, s]).sum().item()
            assert losses[b, s].item() == pytest.approx(expected, rel=1e-9)
    (grad,) = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    assert torch.equal(grad.abs().sum(-1) > 0, LABELS != NONE)
    output = measure(loss_type=loss_type, label_smoothing=smoothing)
    means = losses.sum(-1) / (LABELS != NONE).sum(-1).clamp_min(1)
    torch.testing.assert_close(output.rows["lm_loss"].double(), means, rtol=1e-5, atol=1e-6)
