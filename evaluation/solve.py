"""Solve puzzles with a trained model, and keep what it answered at each ACT step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dataset.kinds import CONSTRAINTS
from dataset.kinds.base import Puzzle, Verdict, Views
from evaluation.chains import Found, chosen, ends_of, residual_of, wants_to_halt
from evaluation.config import Choice, SolveConfig, ThinkingSettings
from evaluation.constraints import Constraint
from evaluation.decoding import (
    Decoded,
    answer_confidence,
    decode_beam,
    decode_greedy,
    decode_sampled,
)
from evaluation.think import Step, chain_steps
from evaluation.views import Seen, seen_by_chains
from models.act import ACTLossHead
from models.heads.base import Examples
from runtime.errors import ConfigError
from runtime.registry import NONE

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
        puzzle: the puzzle.
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
    """

    puzzle: Puzzle
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

    @property
    def question(self) -> np.ndarray:
        """The puzzle's grid, int8 [size, size]."""
        return np.asarray(self.puzzle.question, np.int8)

    @property
    def answer(self) -> np.ndarray:
        """The answer after the last step, int8 [size, size]."""
        return self.answers[-1]

    def judge(self, step: int = -1) -> Verdict:
        """Say what the answer after a step is."""
        puzzle = self.puzzle
        return puzzle.kind.judge(self.question, self.answers[step], puzzle.target)

    def is_solved(self) -> bool:
        """Whether the answer is right: in a Sudoku a valid grid that keeps the clues."""
        return self.judge().solved is True

    def cells_changed(self) -> np.ndarray:
        """Number of cells that each step changed, int64 [steps]; the first one fills the puzzle."""
        before = np.concatenate([self.question[None], self.answers[:-1]])
        changed = partial(self.puzzle.kind.changed, self.question)
        return np.array([changed(*pair).sum() for pair in zip(before, self.answers, strict=True)])

    def cells_wrong(self, step: int = -1) -> np.ndarray:
        """Mark what cannot stay, bool [size, size]: in a Sudoku what is empty, repeated digits and
        changed clues.
        """
        puzzle = self.puzzle
        return puzzle.kind.wrong(self.question, self.answers[step], puzzle.target)


def make_decoder(config: SolveConfig) -> Decoder:
    """Return the decoder that the configuration asks for; its draws go on from call to call."""
    constraint = None
    if config.constraint != NONE:
        constraint = Constraint(CONSTRAINTS.load(config.constraint))
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
    puzzles: Sequence[Puzzle],
    device: torch.device,
    decode: Decoder = decode_greedy,
    settings: ThinkingSettings | None = None,
    watch: Watch | None = None,
) -> Iterator[Reasoning]:
    """Let the model think about each puzzle for all its ACT steps; yields in their order.

    Args:
        puzzles: of one kind and size, which the model reads.
        decode: gives the answer of the last step; the others are the most likely tokens.
        settings: which chains think about each puzzle, and which of them answers; the depth is the
            model's, and of each list the first value counts. None: one chain.
        watch: called after each ACT step of each chain.
    """
    model.eval()
    settings = settings or ThinkingSettings()
    size = max(1, _BATCH_SIZE // settings.breadth[0])
    for start in range(0, len(puzzles), size):
        some = puzzles[start : start + size]
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


class _Last(NamedTuple):
    """The decoded answers to N puzzles: tokens uint8 [N, S] and their probabilities, float32
    [N, S], of the puzzles themselves, and the log-probability and confidence of each answer, [N].
    """

    tokens: np.ndarray
    certainty: np.ndarray
    log_probs: Tensor
    confidence: Tensor


class _Place(NamedTuple):
    """Where the answer to a puzzle is read: a row of the chain with this number, and which step."""

    chain: int
    row: int
    end: int


@torch.no_grad()
def _reason_batch(
    model: ACTLossHead,
    puzzles: Sequence[Puzzle],
    first_row: int,
    device: torch.device,
    decode: Decoder,
    settings: ThinkingSettings,
    watch: Watch | None,
) -> list[Reasoning]:
    select, rows = settings.select[0], np.arange(len(puzzles))
    inputs = np.stack([puzzle.tokens for puzzle in puzzles])
    ids = np.array([puzzle.identifier for puzzle in puzzles], np.int32)

    def on_device(arrays: dict[str, np.ndarray]) -> Examples:
        return {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}

    views, chains = _views(puzzles[0]) if settings.perturbs_views else None, []
    seen = seen_by_chains(views, settings.seed, first_row + rows, settings.breadth[0])
    for number, own in enumerate(seen):
        arrays = {"inputs": own.boards(inputs).astype(np.int32), "puzzle_identifiers": ids}
        steps = chain_steps(model, model, arrays, settings, number, first_row, on_device)
        chains.append(_read(model, steps, own, number, watch))
    found, ends = _found(chains, select)
    best = chosen(select, found, 0, model.model.eval_max_steps)
    agreeing = (found.at_halt == found.at_halt[best, rows]).all(-1).sum(0)
    places = [
        _Place(int(chain), row, int(end))
        for row, (chain, end) in enumerate(zip(best, ends[best, rows] - 1, strict=True))
    ]
    own = np.stack([seen[chain].views[row] for chain, row, _ in places])
    last = _last(model, decode, chains, places, Seen(seen[0].symmetries, own))
    return list(_reasonings(model, puzzles, chains, places, agreeing, last))


def _views(puzzle: Puzzle) -> Views:
    if views := puzzle.kind.views(len(puzzle.question)):
        return views
    name = puzzle.kind.name
    raise ConfigError(f"perturb=symmetry: no symmetry of {name} puzzles is known")


def _read(
    model: ACTLossHead, steps: Iterable[Step], seen: Seen, number: int, watch: Watch | None
) -> _Chain:
    """Read each step of the chain with this number."""
    act, outputs, halts, ends = model.model, [], [], []
    tokens, certainty = [], []
    for before, carry in steps:
        given = act.inner.read(act.answer_of(carry), carry.examples)
        outputs.append(given)
        ends.append((carry.examples["inputs"], residual_of(before, act.answer_of(carry))))
        halts.append(wants_to_halt(act, given, carry.steps))
        best = given["logits"].argmax(-1, keepdim=True)
        tokens.append(seen.tokens(best.squeeze(-1).cpu().numpy().astype(np.uint8)))
        shares = model.log_probs(given["logits"]).gather(-1, best).exp()
        certainty.append(seen.values(shares.squeeze(-1).float().cpu().numpy()))
        if watch is not None:
            q = given["q_halt_logits"].float().sigmoid().cpu().numpy()
            watch(Glimpse(number, len(tokens), tokens[-1], certainty[-1], q))
    logits, q_halt, q_continue = (
        torch.stack([given[name] for given in outputs], 1)
        for name in ("logits", "q_halt_logits", "q_continue_logits")
    )
    answers = np.stack(tokens, 1), np.stack(certainty, 1)
    inputs, residual = ends[-1]
    return _Chain(inputs, logits, *answers, q_halt, q_continue, torch.stack(halts, 1), residual)


def _last(
    model: ACTLossHead, decode: Decoder, chains: list[_Chain], places: list[_Place], seen: Seen
) -> _Last:
    """Decode the answers at these places; `seen`: how the chains that answer saw the puzzles."""
    rule = model.model.rule
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
    tokens = seen.tokens(decoded.tokens.cpu().numpy().astype(np.uint8))
    certainty = seen.values(decoded.cell_log_probs.exp().float().cpu().numpy())
    confidence = answer_confidence(log_probs, gap, torch.zeros_like(gap))
    return _Last(tokens, certainty, decoded.log_probs, confidence)


def _reasonings(
    model: ACTLossHead,
    puzzles: Sequence[Puzzle],
    chains: list[_Chain],
    places: list[_Place],
    agreeing: np.ndarray,
    last: _Last,
) -> Iterator[Reasoning]:
    for number, (puzzle, place) in enumerate(zip(puzzles, places, strict=True)):
        chain, row, end = chains[place.chain], place.row, place.end
        tokens = [*chain.tokens[row, :end], last.tokens[number]]
        certainty = np.stack([*chain.certainty[row, :end], last.certainty[number]])
        told = slice(end + 1)
        q_halt = chain.q_halt[row, told].sigmoid()
        if model.model.rule is None:
            q_halt = torch.full_like(q_halt, torch.nan)
        yield Reasoning(
            puzzle,
            answers=np.stack([puzzle.kind.to_grid(step) for step in tokens]),
            log_prob=float(last.log_probs[number]),
            confidence=float(last.confidence[number]),
            q_halt=q_halt.cpu().numpy(),
            q_continue=chain.q_continue[row, told].sigmoid().cpu().numpy(),
            halts=chain.halts[row, told].cpu().numpy(),
            chain=place.chain,
            num_chains=len(chains),
            num_agreeing=int(agreeing[number]),
            certainty=certainty.reshape(-1, *puzzle.question.shape),
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
