"""Thinking longer: several chains for each puzzle, read at several depths, and one that answers.

A chain is a run of the model on one puzzle. The deepest one serves all shallower depths, and of the
widest choice the first chains serve all narrower ones. The first chain sees the puzzle as it is.

Shape letters: C chains, D depths, b rows of a rank's batch, S cells.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds.base import Views
from evaluation import table
from evaluation.config import Choice, ThinkingSettings
from evaluation.metrics import Estimate, wilson
from evaluation.think import Forward, chain_steps, evaluating
from evaluation.views import Seen, seen_by_chains
from models.act import ACTLossHead
from puzzle_dataset import Batch, EvalBatches
from runtime.progress import bar
from runtime.ranks import Ranks


class Found(NamedTuple):
    """What chains say: after each depth, and where they halt.

    Attributes:
        preds: [C, D, b, S] tokens of the puzzle itself; `at_halt` [C, b, S] those at the halt.
        q_halt: float32 [C, D, b].
        residual: float32 [C, D, b], how much the last step changed the answer's latent, as a share.
        halt: int64 [C, b], the step after which a chain halts; 0: it never does.
    """

    preds: np.ndarray
    at_halt: np.ndarray
    q_halt: np.ndarray
    residual: np.ndarray
    halt: np.ndarray


@dataclass(frozen=True)
class Figures:
    """What one depth, breadth and choice is worth on a set: shares of the labelled puzzles.

    Attributes:
        single: right in the first chain.
        selected: right in the chain that was chosen.
        oracle: right in any of the chains.
        spurious: the chosen answer is wrong although a right one was there.
        calls: ACT steps of the model for each puzzle.
        seconds: of this evaluation for each puzzle of the set, compiling included.
    """

    set_name: str
    depth: int
    breadth: int
    select: Choice
    num_puzzles: int
    single: Estimate
    selected: Estimate
    oracle: Estimate
    spurious: Estimate
    calls: int
    seconds: float


def chosen(select: Choice, found: Found, depth: int, steps: int) -> np.ndarray:
    """Return int64 [b], the chain of each row that answers at the `depth` with this number, after
    so many `steps`. Among equals the surest answers, then the first.
    """
    q = found.q_halt[:, depth]
    if select == "residual":
        return found.residual[:, depth].argmin(0)
    if select == "majority":
        preds = found.preds[:, depth]
        # [C, b], each its own too; of all pairs at once there would be too many cells.
        votes = np.stack([(preds == own).all(-1).sum(0) for own in preds])
        return np.lexsort((-q, -votes), axis=0)[0]
    if select == "first_halt":
        halt = np.where((found.halt > 0) & (found.halt <= steps), found.halt, steps + 1)
        return np.lexsort((-q, halt), axis=0)[0]
    return q.argmax(0)


def ends_of(select: Choice, halt: np.ndarray, steps: int) -> np.ndarray:
    """Return the step at which each chain is read, of the shape of `halt`. `halt` is the step at
    which it halted, or 0 if it never did.
    """
    stops = (halt > 0) & (halt < steps) & (select == "first_halt")
    return np.where(stops, halt, steps)


def answers_of(select: Choice, found: Found, depth: int, steps: int) -> np.ndarray:
    """Return the chosen answers, [b, S]; with `first_halt` those at the halt, if there is one."""
    chains, rows = chosen(select, found, depth, steps), np.arange(found.halt.shape[1])
    early = ends_of(select, found.halt, steps)[chains, rows] < steps
    return np.where(early[:, None], found.at_halt[chains, rows], found.preds[chains, depth, rows])


def residual_of(before: Tensor, after: Tensor) -> Tensor:
    """Return how much a step changed the answer's latent [B, T, D], as a share, float32 [B]."""
    change = (after - before).float().flatten(1).norm(dim=1)
    return change / after.float().flatten(1).norm(dim=1)


def think_longer(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    settings: ThinkingSettings,
    views: Views | None,
    *,
    show_progress: bool = False,
) -> list[Figures]:
    """Measure a model on all sets at each depth and breadth; every rank returns the same.

    Args:
        forward: `model` or its compiled form, whose `eval_max_steps` is the largest depth.
        model: on the device of `ranks`; put into evaluation mode while this runs.
        views: of the puzzles, for `perturb=symmetry`.
    """
    depths = sorted(set(settings.depth or [model.model.eval_max_steps]))
    lines: list[tuple[int, int, Choice]] = [
        (depth, breadth, select)
        for depth in depths
        for breadth in sorted(set(settings.breadth))
        for select in _choices(settings, breadth)
    ]
    thinker = _Thinker(forward, model, ranks, settings, views, depths, lines)
    judged: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    first_row = ranks.rank * batches.local_batch_size
    shown = bar(batches, "thinking", "batches", show=show_progress)
    with evaluating(model, ranks, first_row):
        for number, (name, batch, _, start) in enumerate(shown):
            ranks.mark(f"batch {number + 1} of the evaluation", long=True)
            judged[name].append(thinker.judge(batch, start + first_row))
    figures = list[Figures]()
    for name, of_batches in judged.items():
        right, seconds = (np.stack(parts) for parts in zip(*of_batches, strict=True))
        figures += thinker.figures(name, right, seconds.sum(0), batches.num_examples[name])
    return figures


@dataclass(frozen=True)
class _Thinker:
    """Lets chains think, on this rank; `lines` are the depths, breadths and choices that are
    measured.
    """

    forward: Forward
    model: ACTLossHead
    ranks: Ranks
    settings: ThinkingSettings
    views: Views | None
    depths: list[int]
    lines: Sequence[tuple[int, int, Choice]]

    def judge(self, batch: Batch, first_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Let all chains think about a batch; returns which answers are right, bool [b, columns]:
        whether the row is labelled, then single, selected and oracle of each line; and the seconds
        that each chain took to each depth [C, D].
        """
        rows = np.arange(first_row, first_row + len(batch.inputs))
        seen = seen_by_chains(self.views, self.settings.seed, rows, max(self.settings.breadth))
        chains = [self._chain(batch, first_row, *each) for each in enumerate(seen)]
        *found, seconds = (np.stack(parts) for parts in zip(*chains, strict=True))
        judged = [(batch.labels != IGNORE_LABEL_ID).any(-1)]
        for depth, breadth, select in self.lines:
            few, number = Found(*(part[:breadth] for part in found)), self.depths.index(depth)
            right = _right(few.preds[:, number], batch.labels)
            answers = answers_of(select, few, number, depth)
            judged += [right[0], _right(answers, batch.labels), right.any(0)]
        return np.stack(judged, -1), seconds

    def figures(
        self, name: str, judged: np.ndarray, seconds: np.ndarray, num_examples: int
    ) -> Iterator[Figures]:
        """Yield the figures of a set, from what `judge` returned: of its batches [batches, b,
        columns], and in all the time.
        """
        local = torch.from_numpy(judged).unsqueeze(0).float()
        by_rank = self.ranks.concat(local.to(self.ranks.device))  # [rank, batch, b, columns]
        rows = by_rank.transpose(0, 1).reshape(-1, local.shape[-1])[:num_examples]
        right = self.ranks.to_host(rows).numpy() > 0
        right = right[right[:, 0], 1:]
        for number, (depth, breadth, select) in enumerate(self.lines if len(right) else ()):
            single, selected, oracle = right[:, 3 * number : 3 * number + 3].T
            shares = (single, selected, oracle, oracle & ~selected)
            yield Figures(
                name,
                depth,
                breadth,
                select,
                len(right),
                *(wilson(int(holds.sum()), len(holds)) for holds in shares),
                calls=depth * breadth,
                seconds=float(seconds[:breadth, self.depths.index(depth)].sum()) / num_examples,
            )

    def _chain(
        self, batch: Batch, first_row: int, chain: int, seen: Seen
    ) -> tuple[np.ndarray, ...]:
        """Run one chain of each row; returns the parts of `Found` without C, and the seconds that
        it took to each depth.
        """
        inputs, ids = seen.boards(batch.inputs), batch.puzzle_identifiers
        arrays = {"inputs": inputs, "puzzle_identifiers": ids}
        act, on_device = self.model.model, self.ranks.on_device
        options = {"dtype": torch.int32, "device": self.ranks.device}
        halt, at_halt = torch.zeros(len(inputs), **options), torch.zeros(inputs.shape, **options)
        read, seconds, began = [], [], time.perf_counter()
        steps = chain_steps(
            self.forward, self.model, arrays, self.settings, chain, first_row, on_device
        )
        for step, (before, carry) in enumerate(steps, start=1):
            if step not in self.depths and "first_halt" not in self.settings.select:
                continue
            outputs = act.inner.read(act.answer_of(carry), carry.examples)
            preds = outputs["logits"].argmax(-1).int()
            now = act.wants_to_halt(outputs) & (halt == 0)
            halt = torch.where(now, step, halt)
            at_halt = torch.where(now[:, None], preds, at_halt)
            if step in self.depths:
                residual = residual_of(before, act.answer_of(carry))
                read.append((preds, outputs["q_halt_logits"].float(), residual))
                self.ranks.to_host(residual)
                seconds.append(time.perf_counter() - began)
        preds, q_halt, residual = (
            torch.stack(each).cpu().numpy() for each in zip(*read, strict=True)
        )
        preds = np.stack([seen.tokens(each) for each in preds])
        halted = seen.tokens(at_halt.cpu().numpy()), q_halt, residual, halt.cpu().numpy()
        return preds, *halted, np.array(seconds)


def _choices(settings: ThinkingSettings, breadth: int) -> list[Choice]:
    several = list(dict.fromkeys(settings.select))
    if breadth > 1:
        return several
    # A single chain leaves no choice but where it is read: at the depth, or at its halt.
    at_depth = [select for select in several if select != "first_halt"][:1]
    return [select for select in several if select == "first_halt" or select in at_depth]


def _right(preds: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether answers [..., b, S] are right in each labelled cell, bool [..., b]."""
    return ((preds == labels) | (labels == IGNORE_LABEL_ID)).all(-1)


def as_text(figures: Sequence[Figures]) -> str:
    """Return a line for each, shares with their 95 % intervals."""
    names = ("depth", "breadth", "select", "single", "selected", "oracle", "spurious", "calls")
    lines = [
        [one.set_name, *(getattr(one, name) for name in names), f"{one.seconds:.3g}"]
        for one in figures
    ]
    explained = "in brackets: 95 % confidence intervals; calls and seconds: for each puzzle"
    return table.as_text(["set", *names, "seconds"], lines, explained)
