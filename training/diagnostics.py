"""Diagnostics of a training run: numbers that tell why it does not learn, and warnings in words.

Every `diagnose_interval` steps the trainer hands over a step's outputs. They are measured on the
device, gathered over the ranks in one collective, and judged on the host; the steps between cost
nothing. Nothing here changes what a run computes.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.act import ACTLossHead, LossOutput
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

LogProbs = Callable[[Tensor], Tensor]


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
            (gradient,) = torch.autograd.grad(
                loss, [answer], retain_graph=True, materialize_grads=True
            )
            norms[name] = gradient.float().norm()
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
        return head_gradient_norms(
            {name: loss / global_batch_size for name, loss in losses.items()}, answer
        )


class Diagnostics:
    """Measures steps and judges what was measured.

    Args:
        interval: steps between diagnoses.
        warmup_steps: steps after which warnings are given; non-finite values are told before.
        log_probs: turns logits [..., V] into log probabilities, as the loss does.
        halting_head: `q_head`, or `halt_head` where that stands in for Q.
        ranks: over which numbers are gathered; every rank sees the same.
    """

    def __init__(
        self,
        *,
        interval: int,
        warmup_steps: int,
        log_probs: LogProbs,
        halting_head: str | None = "q_head",
        ranks: Ranks,
    ) -> None:
        self.interval, self.warmup_steps = interval, warmup_steps
        self._confirmations = max(CONFIRMATIONS, math.ceil(PATIENCE_STEPS / interval))
        self._log_probs, self._ranks = log_probs, ranks
        self._halting_head = halting_head
        self._window: deque[_QSums] = deque(maxlen=WINDOW)
        self._conditions = {name: _Condition() for name in _JUDGES}

    def due(self, step: int) -> bool:
        """Whether `step` is to be diagnosed."""
        return step % self.interval == 0

    def measure(
        self,
        *,
        logits: Tensor,
        labels: Tensor,
        q_halt_logits: Tensor | None,
        halts: Tensor | None,
        head_norms: Mapping[str, Tensor],
    ) -> "Measured":
        """Measure a shard, on the device.

        Args:
            logits: [B, S, V].
            labels: integers [B, S], -100 where there is none.
            q_halt_logits: [B], None without a head that says when to halt.
            halts: bool [B], rows that it would halt; None where it has no say.
            head_norms: gradient norms at the trunk, over the shard's rows, 0-dim each.
        """
        return Measured(
            _measure(logits, labels, self._log_probs),
            _measure_rows(logits, labels, q_halt_logits, halts),
            halting_head=None if q_halt_logits is None else self._halting_head,
            has_halting=halts is not None,
            head_squares={name: norm.square() for name, norm in head_norms.items()},
        )

    def diagnose(
        self, step: int, shards: Sequence["Measured"], group_norms: Mapping[str, Tensor]
    ) -> Diagnosis:
        """Bring the shards of all ranks together and judge them; waits for the device.

        Args:
            shards: of this rank, in order.
            group_norms: gradient norms of the optimizer's groups, 0-dim, the same on all ranks.
        Returns:
            the numbers that have something to stand on, and the warnings that are due.
        """
        seen = _gather(self._ranks, shards, group_norms)
        numbers = _numbers(seen)
        if step > self.warmup_steps:
            self._window.append(_QSums.of(seen))
        warnings = list(self._warn(step, seen, numbers))
        return Diagnosis({f"diagnose/{name}": n for name, n in numbers.items()}, warnings)

    def _warn(self, step: int, seen: "_Seen", numbers: Mapping[str, float]) -> Iterator[str]:
        q = _QSums.total(self._window) if len(self._window) == WINDOW else None
        for name, judge in _JUDGES.items():
            if step <= self.warmup_steps and name != _NOT_FINITE:
                continue
            message = judge(seen, numbers, q)
            at_once = name == _NOT_FINITE and message is not None
            confirmations = 1 if at_once else self._confirmations
            if self._conditions[name].tell(message is not None, confirmations):
                yield f"after step {step:,} {message}"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON: the window, and which warnings were told."""
        return {
            "window": [list(sums) for sums in self._window],
            "conditions": {name: [c.told, c.streak] for name, c in self._conditions.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._window = deque((_QSums(*sums) for sums in state["window"]), maxlen=WINDOW)
        for name, condition in state["conditions"].items():
            self._conditions[name] = _Condition(*condition)


@dataclass
class _Condition:
    """Whether a warning was told, and at how many diagnoses in a row that has been out of date."""

    told: bool = False
    streak: int = 0

    def tell(self, holds: bool, confirmations: int) -> bool:
        """Note a diagnosis; returns whether the warning is due now."""
        self.streak = self.streak + 1 if holds != self.told else 0
        if self.streak < confirmations:
            return False
        self.told, self.streak = holds, 0
        return holds


# Measuring, on the device


def _measure(logits: Tensor, labels: Tensor, log_probs: LogProbs) -> dict[str, Tensor]:
    """Sums over the cells by name, 0-dim or [V]; only finite logits, and of the entropy only cells
    all of whose logits are finite.
    """
    logits = logits.detach()
    wide = widened(logits)
    vocab_size = logits.shape[-1]
    finite = wide.isfinite()
    labelled = labels != IGNORE_LABEL_ID
    clean = labelled & finite.all(-1)
    predicted = logits.argmax(-1)
    known = torch.where(finite, wide, 0.0)
    log_p = log_probs(known)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return {
        "logits": finite.sum(),
        "logits_sum": known.sum(dtype=torch.float64),
        "logits_squares": known.square().sum(dtype=torch.float64),
        "logits_min": torch.where(finite, wide, math.inf).min(),
        "logits_max": torch.where(finite, wide, -math.inf).max(),
        "logits_nonfinite": (~finite).sum(),
        "entropy": torch.where(clean, entropy, 0.0).sum(dtype=torch.float64),
        "clean_cells": clean.sum(),
        "cells_right": (labelled & (predicted == labels)).sum(),
        "predicted": torch.bincount(predicted[labelled].long(), minlength=vocab_size),
        "labels": torch.bincount(labels[labelled].long(), minlength=vocab_size),
    }


def _measure_rows(
    logits: Tensor, labels: Tensor, q_halt_logits: Tensor | None, halts: Tensor | None
) -> Tensor:
    """float64 [B, 4]: has labels, wholly right, Q would halt, q_halt; 0 where there is none."""
    labelled = labels != IGNORE_LABEL_ID
    right = (~labelled | (logits.argmax(-1) == labels)).all(-1)
    columns = [labelled.any(-1), right, halts, q_halt_logits]
    return torch.stack(
        [(torch.zeros_like(right) if c is None else c.detach()).double() for c in columns], -1
    )


class Measured(NamedTuple):
    """One shard on the device: what `_measure` and `_measure_rows` found, the head that gives
    q_halt and whether it has a say, and the squares of the heads' gradient norms.
    """

    sums: dict[str, Tensor]
    rows: Tensor
    halting_head: str | None
    has_halting: bool
    head_squares: dict[str, Tensor]


class _Seen(NamedTuple):
    """One step on the host, over all shards of all ranks.

    Attributes:
        sums: as `_measure` has them, float64 [1] or [V].
        rows: float64 [B, 4], as `_measure_rows` has them, all shards' rows.
        halting_head: name of the head that gives q_halt, if there is one.
        has_halting: whether it has a say.
        heads: gradient norms by name.
        groups: gradient norms by name.
    """

    sums: dict[str, np.ndarray]
    rows: np.ndarray
    halting_head: str | None
    has_halting: bool
    heads: dict[str, float]
    groups: dict[str, float]

    def sum(self, name: str) -> float:
        """One of the sums that are single numbers."""
        return float(self.sums[name][0])

    @property
    def who_halts(self) -> str:
        """The halting head in words."""
        return "the halt head" if self.halting_head == "halt_head" else "Q"

    @property
    def its_rate(self) -> str:
        """The setting of its rate."""
        return f"a higher rate of it (optimizer=grouped optimizer.groups.{self.halting_head}.lr)"

    @property
    def labelled_rows(self) -> np.ndarray:
        """The rows that have labels: the others count as right without being it."""
        return self.rows[self.rows[:, 0] > 0]


def _gather(ranks: Ranks, shards: Sequence[Measured], group_norms: Mapping[str, Tensor]) -> _Seen:
    """Bring everything to the host of every rank at once."""
    first = shards[0]
    parts = [
        [*shard.sums.values(), *shard.head_squares.values(), *group_norms.values(), shard.rows]
        for shard in shards
    ]
    flat = torch.stack(
        [torch.cat([part.detach().double().reshape(-1) for part in own]) for own in parts]
    )
    ends = np.cumsum([part.numel() for part in parts[0]])[:-1]
    # [shards, size] each.
    values = iter(np.split(ranks.to_host(ranks.concat(flat)).numpy(), ends, axis=1))
    reductions = {"logits_min": np.min, "logits_max": np.max}
    return _Seen(
        {name: reductions.get(name, np.sum)(next(values), axis=0) for name in first.sums},
        heads={name: float(next(values).sum()) ** 0.5 for name in first.head_squares},
        groups={name: float(next(values)[0, 0]) for name in group_norms},
        rows=next(values).reshape(-1, first.rows.shape[1]),
        halting_head=first.halting_head,
        has_halting=first.has_halting,
    )


# Numbers, on the host


class _QSums(NamedTuple):
    """What is known of the Q head, as sums that add up over diagnoses.

    Pairs are of a right and a wrong row of the same step: q_halt of different steps belongs to
    different models.

    Attributes:
        pairs: number of pairs.
        wins: those in which the right row has the higher q_halt, ties half.
        variance: of `wins` if q_halt knew nothing (Mann and Whitney, 1947).
        rows: labelled rows.
        right: those wholly right.
        halts: those that Q would halt.
    """

    pairs: float
    wins: float
    variance: float
    rows: float
    right: float
    halts: float

    @staticmethod
    def of(seen: _Seen) -> "_QSums":
        """Of one step."""
        rows = seen.labelled_rows
        right, halts, q = rows[:, 1] > 0, rows[:, 2].sum(), rows[:, 3]
        good, bad = q[right & np.isfinite(q)], np.sort(q[~right & np.isfinite(q)])
        below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
        pairs = len(good) * len(bad) if seen.halting_head else 0
        variance = pairs * (len(good) + len(bad) + 1) / 12
        values = (pairs, below.sum() / 2, variance, len(rows), right.sum(), halts)
        return _QSums(*map(float, values))

    @staticmethod
    def total(several: Iterable["_QSums"]) -> "_QSums":
        """Of several steps."""
        return _QSums(*map(sum, zip(*several, strict=True)))


def _numbers(seen: _Seen) -> dict[str, float]:
    """What is reported; what has nothing to stand on is left out."""
    numbers = {"nonfinite": seen.sum("logits_nonfinite") + _q_nonfinite(seen)}
    if count := seen.sum("logits"):
        mean = seen.sum("logits_sum") / count
        spread = seen.sum("logits_squares") / count - mean**2
        numbers["logits_min"] = seen.sum("logits_min")
        numbers["logits_max"] = seen.sum("logits_max")
        numbers["logits_std"] = max(spread, 0.0) ** 0.5
    if cells := seen.sums["labels"].sum():
        token = int(seen.sums["predicted"].argmax())
        numbers["top_token"] = token
        numbers["top_token_share"] = float(seen.sums["predicted"][token] / cells)
        numbers["top_token_label_share"] = float(seen.sums["labels"][token] / cells)
        numbers["cells_right"] = float(seen.sum("cells_right") / cells)
    if cells := seen.sum("clean_cells"):
        largest = math.log(len(seen.sums["labels"]))
        numbers["entropy"] = seen.sum("entropy") / cells / largest
    q = _QSums.of(seen)
    if q.rows:
        numbers["rows_right"] = q.right / q.rows
        if seen.has_halting:
            numbers["halts"] = q.halts / q.rows
    if q.pairs:
        numbers["q_auc"] = q.wins / q.pairs
    return numbers | {f"gradient/{name}": norm for name, norm in seen.heads.items()}


def _q_nonfinite(seen: _Seen) -> int:
    return int((~np.isfinite(seen.rows[:, 3])).sum())


# Judging: a sentence where something is wrong, without the step that it begins with


def _not_finite(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    found = {"token logits": seen.sum("logits_nonfinite"), "Q logits": _q_nonfinite(seen)}
    parts = [f"{count:,.0f} {name}" for name, count in found.items() if count]
    for kind, norms in (("head", seen.heads), ("group", seen.groups)):
        parts += [
            f"the gradient of {kind} {name}"
            for name, norm in norms.items()
            if not math.isfinite(norm)
        ]
    if not parts:
        return None
    return (
        f"not finite: {', '.join(parts)}; a lower lr or a max_grad_norm in optimizer.groups "
        "usually helps"
    )


def _one_token(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    if "top_token" not in numbers:
        return None
    share, in_labels = numbers["top_token_share"], numbers["top_token_label_share"]
    if 1 - share >= OTHERS_SHARE * (1 - in_labels):
        return None
    return (
        f"{_percent(share)} of the predicted cells are token {numbers['top_token']:.0f} (its share "
        f"of the labels is {_percent(in_labels)}): the model says one thing for everything; a "
        "lower lr or a longer lr_warmup_steps usually helps"
    )


def _flat(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    if numbers.get("entropy", 0.0) <= FLAT_ENTROPY:
        return None
    return (
        f"the logits are flat: the entropy of the predictions is {_percent(numbers['entropy'])} of "
        "the largest possible; a higher lr or a lower weight_decay usually helps"
    )


def _sure_and_wrong(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    if numbers.get("entropy", 1.0) >= SURE_ENTROPY or numbers["cells_right"] >= SURE_CELLS_RIGHT:
        return None
    return (
        f"the model is sure and wrong: the entropy of the predictions is "
        f"{_percent(numbers['entropy'])} of the largest possible, and "
        f"{_percent(numbers['cells_right'])} of the cells are right; a lower lr or a higher "
        "weight_decay usually helps"
    )


def _large_logits(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    low, high = numbers.get("logits_min", 0.0), numbers.get("logits_max", 0.0)
    if max(-low, high) < LARGE_LOGIT:
        return None
    return (
        f"the token logits range from {low:.3g} to {high:.3g}, too far to tell neighbours apart in "
        "bfloat16; a lower lr or a higher weight_decay usually helps"
    )


def _always_halts(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    if q is None or not seen.has_halting or not q.rows:
        return None
    if q.halts < (1 - ONE_SIDED) * q.rows or q.right > HALF * q.rows:
        return None
    return (
        f"{seen.who_halts} always halts: {_percent(q.halts / q.rows)} of the rows, although "
        f"{_percent(q.right / q.rows)} are right; a higher arch.halt_exploration_prob usually helps"
    )


def _always_continues(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    if q is None or not seen.has_halting or not q.rows:
        return None
    if q.halts > ONE_SIDED * q.rows or q.right < HALF * q.rows:
        return None
    return (
        f"{seen.who_halts} always continues: it halts {_percent(q.halts / q.rows)} of the rows, "
        f"although {_percent(q.right / q.rows)} are right; {seen.its_rate} usually helps"
    )


def _ignores_correctness(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    if q is None or not q.pairs:
        return None
    auc, error = q.wins / q.pairs, q.variance**0.5 / q.pairs
    if auc + 2 * error >= CHANCE_AUC:
        return None
    return (
        f"{seen.who_halts} ignores whether an answer is right: in {_percent(auc)} of "
        f"{q.pairs:,.0f} pairs its value is higher for the right row than for the wrong one "
        f"(chance is 50 %); {seen.its_rate} usually helps"
    )


def _outweighs(seen: _Seen, numbers: Mapping[str, float], q: _QSums | None) -> str | None:
    others = {name: norm for name, norm in seen.heads.items() if name != TASK_HEAD}
    # Where most rows are right, the token head has little left to say, and others may be louder.
    if not others or numbers.get("rows_right", 1.0) >= HALF:
        return None
    name = max(others, key=lambda name: others[name])
    task = seen.heads[TASK_HEAD]
    if not OUTWEIGHS * task < others[name] < math.inf:
        return None
    return (
        f"the gradient of head {name} at the trunk ({others[name]:.3g}) outweighs that of the "
        f"token head ({task:.3g}); a lower arch.loss.weights.{name} usually helps"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


_Judge = Callable[[_Seen, Mapping[str, float], _QSums | None], str | None]
# Conditions by the name under which a checkpoint knows them. Values that are not finite are told
# at once and during warm-up too.
_NOT_FINITE = "not_finite"
_JUDGES: dict[str, _Judge] = {
    _NOT_FINITE: _not_finite,
    "one_token": _one_token,
    "flat": _flat,
    "sure_and_wrong": _sure_and_wrong,
    "large_logits": _large_logits,
    "always_halts": _always_halts,
    "always_continues": _always_continues,
    "ignores_correctness": _ignores_correctness,
    "outweighs": _outweighs,
}
