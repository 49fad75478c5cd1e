"""Diagnostics of a training run: numbers that tell why it does not learn, and warnings in words.

A step's outputs are measured on the device, gathered over the ranks in one collective, and judged
on the host. Nothing here changes what a run computes.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.act import ACTLossHead, LossOutput
from models.heads.base import NEVER
from models.layers import widened
from models.losses import IGNORE_LABEL_ID
from runtime.ranks import Ranks

# A warning is told when its condition held at this many diagnoses in a row, over at least so many
# steps, and is over when it failed for as long: a batch may be odd, and a healthy model may say one
# thing for some dozens of steps before it learns to look at the puzzle.
CONFIRMATIONS = 3
PATIENCE_STEPS = 100
# Diagnoses over which the Q head is judged: one step rarely has enough right and wrong rows.
WINDOW = 10

# One token dominates when anything else is predicted less than a tenth as often as it occurs: a
# bound on the share itself would blame a model for labels that one token dominates.
OTHERS_SHARE = 0.1
# Share of the largest possible entropy. An untrained head, with logits of unit variance, is below
# 0.95 under softmax and stablemax; knowing only which tokens occur at all gives 0.92 on Sudoku.
FLAT_ENTROPY = 0.98
# Below this a calibrated model is right in at least 9 of 10 cells; one that is wrong in half of
# them is not uncertain but stuck.
SURE_ENTROPY = 0.05
# Differences of 20 settle a softmax; neighbours of 1,000 are 4 to 8 apart in bfloat16.
LARGE_LOGIT = 1000.0
# Halting is settled when at most one row in fifty goes against it; half of the rows right (or
# wrong) say that it should not be.
ONE_SIDED = 0.02
HALF = 0.5
# Share of (right row, wrong row) pairs that q_halt ranks rightly. Chance is 0.5, and a Q head that
# learns is soon above 0.7. Judged when two standard errors do not reach from one to the other.
CHANCE_AUC = 0.6
# A head with ten times the gradient of the token head decides the trunk's direction alone. The
# other way round is no fault: tokens are the task, and Q starts with no gradient at the trunk.
OUTWEIGHS = 10.0
TASK_GRADIENT = "gradient/lm"
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
    "flat": (
        lambda n: n["entropy"] > FLAT_ENTROPY,
        "the logits are flat: the entropy of the predictions is {entropy:.1%} of the largest "
        "possible; a higher lr or a lower weight_decay usually helps",
    ),
    "sure_and_wrong": (
        lambda n: n["entropy"] < SURE_ENTROPY and n["cells_right"] < HALF,
        "the model is sure and wrong: the entropy of the predictions is {entropy:.1%} of the "
        "largest possible, and {cells_right:.1%} of the cells are right; a lower lr or a higher "
        "weight_decay usually helps",
    ),
    "large_logits": (
        lambda n: max(-n["logits_min"], n["logits_max"]) >= LARGE_LOGIT,
        "the token logits range from {logits_min:.3g} to {logits_max:.3g}, too far to tell "
        "neighbours apart in bfloat16; a lower lr or a higher weight_decay usually helps",
    ),
    "always_halts": (
        lambda n: n["window_halts"] >= 1 - ONE_SIDED and n["window_right"] <= HALF,
        "{who} always halts: {window_halts:.1%} of the rows, although {window_right:.1%} are "
        "right; a higher arch.halt_exploration_prob usually helps",
    ),
    "always_continues": (
        lambda n: n["window_halts"] <= ONE_SIDED and n["window_right"] >= HALF,
        "{who} always continues: it halts {window_halts:.1%} of the rows, although "
        "{window_right:.1%} are right; a higher rate of it (optimizer=grouped "
        "optimizer.groups.{head}.lr) usually helps",
    ),
    "ignores_correctness": (
        lambda n: n["window_auc"] + 2 * n["window_error"] < CHANCE_AUC,
        "{who} ignores whether an answer is right: in {window_auc:.1%} of {window_pairs:,.0f} "
        "pairs its value is higher for the right row than for the wrong one (chance is 50%); a "
        "higher rate of it (optimizer=grouped optimizer.groups.{head}.lr) usually helps",
    ),
    # Where most rows are right, the token head has little left to say, and others may be louder.
    "outweighs": (
        lambda n: n["rows_right"] < HALF and OUTWEIGHS * n[TASK_GRADIENT] < n["loudest"] < math.inf,
        "the gradient of head {loudest_head} at the trunk ({loudest:.3g}) outweighs that of the "
        "token head ({gradient/lm:.3g}); a lower arch.loss.weights.{loudest_head} usually helps",
    ),
}


class Diagnosis(NamedTuple):
    """Numbers by name (`diagnose/...`), and warnings that are due, a sentence each."""

    numbers: dict[str, float]
    warnings: list[str]


def trunk_gradient_norms(
    model: ACTLossHead, output: LossOutput, global_batch_size: int
) -> dict[str, Tensor]:
    """Norms of the heads' gradients at the trunk's answer, float32 0-dim, as they enter the loss.

    The heads read the answer once more outside the step's own graph, which a compiled model does
    not show; random numbers that they draw (dropout) are put back. No parameter's gradient is
    touched.
    """
    answer = output.carry.inner[model.model.inner.latents[0]].detach().requires_grad_()
    devices = [answer.device] if answer.device.type == "cuda" else []
    norms = {}
    with torch.random.fork_rng(devices), torch.enable_grad():
        for name, loss in model.weighted_losses(output, answer).items():
            norms[name] = answer.new_zeros((), dtype=torch.float32)
            if loss.requires_grad:
                (grad,) = torch.autograd.grad(
                    loss / global_batch_size, answer, retain_graph=True, materialize_grads=True
                )
                norms[name] = grad.float().norm()
    return norms


class Diagnostics:
    """Measures steps and judges what was measured.

    Args:
        interval: steps between diagnoses.
        warmup_steps: steps after which warnings are given; non-finite values are told before.
        log_probs: turns logits [..., V] into log probabilities, as the loss does.
        halting_head: `q_head`, or the head that stands in for Q.
        ranks: over which numbers are gathered; every rank sees the same.
    """

    def __init__(
        self,
        *,
        interval: int,
        warmup_steps: int,
        log_probs: Callable[[Tensor], Tensor],
        halting_head: str | None = "q_head",
        ranks: Ranks,
    ) -> None:
        self.interval, self.warmup_steps = interval, warmup_steps
        self._confirmations = max(CONFIRMATIONS, math.ceil(PATIENCE_STEPS / interval))
        self._log_probs, self._halting_head, self._ranks = log_probs, halting_head, ranks
        self._window: deque[_QSums] = deque(maxlen=WINDOW)
        self._conditions = {name: _Condition() for name in FAULTS}

    def measure(
        self,
        *,
        logits: Tensor,
        labels: Tensor,
        q_halt_logits: Tensor | None,
        halts: Tensor | None,
        head_norms: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Measure a shard, on the device.

        Args:
            logits: [B, S, V].
            labels: integers [B, S], -100 where there is none.
            q_halt_logits: [B], None without a head that says when to halt.
            halts: bool [B], rows that it would halt; None where it has no say.
            head_norms: gradient norms at the trunk, over the shard's rows, 0-dim each.
        Returns:
            sums over the cells, 0-dim or [V]; `rows`, float64 [B, 4]: has labels, wholly right,
            would halt, q_halt, 0 where there is none; squares of `head_norms` (`gradient/...`).
        """
        labelled, right = labels != IGNORE_LABEL_ID, logits.argmax(-1) == labels
        rows_right = (~labelled | right).all(-1)
        none = torch.zeros_like(rows_right)
        columns = [labelled.any(-1), rows_right, halts, q_halt_logits]
        rows = torch.stack([(none if c is None else c.detach()).double() for c in columns], -1)
        return {
            **_cell_sums(logits.detach(), labels, self._log_probs),
            "rows": rows,
            "q_nonfinite": (~rows[:, 3].isfinite()).sum(),
            "has_q": rows.new_tensor(q_halt_logits is not None),
            "has_halting": rows.new_tensor(halts is not None),
            **{f"gradient/{name}": norm.square() for name, norm in head_norms.items()},
        }

    def diagnose(
        self, step: int, shards: Sequence[dict[str, Tensor]], group_norms: Mapping[str, Tensor]
    ) -> Diagnosis:
        """Bring the shards of all ranks together and judge them, which waits for the device;
        `group_norms` are of the optimizer's groups' gradients, 0-dim, the same on all ranks.
        """
        norms = {f"group/{name}": norm for name, norm in group_norms.items()}
        seen, warm = _gather(self._ranks, [own | norms for own in shards]), step > self.warmup_steps
        q = _q_sums(seen)
        numbers = _numbers(seen, q)
        if warm:
            self._window.append(q)
        head = self._halting_head or ""
        who = "Q" if head == "q_head" else f"the {head}".replace("_", " ")
        facts = numbers | _loudest(numbers) | {"who": who, "head": head}
        facts[NOT_FINITE] = _not_finite(seen, numbers)
        if len(self._window) == WINDOW:
            facts |= _over_window(_QSums(*map(sum, zip(*self._window, strict=True))), seen)
        facts, warnings = defaultdict(lambda: math.nan, facts), []
        for name in FAULTS if warm else [NOT_FINITE]:
            holds, text = FAULTS[name]
            is_wrong = holds(facts)
            confirmations = 1 if name == NOT_FINITE and is_wrong else self._confirmations
            if self._conditions[name].tell(is_wrong, confirmations):
                warnings.append(f"after step {step:,} {text.format_map(facts)}")
        return Diagnosis({f"diagnose/{name}": n for name, n in numbers.items()}, warnings)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON: the window, and which warnings were told."""
        return {
            "window": [list(sums) for sums in self._window],
            "conditions": {name: list(astuple(c)) for name, c in self._conditions.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._window = deque((_QSums(*sums) for sums in state["window"]), maxlen=WINDOW)
        for name, condition in state["conditions"].items():
            self._conditions[name] = _Condition(*condition)


@dataclass
class _Condition:
    """Whether a warning was told, and at how many diagnoses in a row it was otherwise since."""

    told: bool = False
    streak: int = 0

    def tell(self, holds: bool, confirmations: int) -> bool:
        """Note a diagnosis; returns whether the warning is due now."""
        self.streak = self.streak + 1 if holds != self.told else 0
        if self.streak < confirmations:
            return False
        self.told, self.streak = holds, 0
        return holds


def _cell_sums(
    logits: Tensor, labels: Tensor, log_probs: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Sum over cells: only finite logits of tokens that the head may predict, and of the entropy
    only cells all of whose logits are finite.
    """
    wide, predicted = widened(logits), logits.argmax(-1)
    finite = wide.isfinite()
    told = finite & (wide > NEVER / 2)
    ranged = torch.where(told, wide, 0.0)
    log_p = log_probs(torch.where(finite, wide, 0.0))
    entropy = -(log_p.exp() * log_p).sum(-1)
    labelled = labels != IGNORE_LABEL_ID
    clean = labelled & finite.all(-1)
    return {
        "logits": told.sum(),
        "logits_sum": ranged.sum(dtype=torch.float64),
        "logits_squares": ranged.square().sum(dtype=torch.float64),
        "logits_min": torch.where(told, wide, math.inf).min(),
        "logits_max": torch.where(told, wide, -math.inf).max(),
        "logits_nonfinite": (~finite).sum(),
        "entropy": torch.where(clean, entropy, 0.0).sum(dtype=torch.float64),
        "clean_cells": clean.sum(),
        "cells_right": (labelled & (predicted == labels)).sum(),
        "predicted": torch.bincount(predicted[labelled].long(), minlength=logits.shape[-1]),
        "labels": torch.bincount(labels[labelled].long(), minlength=logits.shape[-1]),
    }


def _gather(ranks: Ranks, shards: Sequence[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    """Bring the shards of all ranks to the host of every rank; returns float64 by name: what they
    come to in all, [1] or [V]; `rows` [B, 4].
    """
    flat = [torch.cat([v.detach().double().reshape(-1) for v in own.values()]) for own in shards]
    gathered = ranks.to_host(ranks.concat(torch.stack(flat))).numpy()
    ends = np.cumsum([value.numel() for value in shards[0].values()])[:-1]
    seen = {}
    for name, values in zip(shards[0], np.split(gathered, ends, axis=1), strict=True):
        if name == "rows":
            seen[name] = values.reshape(-1, shards[0]["rows"].shape[1])
        elif name in ("logits_min", "logits_max"):
            seen[name] = (np.min if name == "logits_min" else np.max)(values, axis=0)
        else:
            seen[name] = values[0] if name.startswith("group/") else values.sum(axis=0)
    return seen


class _QSums(NamedTuple):
    """What is known of the Q head, as sums that add up over diagnoses.

    Pairs are of a right and a wrong row of the same step: q_halt of different steps belongs to
    different models.
    """

    pairs: float
    wins: float  # Pairs in which the right row has the higher q_halt, ties half.
    variance: float  # Of `wins` if q_halt knew nothing (Mann and Whitney, 1947).
    rows: float  # Those with labels.
    right: float  # Rows wholly right.
    halts: float  # Rows that Q would halt.


def _q_sums(seen: Mapping[str, np.ndarray]) -> _QSums:
    rows = seen["rows"][seen["rows"][:, 0] > 0]  # The others count as right without being it.
    right, halts, q = rows[:, 1] > 0, rows[:, 2].sum(), rows[:, 3]
    good, bad = q[right & np.isfinite(q)], np.sort(q[~right & np.isfinite(q)])
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    pairs = len(good) * len(bad) if seen["has_q"][0] else 0
    variance = pairs * (len(good) + len(bad) + 1) / 12
    return _QSums(*map(float, (pairs, below.sum() / 2, variance, len(rows), right.sum(), halts)))


def _numbers(seen: Mapping[str, np.ndarray], q: _QSums) -> dict[str, float]:
    """What is reported; what has nothing to stand on is left out."""
    one = {name: float(values[0]) for name, values in seen.items() if values.shape == (1,)}
    numbers = {"nonfinite": one["logits_nonfinite"] + one["q_nonfinite"]}
    if count := one["logits"]:
        spread = one["logits_squares"] / count - (one["logits_sum"] / count) ** 2
        numbers |= {name: one[name] for name in ("logits_min", "logits_max")}
        numbers["logits_std"] = max(spread, 0.0) ** 0.5
    predicted, labels = seen["predicted"], seen["labels"]
    if cells := labels.sum():
        token = int(predicted.argmax())
        numbers["top_token"] = token
        numbers["top_token_share"] = float(predicted[token] / cells)
        numbers["top_token_label_share"] = float(labels[token] / cells)
        numbers["cells_right"] = float(one["cells_right"] / cells)
    if cells := one["clean_cells"]:
        numbers["entropy"] = one["entropy"] / cells / math.log(len(labels))
    if q.rows:
        numbers["rows_right"] = q.right / q.rows
        if one["has_halting"]:
            numbers["halts"] = q.halts / q.rows
    if q.pairs:
        numbers["q_auc"] = q.wins / q.pairs
    norms = {name: value**0.5 for name, value in one.items() if name.startswith("gradient/")}
    return numbers | norms


def _over_window(q: _QSums, seen: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return what the halting of the last steps is judged by."""
    facts = {}
    if q.rows and seen["has_halting"][0]:
        facts |= {"window_halts": q.halts / q.rows, "window_right": q.right / q.rows}
    if q.pairs:
        facts |= {"window_pairs": q.pairs, "window_auc": q.wins / q.pairs}
        facts["window_error"] = q.variance**0.5 / q.pairs
    return facts


def _loudest(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return the head with the largest gradient beside the token head."""
    norms = {name: n for name, n in numbers.items() if name.startswith("gradient/")}
    norms.pop(TASK_GRADIENT, None)
    if not norms:
        return {}
    name, norm = max(norms.items(), key=lambda item: item[1])
    return {"loudest": norm, "loudest_head": name.removeprefix("gradient/")}


def _not_finite(seen: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> str:
    """Name what is not finite."""
    counts = {"token logits": seen["logits_nonfinite"][0], "Q logits": seen["q_nonfinite"][0]}
    parts = [f"{count:,.0f} {name}" for name, count in counts.items() if count]
    norms = {f"head {n}": v for n, v in numbers.items() if n.startswith("gradient/")}
    norms |= {n.replace("/", " "): v[0] for n, v in seen.items() if n.startswith("group/")}
    bad = [name for name, norm in norms.items() if not math.isfinite(norm)]
    return ", ".join([*parts, *(f"the gradient of {n.replace('gradient/', '')}" for n in bad)])
