"""Diagnostics of a training run: numbers that tell why it does not learn, and warnings in words.

A step's outputs are measured on the device, gathered over the ranks in one collective, and judged
on the host. Nothing here changes what a run computes.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.heads.base import NEVER
from models.layers import widened
from models.losses import IGNORE_LABEL_ID
from runtime.ranks import Ranks

# A warning is told when its condition held at this many diagnoses in a row, over at least so many
# steps, and is over when it failed for as long: a batch may be odd, and a healthy model may say one
# thing for some dozens of steps before it learns to look at the puzzle.
CONFIRMATIONS = 3
PATIENCE_STEPS = 100

# One token dominates when anything else is predicted less than a tenth as often as it occurs: a
# bound on the share itself would blame a model for labels that one token dominates.
OTHERS_SHARE = 0.1
# Differences of 20 settle a softmax; neighbours of 1,000 are 4 to 8 apart in bfloat16.
LARGE_LOGIT = 1000.0
# Halting is settled when at most one row in fifty goes against it; half of the rows right (or
# wrong) say that it should not be.
ONE_SIDED = 0.02
HALF = 0.5
NOT_FINITE = "not_finite"

Facts = Mapping[str, Any]
"""Numbers by name, NaN where there is nothing to stand on: then no comparison holds."""

# What may be wrong, by the name under which a checkpoint knows it: when, and what is told.
# Values that are not finite are told at once and during warm-up too.
FAULTS: dict[str, tuple[Callable[[Facts], bool], str]] = {
    NOT_FINITE: (
        lambda n: n[NOT_FINITE] != "",
        "not finite: {not_finite}; a lower lr or a max_grad_norm in optimizer.groups usually helps",
    ),
    "one_token": (
        lambda n: 1 - n["top_token_share"] < OTHERS_SHARE * (1 - n["top_token_label_share"]),
        "{top_token_share:.1%} of the predicted cells are token {top_token:.0f} (its share of the "
        "labels is {top_token_label_share:.1%}): the model says one thing for everything; a lower "
        "lr or a longer lr_warmup_steps usually helps",
    ),
    "large_logits": (
        lambda n: max(-n["logits_min"], n["logits_max"]) >= LARGE_LOGIT,
        "the token logits range from {logits_min:.3g} to {logits_max:.3g}, too far to tell "
        "neighbours apart in bfloat16; a lower lr or a higher weight_decay usually helps",
    ),
    "always_halts": (
        lambda n: n["halts"] >= 1 - ONE_SIDED and n["rows_right"] <= HALF,
        "{head} always halts: {halts:.1%} of the rows, although {rows_right:.1%} are right; a "
        "higher arch.halt_exploration_prob usually helps",
    ),
    "always_continues": (
        lambda n: n["halts"] <= ONE_SIDED and n["rows_right"] >= HALF,
        "{head} always continues: it halts {halts:.1%} of the rows, although {rows_right:.1%} are "
        "right; a higher rate of it (optimizer=grouped optimizer.groups.{head}.lr) usually helps",
    ),
}


class Diagnosis(NamedTuple):
    """Numbers by name (`diagnose/...`), and warnings that are due, a sentence each."""

    numbers: dict[str, float]
    warnings: list[str]


class Diagnostics:
    """Measures steps and judges what was measured.

    Args:
        interval: steps between diagnoses.
        warmup_steps: steps after which warnings are given; non-finite values are told before.
        halting_head: `q_head`, or the head that stands in for Q.
        ranks: over which numbers are gathered; every rank sees the same.
    """

    def __init__(
        self, *, interval: int, warmup_steps: int, halting_head: str | None = "q_head", ranks: Ranks
    ) -> None:
        self.interval, self.warmup_steps = interval, warmup_steps
        self._confirmations = max(CONFIRMATIONS, math.ceil(PATIENCE_STEPS / interval))
        self._halting_head, self._ranks = halting_head, ranks
        # Whether each fault was told, and at how many diagnoses in a row it was otherwise since.
        self._told = {name: (False, 0) for name in FAULTS}

    def measure(
        self, *, logits: Tensor, labels: Tensor, q_halt_logits: Tensor | None, halts: Tensor | None
    ) -> dict[str, Tensor]:
        """Measure a shard, on the device.

        Args:
            logits: [B, S, V].
            labels: integers [B, S], -100 where there is none.
            q_halt_logits: [B], None without a head that says when to halt.
            halts: bool [B], rows that it would halt; None where it has no say.
        Returns:
            sums over cells and rows, 0-dim or [V]; of rows without labels only what is not finite.
        """
        wide, predicted = widened(logits.detach()), logits.argmax(-1)
        finite, labelled = wide.isfinite(), labels != IGNORE_LABEL_ID
        told = finite & (wide > NEVER / 2)  # Of tokens that the head may predict.
        right, counts = predicted == labels, labelled.any(-1)
        none = torch.zeros_like(counts)
        q = none if q_halt_logits is None else q_halt_logits.detach()
        return {
            "logits_min": torch.where(told, wide, math.inf).min(),
            "logits_max": torch.where(told, wide, -math.inf).max(),
            "logits_nonfinite": (~finite).sum(),
            "cells_right": (labelled & right).sum(),
            "predicted": torch.bincount(predicted[labelled].long(), minlength=logits.shape[-1]),
            "labels": torch.bincount(labels[labelled].long(), minlength=logits.shape[-1]),
            "rows": counts.sum(),
            "rows_right": (counts & (~labelled | right).all(-1)).sum(),
            "halts": (counts & (none if halts is None else halts)).sum(),
            "can_halt": counts.new_tensor(halts is not None),
            "q_nonfinite": (~q.isfinite()).sum(),
        }

    def diagnose(
        self, step: int, shards: Sequence[dict[str, Tensor]], group_norms: Mapping[str, Tensor]
    ) -> Diagnosis:
        """Bring the shards of all ranks together and judge them, which waits for the device;
        `group_norms` are of the optimizer's groups' gradients, 0-dim, the same on all ranks.
        """
        norms = {f"group/{name}": norm for name, norm in group_norms.items()}
        seen = _gather(self._ranks, [own | norms for own in shards])
        numbers = _numbers(seen)
        facts = numbers | {"head": self._halting_head, NOT_FINITE: _not_finite(seen)}
        facts, warnings = defaultdict(lambda: math.nan, facts), []
        for name in FAULTS if step > self.warmup_steps else [NOT_FINITE]:
            holds, text = FAULTS[name]
            if self._is_due(name, holds(facts)):
                warnings.append(f"after step {step:,} {text.format_map(facts)}")
        return Diagnosis({f"diagnose/{name}": n for name, n in numbers.items()}, warnings)

    def _is_due(self, name: str, is_wrong: bool) -> bool:
        """Note a diagnosis of a fault; returns whether it is to be told now."""
        told, streak = self._told[name]
        streak = streak + 1 if is_wrong != told else 0
        if streak < (1 if name == NOT_FINITE and is_wrong else self._confirmations):
            self._told[name] = (told, streak)
            return False
        self._told[name] = (is_wrong, 0)
        return is_wrong

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON: which warnings were told."""
        return {"conditions": {name: list(one) for name, one in self._told.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, also in an earlier version, which knew other faults."""
        saved = {name: (told, streak) for name, (told, streak) in state["conditions"].items()}
        self._told |= {name: saved[name] for name in FAULTS if name in saved}


def _gather(ranks: Ranks, shards: Sequence[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    """Bring the shards of all ranks to the host of every rank; returns what they come to in all,
    float64 [1] or [V] by name.
    """
    flat = [torch.cat([v.detach().double().reshape(-1) for v in own.values()]) for own in shards]
    gathered = ranks.to_host(ranks.concat(torch.stack(flat))).numpy()
    ends = np.cumsum([value.numel() for value in shards[0].values()])[:-1]
    seen = {}
    for name, values in zip(shards[0], np.split(gathered, ends, axis=1), strict=True):
        join = {"logits_min": np.min, "logits_max": np.max}.get(name, np.sum)
        seen[name] = values[0] if name.startswith("group/") else join(values, axis=0)
    return seen


def _numbers(seen: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What is reported; what has nothing to stand on is left out."""
    one = {name: float(values[0]) for name, values in seen.items()}
    numbers = {"nonfinite": one["logits_nonfinite"] + one["q_nonfinite"]}
    if math.isfinite(one["logits_min"]):
        numbers |= {name: one[name] for name in ("logits_min", "logits_max")}
    predicted, labels = seen["predicted"], seen["labels"]
    if cells := labels.sum():
        token = int(predicted.argmax())
        numbers["top_token"] = token
        numbers["top_token_share"] = float(predicted[token] / cells)
        numbers["top_token_label_share"] = float(labels[token] / cells)
        numbers["cells_right"] = float(one["cells_right"] / cells)
        numbers["rows_right"] = one["rows_right"] / one["rows"]
        if one["can_halt"]:
            numbers["halts"] = one["halts"] / one["rows"]
    return numbers


def _not_finite(seen: Mapping[str, np.ndarray]) -> str:
    """Name what is not finite."""
    counts = {"token logits": seen["logits_nonfinite"][0], "Q logits": seen["q_nonfinite"][0]}
    parts = [f"{count:,.0f} {name}" for name, count in counts.items() if count]
    norms = {name.replace("/", " "): v[0] for name, v in seen.items() if name.startswith("group/")}
    bad = [name for name, norm in norms.items() if not math.isfinite(norm)]
    return ", ".join([*parts, *(f"the gradient of {name}" for name in bad)])
