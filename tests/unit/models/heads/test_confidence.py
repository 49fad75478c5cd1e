"""Confidence: how often and how much it errs."""

import pytest
import torch

from models.heads.base import Targets
from models.heads.confidence.config import CALIBRATION_ERROR, GAPS
from models.metrics import as_reported
from tests.unit.models.heads.auxiliary_heads import B, S, build


def test_confidence_says_how_often_and_how_much_it_errs(targets: Targets) -> None:
    head = build("confidence")
    logits = torch.randn(B, S, generator=torch.Generator().manual_seed(5))
    metrics = head.compare(logits, targets)[1]
    for b in range(B):
        gaps, hits, number = [0.0] * 10, 0, int(targets.labelled[b].sum())
        for s in range(S):
            if targets.labelled[b, s]:
                share, right = logits[b, s].sigmoid().item(), bool(targets.right[b, s])
                hits += (share > 0.5) == right
                gaps[int(share * 10)] += (share - right) / number
        assert metrics["accuracy"][b].item() == pytest.approx(hits / max(1, number))
        for i, gap in enumerate(gaps):
            assert metrics[f"bin{i}_gap"][b].item() == pytest.approx(gap, abs=1e-6)


def test_a_confidence_of_one_is_in_the_last_bin(targets: Targets) -> None:
    metrics = build("confidence").compare(torch.full((B, S), 100.0), targets)[1]
    assert metrics["bin9_gap"][1] > 0
    assert metrics["accuracy"][0] == 1


def test_the_calibration_error_is_what_the_bins_are_off() -> None:
    figures = dict.fromkeys(GAPS, 0.0) | {GAPS[2]: -0.25, GAPS[7]: 0.125, "accuracy": 0.5}
    assert as_reported(figures) == {"accuracy": 0.5, CALIBRATION_ERROR: 0.375}
    assert as_reported({"accuracy": 0.5}) == {"accuracy": 0.5}
