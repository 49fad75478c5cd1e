"""Diagnostics of a training run: numbers that tell why it does not learn, and warnings in words.

A step's outputs are measured on the device, gathered over the ranks in one collective, and judged
on the host. Nothing here changes what a run computes.
"""

import math
from collections import deque
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
SURE_CELLS_RIGHT = 0.5
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
TASK_HEAD = "lm"
# What may be wrong, by the name under which a checkpoint knows it, in the order of the warnings.
# Values that are not finite are told at once and during warm-up too.
NOT_FINITE = "not_finite"
FAULTS = (
    *(NOT_FINITE, "one_token", "flat", "sure_and_wrong", "large_logits"),
    *("always_halts", "always_continues", "ignores_correctness", "outweighs"),
)


class Diagnosis(NamedTuple):
    """Numbers by name (`diagnose/...`), and warnings that are due, a sentence each."""

    numbers: dict[str, float]
    warnings: list[str]


def head_gradient_norms(losses: Mapping[str, Tensor], answer: Tensor) -> dict[str, Tensor]:
    """L2 norm, 0-dim, of the gradient of each head's loss (0-dim) with respect to `answer`.

    No parameter's gradient is touched, and the graph stays.
    """
    norms = {}
    for name, loss in losses.items():
        if loss.requires_grad:
            (grad,) = torch.autograd.grad(loss, answer, retain_graph=True, materialize_grads=True)
            norms[name] = grad.float().norm()
        else:
            norms[name] = answer.new_zeros((), dtype=torch.float32)
    return norms


def trunk_gradient_norms(
    model: ACTLossHead, output: LossOutput, global_batch_size: int
) -> dict[str, Tensor]:
    """Norms of the heads' gradients at the trunk's answer, float32 0-dim, as they enter the loss.

    The heads read the answer once more outside the step's own graph, which a compiled model does
    not show; random numbers that they draw (dropout) are put back.
    """
    answer = output.carry.inner[model.model.inner.latents[0]].detach().requires_grad_()
    devices = [answer.device] if answer.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        losses = model.weighted_losses(output, answer)
        means = {name: loss / global_batch_size for name, loss in losses.items()}
        return head_gradient_norms(means, answer)


class MeasuredShard(NamedTuple):
    """One shard on the device.

    Attributes:
        sums: over the cells, by name, 0-dim or [V].
        rows: float64 [B, 4]: has labels, wholly right, would halt, q_halt; 0 where there is none.
        halting_head: name of the head that gives q_halt, if there is one.
        has_halting: whether it has a say.
        head_squares: squares of the heads' gradient norms, 0-dim.
    """

    sums: dict[str, Tensor]
    rows: Tensor
    halting_head: str | None
    has_halting: bool
    head_squares: dict[str, Tensor]


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
    ) -> MeasuredShard:
        """Measure a shard, on the device: only finite logits of tokens that the head may predict,
        and of the entropy only cells all of whose logits are finite.

        Args:
            logits: [B, S, V].
            labels: integers [B, S], -100 where there is none.
            q_halt_logits: [B], None without a head that says when to halt.
            halts: bool [B], rows that it would halt; None where it has no say.
            head_norms: gradient norms at the trunk, over the shard's rows, 0-dim each.
        """
        logits = logits.detach()
        wide, vocab_size = widened(logits), logits.shape[-1]
        finite = wide.isfinite()
        known = torch.where(finite, wide, 0.0)
        told = finite & (wide > NEVER / 2)
        ranged = torch.where(told, wide, 0.0)
        log_p = self._log_probs(known)
        entropy = -(log_p.exp() * log_p).sum(-1)
        labelled = labels != IGNORE_LABEL_ID
        clean = labelled & finite.all(-1)
        predicted = logits.argmax(-1)
        right = predicted == labels
        sums = {
            "logits": told.sum(),
            "logits_sum": ranged.sum(dtype=torch.float64),
            "logits_squares": ranged.square().sum(dtype=torch.float64),
            "logits_min": torch.where(told, wide, math.inf).min(),
            "logits_max": torch.where(told, wide, -math.inf).max(),
            "logits_nonfinite": (~finite).sum(),
            "entropy": torch.where(clean, entropy, 0.0).sum(dtype=torch.float64),
            "clean_cells": clean.sum(),
            "cells_right": (labelled & right).sum(),
            "predicted": torch.bincount(predicted[labelled].long(), minlength=vocab_size),
            "labels": torch.bincount(labels[labelled].long(), minlength=vocab_size),
        }
        rows_right = (~labelled | right).all(-1)
        none = torch.zeros_like(rows_right)
        columns = [labelled.any(-1), rows_right, halts, q_halt_logits]
        rows = torch.stack([(none if c is None else c.detach()).double() for c in columns], -1)
        sums["q_nonfinite"] = (~rows[:, 3].isfinite()).sum()
        head = None if q_halt_logits is None else self._halting_head
        squares = {name: norm.square() for name, norm in head_norms.items()}
        return MeasuredShard(sums, rows, head, halts is not None, squares)

    def diagnose(
        self, step: int, shards: Sequence[MeasuredShard], group_norms: Mapping[str, Tensor]
    ) -> Diagnosis:
        """Bring the shards of all ranks together and judge them, which waits for the device;
        `group_norms` are of the optimizer's groups' gradients, 0-dim, the same on all ranks.
        """
        seen, warm = _gather(self._ranks, shards, group_norms), step > self.warmup_steps
        q = _q_sums(seen)
        numbers = _numbers(seen, q)
        if warm:
            self._window.append(q)
        faults = _cell_faults(seen, numbers)
        if len(self._window) == WINDOW:
            window = _QSums(*map(sum, zip(*self._window, strict=True)))
            faults |= _halting_faults(seen, window)
        warnings = []
        for name in FAULTS if warm else [NOT_FINITE]:
            at_once = name == NOT_FINITE and name in faults
            confirmations = 1 if at_once else self._confirmations
            if self._conditions[name].tell(name in faults, confirmations):
                warnings.append(f"after step {step:,} {faults[name]}")
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


class _Gathered(NamedTuple):
    """One step on the host, over all shards of all ranks: `MeasuredShard`, with gradient norms."""

    sums: dict[str, np.ndarray]  # float64 [1] or [V]
    rows: np.ndarray
    halting_head: str | None
    has_halting: bool
    head_norms: dict[str, float]
    group_norms: dict[str, float]

    def sum(self, name: str) -> float:
        return float(self.sums[name][0])


def _gather(
    ranks: Ranks, shards: Sequence[MeasuredShard], group_norms: Mapping[str, Tensor]
) -> _Gathered:
    """Bring everything to the host of every rank at once."""
    first = shards[0]
    parts = [
        [*shard.sums.values(), *shard.head_squares.values(), *group_norms.values(), shard.rows]
        for shard in shards
    ]
    flat = [torch.cat([part.detach().double().reshape(-1) for part in own]) for own in parts]
    gathered = ranks.to_host(ranks.concat(torch.stack(flat))).numpy()
    ends = np.cumsum([part.numel() for part in parts[0]])[:-1]
    values = iter(np.split(gathered, ends, axis=1))  # [shards, size] each.
    reductions = {"logits_min": np.min, "logits_max": np.max}
    return _Gathered(
        {name: reductions.get(name, np.sum)(next(values), axis=0) for name in first.sums},
        head_norms={name: float(next(values).sum()) ** 0.5 for name in first.head_squares},
        group_norms={name: float(next(values)[0, 0]) for name in group_norms},
        rows=next(values).reshape(-1, first.rows.shape[1]),
        halting_head=first.halting_head,
        has_halting=first.has_halting,
    )


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


def _q_sums(seen: _Gathered) -> _QSums:
    rows = seen.rows[seen.rows[:, 0] > 0]  # The others count as right without being it.
    right, halts, q = rows[:, 1] > 0, rows[:, 2].sum(), rows[:, 3]
    good, bad = q[right & np.isfinite(q)], np.sort(q[~right & np.isfinite(q)])
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    pairs = len(good) * len(bad) if seen.halting_head else 0
    variance = pairs * (len(good) + len(bad) + 1) / 12
    return _QSums(*map(float, (pairs, below.sum() / 2, variance, len(rows), right.sum(), halts)))


def _numbers(seen: _Gathered, q: _QSums) -> dict[str, float]:
    """What is reported; what has nothing to stand on is left out."""
    numbers = {"nonfinite": seen.sum("logits_nonfinite") + seen.sum("q_nonfinite")}
    if count := seen.sum("logits"):
        mean = seen.sum("logits_sum") / count
        spread = seen.sum("logits_squares") / count - mean**2
        numbers["logits_min"] = seen.sum("logits_min")
        numbers["logits_max"] = seen.sum("logits_max")
        numbers["logits_std"] = max(spread, 0.0) ** 0.5
    predicted, labels = seen.sums["predicted"], seen.sums["labels"]
    if cells := labels.sum():
        token = int(predicted.argmax())
        numbers["top_token"] = token
        numbers["top_token_share"] = float(predicted[token] / cells)
        numbers["top_token_label_share"] = float(labels[token] / cells)
        numbers["cells_right"] = float(seen.sum("cells_right") / cells)
    if cells := seen.sum("clean_cells"):
        numbers["entropy"] = seen.sum("entropy") / cells / math.log(len(labels))
    if q.rows:
        numbers["rows_right"] = q.right / q.rows
        if seen.has_halting:
            numbers["halts"] = q.halts / q.rows
    if q.pairs:
        numbers["q_auc"] = q.wins / q.pairs
    return numbers | {f"gradient/{name}": norm for name, norm in seen.head_norms.items()}


def _cell_faults(seen: _Gathered, numbers: Mapping[str, float]) -> dict[str, str]:
    """What is wrong with this step's logits and gradients, by name."""
    faults = {}
    counts = {"token logits": seen.sum("logits_nonfinite"), "Q logits": seen.sum("q_nonfinite")}
    parts = [f"{count:,.0f} {name}" for name, count in counts.items() if count]
    for kind, norms in (("head", seen.head_norms), ("group", seen.group_norms)):
        bad = [name for name, norm in norms.items() if not math.isfinite(norm)]
        parts += [f"the gradient of {kind} {name}" for name in bad]
    if parts:
        faults[NOT_FINITE] = (
            f"not finite: {', '.join(parts)}; a lower lr or a max_grad_norm in optimizer.groups "
            "usually helps"
        )
    share, in_labels = numbers.get("top_token_share", 0.0), numbers.get("top_token_label_share", 0)
    if 1 - share < OTHERS_SHARE * (1 - in_labels):
        faults["one_token"] = (
            f"{_percent(share)} of the predicted cells are token {numbers['top_token']:.0f} (its "
            f"share of the labels is {_percent(in_labels)}): the model says one thing for "
            "everything; a lower lr or a longer lr_warmup_steps usually helps"
        )
    if (entropy := numbers.get("entropy", HALF)) > FLAT_ENTROPY:
        faults["flat"] = (
            f"the logits are flat: the entropy of the predictions is {_percent(entropy)} of the "
            "largest possible; a higher lr or a lower weight_decay usually helps"
        )
    if entropy < SURE_ENTROPY and numbers["cells_right"] < SURE_CELLS_RIGHT:
        faults["sure_and_wrong"] = (
            f"the model is sure and wrong: the entropy of the predictions is {_percent(entropy)} "
            f"of the largest possible, and {_percent(numbers['cells_right'])} of the cells are "
            "right; a lower lr or a higher weight_decay usually helps"
        )
    low, high = numbers.get("logits_min", 0.0), numbers.get("logits_max", 0.0)
    if max(-low, high) >= LARGE_LOGIT:
        faults["large_logits"] = (
            f"the token logits range from {low:.3g} to {high:.3g}, too far to tell neighbours "
            "apart in bfloat16; a lower lr or a higher weight_decay usually helps"
        )
    others = {name: norm for name, norm in seen.head_norms.items() if name != TASK_HEAD}
    # Where most rows are right, the token head has little left to say, and others may be louder.
    if others and numbers.get("rows_right", 1.0) < HALF:
        name, norm = max(others.items(), key=lambda item: item[1])
        task = seen.head_norms[TASK_HEAD]
        if OUTWEIGHS * task < norm < math.inf:
            faults["outweighs"] = (
                f"the gradient of head {name} at the trunk ({norm:.3g}) outweighs that of the "
                f"token head ({task:.3g}); a lower arch.loss.weights.{name} usually helps"
            )
    return faults


def _halting_faults(seen: _Gathered, q: _QSums) -> dict[str, str]:
    """What is wrong with the halting of the last steps, by name."""
    faults = {}
    who = "Q" if seen.halting_head == "q_head" else f"the {seen.halting_head}".replace("_", " ")
    rate = f"a higher rate of it (optimizer=grouped optimizer.groups.{seen.halting_head}.lr)"
    if seen.has_halting and q.rows:
        halts, right = _percent(q.halts / q.rows), _percent(q.right / q.rows)
        if q.halts >= (1 - ONE_SIDED) * q.rows and q.right <= HALF * q.rows:
            faults["always_halts"] = (
                f"{who} always halts: {halts} of the rows, although {right} are right; a higher "
                "arch.halt_exploration_prob usually helps"
            )
        if q.halts <= ONE_SIDED * q.rows and q.right >= HALF * q.rows:
            faults["always_continues"] = (
                f"{who} always continues: it halts {halts} of the rows, although {right} are "
                f"right; {rate} usually helps"
            )
    if q.pairs and q.wins / q.pairs + 2 * (q.variance**0.5 / q.pairs) < CHANCE_AUC:
        faults["ignores_correctness"] = (
            f"{who} ignores whether an answer is right: in {_percent(q.wins / q.pairs)} of "
            f"{q.pairs:,.0f} pairs its value is higher for the right row than for the wrong one "
            f"(chance is 50 %); {rate} usually helps"
        )
    return faults


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
