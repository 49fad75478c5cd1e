"""Solve puzzles with a trained model, and keep what it answered at each ACT step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dataset.kinds.base import Puzzle, Verdict, Views
from dataset.kinds.sudoku import SUDOKU
from evaluation.chains import Found, chain_steps, chosen, ends_of, residual_of, wants_to_halt
from evaluation.config import Choice, SolveConfig, ThinkingSettings
from evaluation.constraints import SudokuConstraint
from evaluation.decoding import (
    Decoded,
    answer_confidence,
    decode_beam,
    decode_greedy,
    decode_sampled,
)
from evaluation.views import draw_views
from models.act import ACTLossHead
from models.carry import Examples
from runtime.errors import ConfigError

_BATCH_SIZE = 64
_BEAM_WIDTH = 8

Decoder = Callable[..., Decoded]
"""Called with logits [B, S, V] and `inputs`, the puzzles' tokens, integer [B, S]."""


class Glimpse(NamedTuple):
    """What N puzzles have come to after an ACT step of a chain: tokens uint8 [N, S], how sure the
    model is of each, float32 [N, S], and of the whole, q_halt float32 [N].
    """

    chain: int
    step: int
    tokens: np.ndarray
    certainty: np.ndarray
    q_halt: np.ndarray


Watch = Callable[[Glimpse], object]


@dataclass(frozen=True)
class Reasoning:
    """How the answer to one puzzle came about.

    Attributes:
        question: int8 [size, size], the puzzle's grid (`evaluation.puzzles`).
        answers: int8 [steps, size, size], the answer after each ACT step, the last one as decoded;
            in a Sudoku 0 where the model left a cell empty.
        log_prob: natural logarithm of the last answer's probability, as the model sees it.
        confidence: `answer_confidence` at the last step, 0 to 1.
        q_halt: float32 [steps], the chance that the answer is right, as the model sees it; NaN
            where no head says so.
        q_continue: float32 [steps], the value of another step.
        halts: bool [steps], whether the halting rule of training would stop here.
        chain: number of the chain that answers, from 0.
        num_chains: those that thought about the puzzle.
        num_agreeing: those that give this answer, before it is decoded.
        certainty: float32 [steps, size, size], the probability that the model gives to each cell's
            token.
        puzzle: the puzzle itself; None: a Sudoku of which only the question is known.
    """

    question: np.ndarray
    answers: np.ndarray
    log_prob: float
    confidence: float
    q_halt: np.ndarray
    q_continue: np.ndarray
    halts: np.ndarray
    chain: int = 0
    num_chains: int = 1
    num_agreeing: int = 1
    certainty: np.ndarray | None = None
    puzzle: Puzzle | None = None

    @property
    def answer(self) -> np.ndarray:
        """The answer after the last step, int8 [size, size]."""
        return self.answers[-1]

    def judge(self, step: int = -1) -> Verdict:
        """Say what the answer after a step is."""
        puzzle = self._known
        return puzzle.kind.judge(self.question, self.answers[step], puzzle.target)

    def is_solved(self) -> bool:
        """Whether the answer is right: in a Sudoku a valid grid that keeps the clues."""
        return self.judge().solved is True

    @property
    def _known(self) -> Puzzle:
        return self.puzzle or Puzzle(SUDOKU, self.question)

    def cells_changed(self) -> np.ndarray:
        """Number of cells that each step changed, int64 [steps]; the first one fills the puzzle."""
        before = np.concatenate([self.question[None], self.answers[:-1]])
        changed = partial(self._known.kind.changed, self.question)
        return np.array([changed(*pair).sum() for pair in zip(before, self.answers, strict=True)])

    def cells_wrong(self, step: int = -1) -> np.ndarray:
        """Mark what cannot stay, bool [size, size]: in a Sudoku what is empty, repeated digits and
        changed clues.
        """
        puzzle = self._known
        return puzzle.kind.wrong(self.question, self.answers[step], puzzle.target)


def make_decoder(config: SolveConfig) -> Decoder:
    """Return the decoder that the configuration asks for; its draws go on from call to call."""
    constraint = SudokuConstraint() if config.constraint == "sudoku" else None
    temperature = 1.0 if config.temperature is None else config.temperature
    generator = torch.Generator().manual_seed(config.seed)
    decode: Decoder
    if config.decode == "greedy":
        decode = decode_greedy
    elif config.decode == "beam":
        decode = partial(decode_beam, width=config.beam_width or _BEAM_WIDTH)
    else:
        decode = partial(
            decode_sampled,
            temperature=temperature,
            generator=generator,
            top_k=config.top_k,
            top_p=config.top_p,
        )
    return partial(decode, constraint=constraint)


def reason(
    model: ACTLossHead,
    questions: Sequence[np.ndarray | Puzzle],
    device: torch.device,
    decode: Decoder = decode_greedy,
    settings: ThinkingSettings | None = None,
    watch: Watch | None = None,
) -> Iterator[Reasoning]:
    """Let the model think about each puzzle for all its ACT steps; yields in their order.

    Args:
        questions: puzzles of one kind and size, or Sudokus as integer [size, size] digits, 0 where
            empty; the model reads such cells.
        decode: gives the answer of the last step; the others are the most likely tokens.
        settings: which chains think about each puzzle, and which of them answers; the depth is the
            model's, and of each list the first value counts. None: one chain.
        watch: called after each ACT step of each chain.
    """
    model.eval()
    settings = settings or ThinkingSettings()
    size = max(1, _BATCH_SIZE // settings.breadth[0])
    for start in range(0, len(questions), size):
        some = [
            each if isinstance(each, Puzzle) else Puzzle(SUDOKU, np.asarray(each, np.int8))
            for each in questions[start : start + size]
        ]
        yield from _reason_batch(model, some, start, device, decode, settings, watch)


class _Chain(NamedTuple):
    """One chain of each of N puzzles, after each step."""

    inputs: Tensor  # int32 [N, S], the view that it saw.
    logits: Tensor  # [N, steps, S, V], of that view.
    tokens: np.ndarray  # uint8 [N, steps, S], the most likely ones, of the puzzle itself.
    certainty: np.ndarray  # float32 [N, steps, S], their probabilities.
    q_halt: Tensor  # Logits [N, steps].
    q_continue: Tensor  # Logits [N, steps].
    halts: Tensor  # bool [N, steps]
    residual: Tensor  # [N], of the last step.


class _Seen(NamedTuple):
    """How N puzzles are seen: in views with these numbers, or (None) as they are."""

    symmetries: Views | None
    views: np.ndarray

    def boards(self, inputs: np.ndarray) -> np.ndarray:
        """Return the puzzles, uint8 [N, S], as they are seen."""
        return inputs if self.symmetries is None else self.symmetries.apply(self.views, inputs)

    def tokens(self, seen: Tensor) -> np.ndarray:
        """Return tokens [N, S] that were answered as those of the puzzles, uint8."""
        tokens = seen.cpu().numpy().astype(np.uint8)
        return tokens if self.symmetries is None else self.symmetries.undo(self.views, tokens)

    def values(self, seen: Tensor) -> np.ndarray:
        """Return values of the cells [N, S] in the order of the puzzles' own, float32."""
        values = seen.float().cpu().numpy()
        if self.symmetries is None:
            return values
        own = np.empty_like(values)
        np.put_along_axis(own, self.symmetries.sources(self.views), values, 1)
        return own


@torch.no_grad()
def _reason_batch(
    model: ACTLossHead,
    puzzles: list[Puzzle],
    first_row: int,
    device: torch.device,
    decode: Decoder,
    settings: ThinkingSettings,
    watch: Watch | None,
) -> list[Reasoning]:
    rule, steps = model.model.rule, model.model.eval_max_steps
    breadth, select, rows = settings.breadth[0], settings.select[0], np.arange(len(puzzles))
    kind, inputs = puzzles[0].kind, np.stack([puzzle.tokens for puzzle in puzzles])
    ids = np.array([puzzle.identifier for puzzle in puzzles], np.int32)
    symmetries, views = None, np.zeros((breadth, len(rows)), np.int64)
    if settings.perturbs_views:
        symmetries = kind.views(len(puzzles[0].question))
        if symmetries is None:
            raise ConfigError(f"perturb=symmetry: no symmetry of {kind.name} puzzles is known")
        views = draw_views(symmetries, settings.seed, first_row + rows, breadth)
    chains = [
        _run_chain(
            model, inputs, ids, _Seen(symmetries, own), number, first_row, device, settings, watch
        )
        for number, own in enumerate(views)
    ]
    found, ends = _found(chains, select)
    best = chosen(select, found, 0, steps)
    agreeing = (found.at_halt == found.at_halt[best, rows]).all(-1).sum(0)
    places = list(zip(best, rows, ends[best, rows] - 1, strict=True))
    logits, q_halt, q_continue = (
        torch.stack([getattr(chains[c], name)[row, end] for c, row, end in places])
        for name in ("logits", "q_halt", "q_continue")
    )
    if rule is None:
        gap = torch.full_like(q_halt, torch.inf)
    else:
        gap = q_halt - (q_continue if rule.compares else 0)
    log_probs = model.log_probs(logits)
    decoded = decode(log_probs, inputs=torch.stack([chains[c].inputs[row] for c, row, _ in places]))
    confidence = answer_confidence(log_probs, gap, torch.zeros_like(gap))
    seen = _Seen(symmetries, views[best, rows])
    answers, certainty = seen.tokens(decoded.tokens), seen.values(decoded.cell_log_probs.exp())
    reasonings = []
    for c, row, end in places:
        chain, tokens = chains[c], [*chains[c].tokens[row, :end], answers[row]]
        told = slice(end + 1)
        sure = np.stack([*chain.certainty[row, :end], certainty[row]])
        q_halt = chain.q_halt[row, told].sigmoid()
        one = Reasoning(
            question=np.asarray(puzzles[row].question, np.int8),
            answers=np.stack([kind.to_grid(step) for step in tokens]),
            log_prob=float(decoded.log_probs[row]),
            confidence=float(confidence[row]),
            q_halt=(torch.full_like(q_halt, torch.nan) if rule is None else q_halt).cpu().numpy(),
            q_continue=chain.q_continue[row, told].sigmoid().cpu().numpy(),
            halts=chain.halts[row, told].cpu().numpy(),
            chain=int(c),
            num_chains=breadth,
            num_agreeing=int(agreeing[row]),
            certainty=sure.reshape(-1, *puzzles[row].question.shape),
            puzzle=puzzles[row],
        )
        reasonings.append(one)
    return reasonings


def _run_chain(
    model: ACTLossHead,
    inputs: np.ndarray,
    ids: np.ndarray,
    seen: _Seen,
    number: int,
    first_row: int,
    device: torch.device,
    settings: ThinkingSettings,
    watch: Watch | None,
) -> _Chain:
    arrays = {"inputs": seen.boards(inputs).astype(np.int32), "puzzle_identifiers": ids}

    def on_device(arrays: dict[str, np.ndarray]) -> Examples:
        return {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}

    act, outputs, halts, residuals = model.model, [], [], []
    tokens, certainty = [], []
    for before, carry in chain_steps(model, model, arrays, settings, number, first_row, on_device):
        given = act.inner.read(act.answer_of(carry), carry.examples)
        outputs.append(given)
        residuals.append(residual_of(before, act.answer_of(carry)))
        halts.append(wants_to_halt(act, given, carry.steps))
        best = given["logits"].argmax(-1, keepdim=True)
        tokens.append(seen.tokens(best.squeeze(-1)))
        shares = model.log_probs(given["logits"]).gather(-1, best).exp()
        certainty.append(seen.values(shares.squeeze(-1)))
        if watch is not None:
            q = given["q_halt_logits"].float().sigmoid().cpu().numpy()
            watch(Glimpse(number, len(tokens), tokens[-1], certainty[-1], q))
    logits, q_halt, q_continue = (
        torch.stack([given[name] for given in outputs], 1)
        for name in ("logits", "q_halt_logits", "q_continue_logits")
    )
    return _Chain(
        on_device(arrays)["inputs"],
        logits,
        np.stack(tokens, 1),
        np.stack(certainty, 1),
        q_halt,
        q_continue,
        torch.stack(halts, 1),
        residuals[-1],
    )


def _found(chains: list[_Chain], select: Choice) -> tuple[Found, np.ndarray]:
    """Return what chains say after their last step, and int64 [C, N], after which step each is
    read; `at_halt` is what they answer there.
    """
    halts = np.stack([chain.halts.cpu().numpy() for chain in chains])
    halt = np.where(halts.any(-1), halts.argmax(-1) + 1, 0)
    ends = ends_of(select, halt, halts.shape[-1])
    tokens = np.stack([chain.tokens for chain in chains])  # [C, N, steps, S]
    found = Found(
        preds=tokens[:, None, :, -1],
        at_halt=np.take_along_axis(tokens, ends[..., None, None] - 1, 2).squeeze(2),
        q_halt=np.stack([chain.q_halt[:, -1:].float().cpu().numpy().T for chain in chains]),
        residual=np.stack([chain.residual.cpu().numpy()[None] for chain in chains]),
        halt=halt,
    )
    return found, ends
