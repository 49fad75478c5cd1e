"""Thinking longer: more ACT steps, and several chains for each puzzle; one of them answers.

A chain is one attempt of the model at one puzzle; the first chain sees the puzzle as it is. Its
answers are read after several numbers of steps, so the longest chains give the results of shorter
ones, and the first chains of many give the results of fewer chains.

Shape letters: C chains, D numbers of steps, b rows of a rank's batch, S cells.
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
from dataset.kinds.base import Kind, Views
from evaluation import table
from evaluation.config import Choice, ThinkingSettings
from evaluation.energy import NUM_PATTERNS, HopfieldEnergy, learned_energy
from evaluation.metrics import Estimate, wilson
from evaluation.puzzles import kind_of_many_answers
from evaluation.think import Forward, Step, chain_steps, evaluating
from evaluation.views import Seen, seen_by_chains
from models.act import ACTLossHead
from puzzle_dataset import Batch, EvalBatches
from runtime.errors import ConfigError
from runtime.progress import bar
from runtime.ranks import Ranks


class ChainResult(NamedTuple):
    """The answers of chains after each number of steps, and at their halt.

    Attributes:
        preds: [C, D, b, S] tokens, turned back from the view that the chain saw.
        at_halt: [C, b, S] the same at the halt.
        q_halt: float32 [C, D, b].
        residual: float32 [C, D, b], see `residual_of`.
        halt: int64 [C, b], the step after which a chain halts; 0: it never does.
        energy: float32 [C, D, b]; None: no energy was learned.
    """

    preds: np.ndarray
    at_halt: np.ndarray
    q_halt: np.ndarray
    residual: np.ndarray
    halt: np.ndarray
    energy: np.ndarray | None = None


@dataclass(frozen=True)
class ChainScores:
    """The scores on a set with one number of steps, one number of chains and one choice. JSON files
    have these names.

    Attributes:
        depth: number of steps.
        breadth: number of chains.
        num_puzzles: puzzles with labels; the shares are of these.
        single: share that the first chain gets right.
        selected: share that the chosen chain gets right.
        oracle: share that any chain gets right.
        spurious: share that the chosen chain gets wrong although another gets it right.
        calls: ACT steps for each puzzle, over all chains.
        seconds: time for each puzzle of the set, compiling included.
        distinct: for kinds with several right answers, different right answers that the chains
            gave, for each puzzle. Answers are judged by the rules then.
        solutions: right answers for each puzzle, as counted when the set was built.
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
    distinct: float | None = None
    solutions: float | None = None


def chosen(select: Choice, result: ChainResult, place: int, steps: int) -> np.ndarray:
    """Return the chain that answers each row, int64 [b]. Among equals the surest one answers, then
    the first.

    Args:
        place: index of this number of steps in `result`.
        steps: the number of steps.
    """
    # A chain without numbers comes last.
    q = result.q_halt[:, place]
    q = np.where(np.isnan(q), -np.inf, q)
    if select in ("residual", "energy"):
        least = result.residual if select == "residual" else result.energy
        assert least is not None  # `fit_energy` has learned it.
        return np.where(np.isnan(least[:, place]), np.inf, least[:, place]).argmin(0)
    if select == "majority":
        preds = result.preds[:, place]
        # [C, b], chain by chain: comparing all pairs of chains at once would need too much memory.
        votes = np.stack([(preds == own).all(-1).sum(0) for own in preds])
        return np.lexsort((-q, -votes), axis=0)[0]
    if select == "first_halt":
        halt = np.where((result.halt > 0) & (result.halt <= steps), result.halt, steps + 1)
        return np.lexsort((-q, halt), axis=0)[0]
    return q.argmax(0)


def ends_of(select: Choice, halt: np.ndarray, steps: int) -> np.ndarray:
    """Return the step at which each chain is read, in the shape of `halt`. `halt` is the step at
    which it halted, or 0 if it never did.
    """
    stops = (halt > 0) & (halt < steps) & (select == "first_halt")
    return np.where(stops, halt, steps)


def answers_of(select: Choice, result: ChainResult, place: int, steps: int) -> np.ndarray:
    """Return the answers [b, S] of the chosen chains; with `first_halt` the answer at the halt, if
    the chain halted.
    """
    chains, rows = chosen(select, result, place, steps), np.arange(result.halt.shape[1])
    early = ends_of(select, result.halt, steps)[chains, rows] < steps
    return np.where(early[:, None], result.at_halt[chains, rows], result.preds[chains, place, rows])


def residual_of(before: Tensor, after: Tensor) -> Tensor:
    """Return the change of the answer's latent [B, T, D] in a step relative to its norm,
    float32 [B].
    """
    change = (after - before).float().flatten(1).norm(dim=1)
    return change / after.float().flatten(1).norm(dim=1)


def think_longer(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    settings: ThinkingSettings,
    views: Views | None,
    energy: HopfieldEnergy | None = None,
    *,
    show_progress: bool = False,
) -> list[ChainScores]:
    """Score a model on all sets, for each number of steps and of chains. Every rank returns the
    same scores.

    Args:
        forward: `model` or its compiled form; its `eval_max_steps` is the largest number of steps.
        model: on the device of `ranks`; put into evaluation mode while this runs.
        views: of the puzzles, for `perturb=symmetry`.
        energy: for `select=energy`, from `fit_energy`.
    """
    read_at = sorted(set(settings.steps or [model.model.eval_max_steps]))
    lines: list[tuple[int, int, Choice]] = [
        (steps, num_chains, select)
        for steps in read_at
        for num_chains in sorted(set(settings.chains))
        for select in _choices(settings, num_chains)
    ]
    kind = kind_of_many_answers(batches.dataset)
    runner = _ChainRunner(forward, model, ranks, settings, views, read_at, lines, kind, energy)
    judged: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    first_row = ranks.rank * batches.local_batch_size
    shown = bar(batches, "thinking", "batches", show=show_progress)
    with evaluating(model, ranks, first_row):
        for number, (name, batch, _, start) in enumerate(shown):
            ranks.mark(f"batch {number + 1} of the evaluation", long=True)
            judged[name].append(runner.judge(batch, start + first_row))
    scores = list[ChainScores]()
    for name, of_batches in judged.items():
        right, seconds = (np.stack(parts) for parts in zip(*of_batches, strict=True))
        number = batches.num_examples[name]
        mean = None
        if kind is not None and kind.rating == "solutions" and number:
            solutions = batches.dataset.sets[name].example_ratings()
            mean = None if solutions is None else float(solutions[:number].mean())
        scores += runner.scores(name, right, seconds.sum(0), number, mean)
    return scores


@dataclass(frozen=True)
class _ChainRunner:
    """Runs chains on this rank's rows and judges their answers. `lines` are the numbers of steps,
    numbers of chains and choices to score; `kind` is the puzzles' if they have several answers.
    """

    forward: Forward
    model: ACTLossHead
    ranks: Ranks
    settings: ThinkingSettings
    views: Views | None
    read_at: list[int]
    lines: Sequence[tuple[int, int, Choice]]
    kind: Kind | None
    energy: HopfieldEnergy | None

    def judge(self, batch: Batch, first_row: int) -> tuple[np.ndarray, np.ndarray]:
        """Run all chains on a batch. Return int64 [b, columns]: whether the row has labels, then
        for each line whether the first and the chosen chain are right, and how many different right
        answers all chains give (0 or 1 if each puzzle has one right answer); and the seconds that
        each chain took for each number of steps, [C, D].
        """
        rows = np.arange(first_row, first_row + len(batch.inputs))
        seen = seen_by_chains(self.views, self.settings.seed, rows, max(self.settings.chains))
        chains = [self._chain(batch, first_row, *each) for each in enumerate(seen)]
        *parts, seconds = (np.stack(values) for values in zip(*chains, strict=True))
        judged = [(batch.labels != IGNORE_LABEL_ID).any(-1).astype(np.int64)]
        right_at = [
            np.stack([self._right(own, batch) for own in preds])
            for preds in parts[0].swapaxes(0, 1)
        ]
        for steps, num_chains, select in self.lines:
            place, few = self.read_at.index(steps), (part[:num_chains] for part in parts)
            result = ChainResult(*few)
            preds = result.preds[:, place]
            right = right_at[place][:num_chains]
            answers = answers_of(select, result, place, steps)
            number = _distinct(preds, right) if self.kind else right.any(0)
            judged += [right[0], self._right(answers, batch), number]
        return np.stack(judged, -1), seconds

    def last_states(self, batch: Batch, first_row: int, number: int) -> tuple[Tensor, ...]:
        """Run the first `number` chains, C, of each row. Return the answers' states after the last
        step, [b, C, T, D], and whether a row has labels and its answers are right, bool [b, C].
        """
        act, rows = self.model.model, np.arange(first_row, first_row + len(batch.inputs))
        states, right = list[Tensor](), list[np.ndarray]()
        for chain, seen in enumerate(seen_by_chains(self.views, self.settings.seed, rows, number)):
            *_, (_, carry) = self._steps(batch, first_row, chain, seen)
            states.append(act.answer_of(carry))
            preds = act.inner.read(states[-1], carry.examples)["logits"].argmax(-1).int()
            right.append(self._right(seen.tokens(preds.cpu().numpy()), batch))
        known = np.repeat((batch.labels != IGNORE_LABEL_ID).any(-1)[:, None], number, 1)
        flags = (torch.from_numpy(each) for each in (known, np.stack(right, 1)))
        return torch.stack(states, 1), *flags

    def _right(self, preds: np.ndarray, batch: Batch) -> np.ndarray:
        """Return whether answers [b, S] are right, bool [b]: by the rules if there may be several,
        or else in each labelled cell.
        """
        if self.kind is not None:
            return self.kind.holds(batch.inputs, preds)[0]
        return ((preds == batch.labels) | (batch.labels == IGNORE_LABEL_ID)).all(-1)

    def scores(
        self,
        name: str,
        judged: np.ndarray,
        seconds: np.ndarray,
        num_examples: int,
        solutions: float | None,
    ) -> Iterator[ChainScores]:
        """Yield the scores of a set.

        Args:
            judged: int64 [batches, b, columns], from `judge`.
            seconds: [C, D], the sum over all batches.
            solutions: see `ChainScores`.
        """
        local = torch.from_numpy(judged).unsqueeze(0).float()
        by_rank = self.ranks.concat(local.to(self.ranks.device))  # [rank, batch, b, columns]
        rows = by_rank.transpose(0, 1).reshape(-1, local.shape[-1])[:num_examples]
        found = self.ranks.to_host(rows).numpy()
        found = found[found[:, 0] > 0, 1:]
        right = found > 0
        for line, (steps, num_chains, select) in enumerate(self.lines if len(right) else ()):
            single, selected, oracle = right[:, 3 * line : 3 * line + 3].T
            shares = (single, selected, oracle, oracle & ~selected)
            yield ChainScores(
                name,
                steps,
                num_chains,
                select,
                len(right),
                *(wilson(int(holds.sum()), len(holds)) for holds in shares),
                calls=steps * num_chains,
                seconds=float(seconds[:num_chains, self.read_at.index(steps)].sum()) / num_examples,
                distinct=float(found[:, 3 * line + 2].mean()) if self.kind else None,
                solutions=solutions,
            )

    def _steps(self, batch: Batch, first_row: int, chain: int, seen: Seen) -> Iterator[Step]:
        """Run the ACT steps of one chain of each row."""
        inputs, ids = seen.boards(batch.inputs), batch.puzzle_identifiers
        arrays = {"inputs": inputs, "puzzle_identifiers": ids}
        given = (arrays, self.settings, chain, first_row, self.ranks.on_device)
        return chain_steps(self.forward, self.model, *given)

    def _chain(
        self, batch: Batch, first_row: int, chain: int, seen: Seen
    ) -> tuple[np.ndarray, ...]:
        """Run one chain of each row. Return the parts of `ChainResult` without C, and the seconds
        to each number of steps.
        """
        act, shape = self.model.model, batch.inputs.shape
        options = {"dtype": torch.int32, "device": self.ranks.device}
        halt, at_halt = torch.zeros(shape[0], **options), torch.zeros(shape, **options)
        read, seconds, began = [], [], time.perf_counter()
        steps = self._steps(batch, first_row, chain, seen)
        for step, (before, carry) in enumerate(steps, start=1):
            if step not in self.read_at and "first_halt" not in self.settings.select:
                continue
            outputs = act.inner.read(act.answer_of(carry), carry.examples)
            preds = outputs["logits"].argmax(-1).int()
            now = act.wants_to_halt(outputs) & (halt == 0)
            halt = torch.where(now, step, halt)
            at_halt = torch.where(now[:, None], preds, at_halt)
            if step in self.read_at:
                residual = residual_of(before, after := act.answer_of(carry))
                energy = residual if self.energy is None else self.energy(after)
                read.append((preds, outputs["q_halt_logits"].float(), residual, energy))
                self.ranks.to_host(residual)
                seconds.append(time.perf_counter() - began)
        preds, q_halt, residual, energy = (
            torch.stack(each).cpu().numpy() for each in zip(*read, strict=True)
        )
        preds = np.stack([seen.tokens(each) for each in preds])
        halted = seen.tokens(at_halt.cpu().numpy()), q_halt, residual, halt.cpu().numpy()
        return preds, *halted, energy, np.array(seconds)


def fit_energy(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    settings: ThinkingSettings,
    views: Views | None,
) -> HopfieldEnergy:
    """Learn the energy for `select=energy` from the chains, at most 8, of puzzles with known
    answers, at the largest number of steps. Every rank returns the same energy.

    Args:
        forward, model, settings, views: see `think_longer`.
    Raises:
        ConfigError: all these chains are right, or none is; raised on all ranks.
    """
    kind, number = kind_of_many_answers(batches.dataset), min(8, max(settings.chains))
    runner = _ChainRunner(forward, model, ranks, settings, views, [], [], kind, None)
    first_row = ranks.rank * batches.local_batch_size
    found = list[tuple[Tensor, ...]]()
    with evaluating(model, ranks, first_row):
        for count, (_, batch, _, start) in enumerate(batches, start=1):
            ranks.mark(f"batch {count} of learning the energy", long=True)
            found.append(runner.last_states(batch, start + first_row, number))
    # By puzzle, then by chain: the numbers of ranks and of rows in a batch change no order.
    joined = [
        whole.unflatten(0, (ranks.world_size, -1)).transpose(0, 1).flatten(0, 3)
        for part in zip(*found, strict=True)
        if (whole := ranks.gather_rows(torch.stack(part))) is not None
    ]
    energy, problem = HopfieldEnergy(torch.zeros(NUM_PATTERNS, model.model.inner.hidden_size)), ""
    if joined:
        states, known, right = joined
        try:
            energy = learned_energy(states[known], right[known])
        except ValueError as error:
            problem = f"select=energy: {error}; try more energy.puzzles or other steps"
    if problem := ranks.broadcast_object(problem):
        raise ConfigError(problem)
    ranks.broadcast_(list(energy.parameters()))
    return energy.to(ranks.device)


def _choices(settings: ThinkingSettings, num_chains: int) -> list[Choice]:
    choices = list(dict.fromkeys(settings.select))
    if num_chains > 1:
        return choices
    # A single chain can only be read at the last step or at its halt.
    at_end = [select for select in choices if select != "first_halt"][:1]
    return [select for select in choices if select == "first_halt" or select in at_end]


def _distinct(preds: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Count the different right answers of each row, int64 [b]; preds [C, b, S], right [C, b]."""
    rows = range(right.shape[1])
    return np.array([len({*map(bytes, preds[right[:, row], row])}) for row in rows], np.int64)


def as_text(scores: Sequence[ChainScores]) -> str:
    """Return a table of scores, shares with their 95 % intervals."""
    names = ["select", "single", "selected", "oracle", "spurious", "calls"]
    further = ("distinct", "solutions")
    names += [name for name in further if any(vars(one)[name] is not None for one in scores)]
    lines = [
        [one.set_name, one.depth, one.breadth, *(getattr(one, name) for name in names)]
        + [f"{one.seconds:.3g}"]
        for one in scores
    ]
    explained = "in brackets: 95 % confidence intervals; calls and seconds: for each puzzle"
    return table.as_text(["set", "steps", "chains", *names, "seconds"], lines, explained)
