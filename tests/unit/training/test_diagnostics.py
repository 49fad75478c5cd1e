"""Diagnoses equal slow definitions. Each warning is given once for its own fault, and only then."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from models.losses import IGNORE_LABEL_ID
from runtime.ranks import Ranks
from training import diagnostics
from training.config.explain import is_setting
from training.config.schema import TrainConfig
from training.diagnostics import CONFIRMATIONS, Diagnostics

B, S, V = 12, 9, 11
INTERVAL, WARMUP = 100, 500


Diagnosis = tuple[dict[str, float], list[str]]  # The numbers and the warnings.


def build(interval: int = INTERVAL) -> Diagnostics:
    return Diagnostics(interval=interval, warmup_steps=WARMUP, ranks=Ranks("cpu"))


# Returns the values that a fault replaces in a step.
Fault = Callable[[dict[str, Any]], dict[str, Any]]


def healthy(seed: int, rows: int = B) -> dict[str, Any]:
    """Return a step of a model that has 90 % of cells and half of the rows right, and a good Q."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, V, (rows, S), generator=generator)
    said = labels.clone()
    wrong = torch.rand(rows, generator=generator) < 0.5
    wrong[0], wrong[1] = True, False
    said[wrong, :2] = 2 + (labels[wrong, :2] - 1) % (V - 2)
    logits = torch.randn(rows, S, V, generator=generator)
    logits.scatter_add_(-1, said[..., None], torch.full((rows, S, 1), 8.0))
    labels[0, 5:] = IGNORE_LABEL_ID
    q_halt = torch.where(wrong, -2.0, 2.0) + torch.randn(rows, generator=generator)
    return {
        "logits": logits,
        "labels": labels.int(),
        "q_halt_logits": q_halt,
        "halts": q_halt > 0,
        "group_norms": {"all": torch.tensor(1.0)},
    }


def broken(seed: int, fault: Fault) -> dict[str, Any]:
    given = healthy(seed)
    return given | fault(given)


def one_step(judge: Diagnostics, step: int, given: dict[str, Any]) -> Diagnosis:
    rest = dict(given)
    group_norms = rest.pop("group_norms")
    return judge.diagnose(step, [judge.measure(**rest)], group_norms)


def feed(
    diagnose: Diagnostics,
    fault: Fault = lambda step: {},
    *,
    times: int = CONFIRMATIONS,
    start: int = WARMUP,
) -> tuple[list[str], dict[str, float]]:
    """Diagnose `times` steps after `start`. Return all warnings and the last numbers."""
    warnings, numbers = [], {}
    for number in range(1, times + 1):
        given = broken(number, fault)
        numbers, due = one_step(diagnose, start + number * diagnose.interval, given)
        warnings += due
    return warnings, numbers


# Numbers


@pytest.mark.parametrize("seed", [1, 2])
def test_numbers_equal_slow_definitions(seed: int) -> None:
    given = healthy(seed)
    given["logits"][3, 4, 5] = math.nan
    given["logits"][2, 1, 0] = -math.inf
    given["labels"][5] = IGNORE_LABEL_ID
    numbers, _ = one_step(build(), INTERVAL, given)

    values, said, labels, rights = [], [], [], []
    rows: dict[bool, list[bool]] = {True: [], False: []}
    for b in range(B):
        row_right = []
        for s in range(S):
            logits = given["logits"][b, s]
            label = int(given["labels"][b, s])
            values += [float(x) for x in logits if math.isfinite(x)]
            if label == IGNORE_LABEL_ID:
                continue
            said.append(int(logits.argmax()))
            labels.append(label)
            row_right.append(said[-1] == label)
        rights += row_right
        if row_right:
            rows[all(row_right)].append(bool(given["halts"][b]))
    top = max(range(V), key=said.count)
    expected = {
        "nonfinite": 2,
        "logits_min": min(values),
        "logits_max": max(values),
        "top_token": top,
        "top_token_share": said.count(top) / len(said),
        "top_token_label_share": labels.count(top) / len(labels),
        "cells_right": sum(rights) / len(rights),
        "rows_right": len(rows[True]) / (B - 1),
        "halts": sum(rows[True] + rows[False]) / (B - 1),
    }
    assert numbers == pytest.approx({f"diagnose/{k}": v for k, v in expected.items()}, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_logits_may_be_of_any_dtype(dtype: torch.dtype) -> None:
    given = healthy(1)
    wide, _ = one_step(build(), INTERVAL, given)
    given["logits"] = given["logits"].to(dtype).requires_grad_()
    assert one_step(build(), INTERVAL, given)[0] == pytest.approx(wide, rel=0.02)


def test_what_has_nothing_to_stand_on_is_left_out() -> None:
    given = healthy(1)
    given["labels"][:] = IGNORE_LABEL_ID
    given["logits"][:] = math.nan
    assert one_step(build(), INTERVAL, given)[0].keys() == {"diagnose/nonfinite"}
    without_q = {"q_halt_logits": None, "halts": None}
    numbers, _ = one_step(build(), INTERVAL, healthy(1) | without_q)
    assert "diagnose/halts" not in numbers
    assert "diagnose/rows_right" in numbers


# Warnings


def mostly_wrong(step: dict[str, Any]) -> Tensor:
    labels = step["labels"].clone()
    labels[2:, 0] = 2 + (labels[2:, 0] - 1) % (V - 2)
    return labels


def with_value(tensor: Tensor, place: Any, value: Any) -> Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


YES, NO = torch.ones(B, dtype=torch.bool), torch.zeros(B, dtype=torch.bool)
ONE_TOKEN = "100.0% of the predicted cells are token 3, but only"
LARGE = r"the token logits range from -\S+ to 2"
CONTINUES = "q_head always continues: it halts 0.0% of the rows, although 100.0% are right"
Q_INF = "not finite: 1 Q logits;"
# Faults by a part of their warning.
BROKEN: dict[str, Fault] = {
    ONE_TOKEN: lambda s: {"logits": with_value(s["logits"], (..., 3), s["logits"].amax(-1) + 0.5)},
    LARGE: lambda s: {"logits": s["logits"] * 200},
    "q_head always halts: it halts 100.0% of": lambda s: {"labels": mostly_wrong(s), "halts": YES},
    CONTINUES: lambda s: {"labels": s["logits"].argmax(-1), "halts": NO},
}
NOT_FINITE: dict[str, Fault] = {
    "not finite: 1 token": lambda s: {"logits": with_value(s["logits"], (0, 0, 0), math.nan)},
    Q_INF: lambda s: {"q_halt_logits": with_value(s["q_halt_logits"], 0, math.inf)},
    "the gradient of group all;": lambda s: {"group_norms": {"all": torch.tensor(math.nan)}},
}
ALL = BROKEN | NOT_FINITE
FAULTS = pytest.mark.parametrize("words", ALL)


def test_no_warning_for_a_healthy_model() -> None:
    assert feed(build(), times=100)[0] == []


@FAULTS
def test_each_fault_is_told_once_alone_and_again_when_it_had_gone_away(words: str) -> None:
    diagnose, fault = build(), ALL[words]
    for _ in range(2):
        (warning,) = feed(diagnose, fault, times=3 * CONFIRMATIONS)[0]
        assert re.search(words, warning)
        assert re.match(r"after step [\d,]+ ", warning)
        assert warning.endswith("usually helps")
        advised = re.findall(r"\b(?:lr|[a-z]+(?:[_.][A-Za-z_]+)+)\b", warning.rpartition(";")[2])
        assert advised
        # `max_grad_norm` is a setting of each group.
        assert all(is_setting(n, TrainConfig) for n in advised if n != "max_grad_norm")
        assert feed(diagnose)[0] == []


@FAULTS
def test_a_moment_without_the_fault_is_not_its_end(words: str) -> None:
    diagnose, fault = build(), ALL[words]
    feed(diagnose, fault)
    assert feed(diagnose, times=CONFIRMATIONS - 1)[0] == []
    assert feed(diagnose, fault)[0] == []


@FAULTS
def test_warm_up_is_no_time_for_judgement(words: str) -> None:
    warned, _ = feed(build(), ALL[words], start=0, times=WARMUP // INTERVAL)
    assert len(warned) == (words in NOT_FINITE)


@pytest.mark.parametrize("interval", [1, 30, 100, 1000])
def test_a_fault_must_last(interval: int) -> None:
    diagnose = build(interval=interval)
    needed = max(CONFIRMATIONS, math.ceil(diagnostics.PATIENCE_STEPS / interval))
    assert feed(diagnose, BROKEN[LARGE], times=needed - 1)[0] == []
    assert len(feed(diagnose, BROKEN[LARGE], times=1)[0]) == 1


def test_labels_that_one_token_dominates_are_no_fault() -> None:
    labels = torch.full((B, S), 3)
    labels[:3, 0] = 4
    logits = 10 * torch.nn.functional.one_hot(labels, V).float()
    warned, numbers = feed(build(), lambda step: {"labels": labels, "logits": logits})
    assert numbers["diagnose/top_token_share"] > 0.95
    assert warned == []


# Shards


def test_shards_are_judged_together() -> None:
    given = healthy(1)
    given["logits"][3, 4, 5] = math.inf
    group_norms = given.pop("group_norms")
    whole, warned = build().diagnose(INTERVAL, [build().measure(**given)], group_norms)
    cuts = [slice(0, 4), slice(4, 8), slice(8, 12)]
    shards = [
        build().measure(**{name: value[cut] for name, value in given.items()}) for cut in cuts
    ]
    parted, warned_of_parts = build().diagnose(INTERVAL, shards, group_norms)
    assert parted == pytest.approx(whole, rel=1e-6)
    assert warned_of_parts == warned
    assert len(warned) == 1


# A checkpoint


@FAULTS
def test_a_stop_changes_no_warning(words: str) -> None:
    def told(diagnose: Diagnostics, steps: range) -> list[list[str]]:
        given = {n: broken(n, ALL[words]) for n in steps}
        return [one_step(diagnose, WARMUP + n * INTERVAL, given[n])[1] for n in steps]

    end, whole = 2 * CONFIRMATIONS, told(build(), range(1, 2 * CONFIRMATIONS))
    for stop in (CONFIRMATIONS, CONFIRMATIONS + 1):
        first, resumed = build(), build()
        parts = told(first, range(1, stop))
        saved = json.loads(json.dumps(first.state(), allow_nan=False))
        saved["conditions"]["of an earlier version"] = [True, 1]
        resumed.restore(saved)
        assert parts + told(resumed, range(stop, end)) == whole
