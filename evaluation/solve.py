"""Solve puzzles with a trained model, and keep its answer after each ACT step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from dataset.kinds.base import Puzzle, Verdict
from evaluation.chains import ChainResult, chosen, ends_of, residual_of
from evaluation.config import ThinkingSettings
from evaluation.think import Step, chain_steps
from evaluation.views import Seen, seen_by_chains, views_for
from models.act import ACTLossHead
from models.heads.base import Examples

_BATCH_SIZE = 64


class StepAnswers(NamedTuple):
    """The answers to N puzzles after an ACT step of a chain: tokens uint8 [N, S], the probability
    of each token, float32 [N, S], cells that a wave has reached, bool [N, S], and q_halt, float32
    [N].
    """

    chain: int
    step: int
    tokens: np.ndarray
    certainty: np.ndarray
    reached: np.ndarray
    q_halt: np.ndarray


Watch = Callable[[StepAnswers], object]


@dataclass(frozen=True)
class Reasoning:
    """The answer to one puzzle, step by step, in the chain that was chosen.

    Attributes:
        answers: int8 [steps, size, size], the most likely tokens after each ACT step; in a Sudoku 0
            where the model left a cell empty.
        q_halt: float32 [steps], the model's probability that the answer is right; NaN without a
            head that says so.
        q_continue: float32 [steps], the value of another step.
        halts: bool [steps], whether the halting rule of training would stop here.
        chain: number of the chain that answers, from 0.
        num_chains: number of chains that were run.
        num_agreeing: number of chains with the same answer.
        certainty: float32 [steps, size, size], the probability of each cell's token.
        reached: bool [steps, size, size], cells that a wave has reached (`Recurrence.reached`).
    """

    puzzle: Puzzle
    answers: np.ndarray
    q_halt: np.ndarray
    q_continue: np.ndarray
    halts: np.ndarray
    chain: int = 0
    num_chains: int = 1
    num_agreeing: int = 1
    certainty: np.ndarray | None = None
    reached: np.ndarray | None = None

    @property
    def question(self) -> np.ndarray:
        """The puzzle's grid, int8 [size, size]."""
        return np.asarray(self.puzzle.question, np.int8)

    @property
    def answer(self) -> np.ndarray:
        """The answer after the last step, int8 [size, size]."""
        return self.answers[-1]

    def judge(self, step: int = -1) -> Verdict:
        """Judge the answer after a step: solved, wrong or unknown."""
        puzzle = self.puzzle
        return puzzle.kind.judge(self.question, self.answers[step], puzzle.target)

    def cells_changed(self) -> np.ndarray:
        """Return the number of cells that each step changed, int64 [steps]."""
        before = np.concatenate([self.question[None], self.answers[:-1]])
        changed = partial(self.puzzle.kind.changed, self.question)
        return np.array([changed(*pair).sum() for pair in zip(before, self.answers, strict=True)])

    def cells_wrong(self, step: int = -1) -> np.ndarray:
        """Mark the wrong cells, bool [size, size]: in a Sudoku empty cells, repeated digits and
        changed clues.
        """
        puzzle = self.puzzle
        return puzzle.kind.wrong(self.question, self.answers[step], puzzle.target)


@torch.no_grad()
def reason(
    model: ACTLossHead,
    puzzles: Sequence[Puzzle],
    device: torch.device,
    settings: ThinkingSettings | None = None,
    watch: Watch | None = None,
) -> Iterator[Reasoning]:
    """Run the model on puzzles for all its ACT steps; yield the reasoning about each, in order.

    Args:
        puzzles: all of one kind and size, which the model reads.
        settings: for chains and their choice; only the first value of a list counts, and `steps` is
            not read. None: one chain.
        watch: called after each ACT step of each chain.
    """
    settings = settings or ThinkingSettings()
    size = max(1, _BATCH_SIZE // settings.chains[0])
    for first in range(0, len(puzzles), size):
        some, chains = puzzles[first : first + size], []
        for number, steps in enumerate(_chains(model, some, device, settings, first)):
            read = []
            for step, one in enumerate(steps, start=1):
                read.append(one)
                if watch is not None:
                    watch(_answers(number, step, one))
            chains.append({name: np.stack([one[name] for one in read], 1) for name in read[0]})
        results = {name: np.stack([chain[name] for chain in chains]) for name in chains[0]}
        yield from _chosen(model, some, results, settings)


@torch.no_grad()
def step_by_step(
    model: ACTLossHead, puzzle: Puzzle, device: torch.device, settings: ThinkingSettings
) -> Iterator[StepAnswers]:
    """Yield a model's answer to one puzzle after each ACT step of the first chain. A step is
    computed when it is asked for.
    """
    for step, one in enumerate(next(_chains(model, [puzzle], device, settings, 0)), start=1):
        yield _answers(0, step, one)


def _chains(
    model: ACTLossHead,
    puzzles: Sequence[Puzzle],
    device: torch.device,
    settings: ThinkingSettings,
    first: int,
) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """Yield the steps of each chain, see `_read`. A puzzle of a data set draws the numbers of its
    row, as in an evaluation; others are numbered from `first` on.
    """

    def on_device(arrays: dict[str, np.ndarray]) -> Examples:
        return {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}

    model.eval()
    inputs = np.stack([puzzle.tokens for puzzle in puzzles])
    ids = np.array([puzzle.identifier for puzzle in puzzles], np.int32)
    views = views_for(settings, puzzles[0].kind, len(puzzles[0].question))
    rows = np.array([one.row if one.place else n for n, one in enumerate(puzzles, first)])
    seen = seen_by_chains(views, settings.seed, rows, settings.chains[0])
    for number, own in enumerate(seen):
        arrays = {"inputs": own.boards(inputs).astype(np.int32), "puzzle_identifiers": ids}
        steps = chain_steps(model, model, arrays, settings, number, rows, on_device)
        yield _read(model, steps, own)


def _read(model: ACTLossHead, steps: Iterable[Step], seen: Seen) -> Iterator[dict[str, np.ndarray]]:
    """Yield a chain's answers to N puzzles after each step, [N, ...] by name: fields of
    `Reasoning`, the `tokens` [N, S], `q_halt_logits`, and `residual`. Views are turned back.
    """
    act = model.model
    for before, carry in steps:
        given = act.inner.read(act.answer_of(carry), carry.examples)
        best = given["logits"].argmax(-1, keepdim=True)
        certainty = model.log_probs(given["logits"]).gather(-1, best).exp()
        one = {
            "q_halt_logits": given["q_halt_logits"].float(),
            "q_halt": given["q_halt_logits"].float().sigmoid(),
            "q_continue": given["q_continue_logits"].sigmoid(),
            "halts": act.wants_to_halt(given),
            "residual": residual_of(before, act.answer_of(carry)),
        }
        of_step = {name: value.cpu().numpy() for name, value in one.items()}
        of_step["tokens"] = seen.tokens(best.squeeze(-1).cpu().numpy().astype(np.uint8))
        of_step["certainty"] = seen.values(certainty.squeeze(-1).float().cpu().numpy())
        of_step["reached"] = seen.values(act.inner.reached(given).cpu().numpy())
        yield of_step


def _answers(chain: int, step: int, read: dict[str, np.ndarray]) -> StepAnswers:
    return StepAnswers(
        chain, step, read["tokens"], read["certainty"], read["reached"], read["q_halt"]
    )


def _chosen(
    model: ACTLossHead,
    puzzles: Sequence[Puzzle],
    results: dict[str, np.ndarray],
    settings: ThinkingSettings,
) -> Iterator[Reasoning]:
    """Yield the reasoning of the chosen chain for each puzzle. `results` come from `_read` for C
    chains, [C, N, steps, ...].
    """
    select, halts, tokens = settings.select[0], results["halts"], results["tokens"]
    num_steps, rows = halts.shape[-1], np.arange(len(puzzles))
    halt = np.where(halts.any(-1), halts.argmax(-1) + 1, 0)
    ends = ends_of(select, halt, num_steps)
    at_end = np.take_along_axis(tokens, ends[..., None, None] - 1, 2).squeeze(2)
    preds, q, residual = (
        results[name][:, None, :, -1] for name in ("tokens", "q_halt_logits", "residual")
    )
    best = chosen(select, ChainResult(preds, at_end, q, residual, halt), 0, num_steps)
    agreeing = (at_end == at_end[best, rows]).all(-1).sum(0)
    for row, (puzzle, chain) in enumerate(zip(puzzles, best.tolist(), strict=True)):
        own = {name: values[chain, row, : ends[chain, row]] for name, values in results.items()}
        yield Reasoning(
            puzzle,
            answers=np.stack([puzzle.kind.to_grid(step) for step in own["tokens"]]),
            q_halt=np.full_like(own["q_halt"], np.nan)
            if model.model.rule is None
            else own["q_halt"],
            q_continue=own["q_continue"],
            halts=own["halts"],
            chain=chain,
            num_chains=len(halts),
            num_agreeing=int(agreeing[row]),
            certainty=own["certainty"].reshape(-1, *puzzle.question.shape),
            reached=own["reached"].reshape(-1, *puzzle.question.shape),
        )
