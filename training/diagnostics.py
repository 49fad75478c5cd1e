"""Diagnostics of a training run: numbers that show why it does not learn, and warnings.

A step's outputs are measured on the device, gathered over the ranks in one collective, and judged
on the host. Nothing here changes the result of a run.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.heads.base import NEVER
from models.layers import widened
from models.losses import IGNORE_LABEL_ID
from runtime.ranks import Ranks

# A fault is reported when its condition has held for this many diagnoses in a row, over at least
# PATIENCE_STEPS, and is over when the condition has failed for as long. One batch may be odd, and a
# healthy model may predict one token for dozens of steps before it learns to look at the puzzle.
CONFIRMATIONS = 3
PATIENCE_STEPS = 100

# One token dominates if the others are predicted less than a tenth as often as they occur. A bound
# on the token's own share would warn when the labels themselves are mostly one token.
OTHERS_SHARE = 0.1
# A difference of 20 decides a softmax, but near 1,000 bfloat16 numbers are 4 to 8 apart.
LARGE_LOGIT = 1000.0
# Halting is one-sided if at most one row in fifty differs. That is a fault if at least half of the
# rows are wrong (always halts) or right (always continues).
ONE_SIDED = 0.02
HALF = 0.5
NOT_FINITE = "not_finite"

# Faults by name (as saved in checkpoints), each with its condition and its warning. Values that are
# not finite are reported at once, also during warm-up.
FAULTS: dict[str, tuple[Callable[[Mapping[str, Any]], bool], str]] = {
    NOT_FINITE: (
        lambda n: n[NOT_FINITE] != "",
        "not finite: {not_finite}; a lower lr or a max_grad_norm in optimizer.groups usually helps",
    ),
    "one_token": (
        lambda n: 1 - n["top_token_share"] < OTHERS_SHARE * (1 - n["top_token_label_share"]),
        "{top_token_share:.1%} of the predicted cells are token {top_token:.0f}, but only "
        "{top_token_label_share:.1%} of the labels: the model predicts it almost everywhere; "
        "a lower lr or a longer lr_warmup_steps usually helps",
    ),
    "large_logits": (
        lambda n: max(-n["logits_min"], n["logits_max"]) >= LARGE_LOGIT,
        "the token logits range from {logits_min:.3g} to {logits_max:.3g}, too far for the "
        "precision of bfloat16; a lower lr or a higher weight_decay usually helps",
    ),
    "always_halts": (
        lambda n: n["halts"] >= 1 - ONE_SIDED and n["rows_right"] <= HALF,
        "{head} always halts: it halts {halts:.1%} of the rows, although only {rows_right:.1%} are "
        "right; a higher arch.halt_exploration_prob usually helps",
    ),
    "always_continues": (
        lambda n: n["halts"] <= ONE_SIDED and n["rows_right"] >= HALF,
        "{head} always continues: it halts {halts:.1%} of the rows, although {rows_right:.1%} are "
        "right; a higher lr for it (optimizer=grouped optimizer.groups.{head}.lr) usually helps",
    ),
}


class Diagnostics:
    """Measures steps, and warns of faults.

    Args:
        interval: steps between diagnoses.
        warmup_steps: steps without warnings, except for values that are not finite.
        halting_head: `q_head`, or the head that takes the place of Q.
        ranks: the numbers are gathered over all ranks; every rank sees the same.
    """

    def __init__(
        self, *, interval: int, warmup_steps: int, halting_head: str | None = "q_head", ranks: Ranks
    ) -> None:
        self.interval, self.warmup_steps = interval, warmup_steps
        self._confirmations = max(CONFIRMATIONS, math.ceil(PATIENCE_STEPS / interval))
        self._halting_head, self._ranks = halting_head, ranks
        # For each fault: whether it is reported, and how many diagnoses in a row say otherwise.
        self._reported = {name: (False, 0) for name in FAULTS}

    def measure(
        self, *, logits: Tensor, labels: Tensor, q_halt_logits: Tensor | None, halts: Tensor | None
    ) -> dict[str, Tensor]:
        """Measure a shard, on the device.

        Args:
            logits: [B, S, V].
            labels: integers [B, S]; -100 is a cell without a label.
            q_halt_logits: [B]; None if no head decides when to halt.
            halts: bool [B], the rows that this head would halt; None if it decides nothing.
        Returns:
            sums over cells and rows, and the range of the logits; 0-dim or [V]. Rows without labels
            count only for that range and for values that are not finite.
        """
        wide, predicted = widened(logits.detach()), logits.argmax(-1)
        finite, labelled = wide.isfinite(), labels != IGNORE_LABEL_ID
        possible = finite & (wide > NEVER / 2)  # Tokens that the head may predict.
        right, counts = predicted == labels, labelled.any(-1)
        none = torch.zeros_like(counts)
        q = none if q_halt_logits is None else q_halt_logits.detach()
        return {
            "logits_min": torch.where(possible, wide, math.inf).min(),
            "logits_max": torch.where(possible, wide, -math.inf).max(),
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
    ) -> tuple[dict[str, float], list[str]]:
        """Gather the shards of all ranks (the host waits for the device) and judge them.

        Return numbers by name (`diagnose/...`), and the warnings that are due, one sentence each.
        `group_norms` are the 0-dim gradient norms of the optimizer's groups.
        """
        norms = {f"group/{name}": norm for name, norm in group_norms.items()}
        seen = _gather(self._ranks, [own | norms for own in shards])
        numbers = _numbers(seen)
        facts = numbers | {"head": self._halting_head, NOT_FINITE: _not_finite(seen)}
        # A number that could not be measured is NaN, so that no comparison holds.
        facts, warnings = defaultdict(lambda: math.nan, facts), []
        for name in FAULTS if step > self.warmup_steps else [NOT_FINITE]:
            holds, text = FAULTS[name]
            if self._is_due(name, holds(facts)):
                warnings.append(f"after step {step:,} {text.format_map(facts)}")
        return {f"diagnose/{name}": n for name, n in numbers.items()}, warnings

    def _is_due(self, name: str, is_wrong: bool) -> bool:
        """Count a diagnosis of a fault. Return whether to warn of it now."""
        reported, streak = self._reported[name]
        streak = streak + 1 if is_wrong != reported else 0
        if streak < (1 if name == NOT_FINITE and is_wrong else self._confirmations):
            self._reported[name] = (reported, streak)
            return False
        self._reported[name] = (is_wrong, 0)
        return is_wrong

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON: the faults that are reported."""
        return {"conditions": {name: list(one) for name, one in self._reported.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`. An earlier version may have saved other faults."""
        saved = {name: (was, streak) for name, (was, streak) in state["conditions"].items()}
        self._reported |= {name: saved[name] for name in FAULTS if name in saved}


def _gather(ranks: Ranks, shards: Sequence[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    """Join the shards of all ranks on the host of every rank; return float64 [1] or [V] by name."""
    flat = [torch.cat([v.detach().double().reshape(-1) for v in own.values()]) for own in shards]
    gathered = ranks.to_host(ranks.concat(torch.stack(flat))).numpy()
    ends = np.cumsum([value.numel() for value in shards[0].values()])[:-1]
    seen = {}
    for name, values in zip(shards[0], np.split(gathered, ends, axis=1), strict=True):
        join = {"logits_min": np.min, "logits_max": np.max}.get(name, np.sum)
        seen[name] = values[0] if name.startswith("group/") else join(values, axis=0)
    return seen


def _numbers(seen: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the numbers to report, without those that could not be measured."""
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
    """Return a text that names all values that are not finite."""
    counts = {"token logits": seen["logits_nonfinite"][0], "Q logits": seen["q_nonfinite"][0]}
    parts = [f"{count:,.0f} {name}" for name, count in counts.items() if count]
    norms = {name.replace("/", " "): v[0] for name, v in seen.items() if name.startswith("group/")}
    bad = [name for name, norm in norms.items() if not math.isfinite(norm)]
    return ", ".join([*parts, *(f"the gradient of {name}" for name in bad)])
