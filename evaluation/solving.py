"""Solve Sudokus with a trained model, and keep what it answered at each ACT step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dataset.sudoku import rules
from evaluation.config import SolveConfig
from evaluation.constraints import SudokuConstraint
from evaluation.decoding import (
    Decoded,
    answer_confidence,
    decode_beam,
    decode_greedy,
    decode_sampled,
)
from models.act import ACTLossHead

_BATCH_SIZE = 64
_BEAM_WIDTH = 8

Decoder = Callable[..., Decoded]
"""Called with logits [B, S, V] and `inputs`, the puzzles' tokens, integer [B, S]."""


@dataclass(frozen=True)
class Reasoning:
    """How the answer to one puzzle came about.

    Attributes:
        question: int8 [size, size] digits, 0 where empty.
        answers: int8 [steps, size, size], the answer after each ACT step, the last one as decoded;
            0 where the model left a cell empty.
        log_prob: natural logarithm of the last answer's probability, as the model sees it.
        confidence: `answer_confidence` at the last step, 0 to 1.
        q_halt: float32 [steps], the chance that the answer is right, as the model sees it; NaN
            where no head says so.
        q_continue: float32 [steps], the value of another step.
        halts: bool [steps], whether the halting rule of training would stop here.
    """

    question: np.ndarray
    answers: np.ndarray
    log_prob: float
    confidence: float
    q_halt: np.ndarray
    q_continue: np.ndarray
    halts: np.ndarray

    @property
    def answer(self) -> np.ndarray:
        """The answer after the last step, int8 [size, size]."""
        return self.answers[-1]

    def is_solved(self) -> bool:
        """Whether the answer is a valid Sudoku that keeps the clues."""
        valid = rules.is_valid_solution(self.answer, len(self.answer))
        return valid and rules.keeps_clues(self.question, self.answer)

    def cells_changed(self) -> np.ndarray:
        """Number of cells that each step changed, int64 [steps]; the first one fills the puzzle."""
        before = np.concatenate([self.question[None], self.answers[:-1]])
        return (before != self.answers).sum(axis=(1, 2))

    def cells_wrong(self, step: int = -1) -> np.ndarray:
        """Mark what cannot stay, bool [size, size]: empty, repeated digits, changed clues."""
        answer = self.answers[step]
        changed_clue = (self.question != 0) & (self.question != answer)
        return repeated_digits(answer) | (answer == 0) | changed_clue


def repeated_digits(grid: np.ndarray) -> np.ndarray:
    """Mark the cells whose digit stands again in their row, column or box; bool [size, size]."""
    layout = rules.layout_of(len(grid))
    cells = grid.reshape(-1)
    has_digit = cells[:, None] == np.arange(1, layout.size + 1)  # [cells, digits]
    unit_counts = has_digit[layout.unit_cells].sum(axis=1)  # [units, digits]
    repeated = (unit_counts[layout.cell_units] > 1).any(axis=1)  # [cells, digits]
    return (has_digit & repeated).any(axis=1).reshape(grid.shape)


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
    questions: list[np.ndarray],
    device: torch.device,
    decode: Decoder = decode_greedy,
) -> Iterator[Reasoning]:
    """Let the model think about each puzzle for all its ACT steps; yields in their order.

    Args:
        model: reads size * size cells with a vocabulary of size + 2.
        questions: integer [size, size] digits, 0 where empty, all of one size.
        decode: gives the answer of the last step; the others are the most likely tokens.
    """
    model.eval()
    for start in range(0, len(questions), _BATCH_SIZE):
        yield from _reason_batch(model, questions[start : start + _BATCH_SIZE], device, decode)


@torch.no_grad()
def _reason_batch(
    model: ACTLossHead, questions: list[np.ndarray], device: torch.device, decode: Decoder
) -> list[Reasoning]:
    inputs = np.stack([rules.grid_to_tokens(question) for question in questions]).astype(np.int32)
    examples = {
        "inputs": torch.from_numpy(inputs).to(device),
        "puzzle_identifiers": torch.zeros(len(questions), dtype=torch.int32, device=device),
    }
    act = model.model
    carry = act.initial_carry(examples)
    outputs = []
    for _ in range(act.halt_max_steps):
        carry, given = act(carry, examples)
        outputs.append(given)
    q_halt = torch.stack([given["q_halt_logits"] for given in outputs], 1)  # [N, steps]
    q_continue = torch.stack([given["q_continue_logits"] for given in outputs], 1)
    if act.rule is None:
        q_halt = torch.full_like(q_halt, torch.nan)
        halts = torch.zeros_like(q_halt, dtype=torch.bool)
        gap = torch.full_like(q_halt[:, -1], torch.inf)
    else:
        wanted = [
            act.rule.wants_to_halt(given, torch.full_like(carry.steps, step), explores=False)
            for step, given in enumerate(outputs, start=1)
        ]
        halts = torch.stack(wanted, 1)
        gap = q_halt[:, -1] - (q_continue[:, -1] if act.rule.compares else 0)
    log_probs = model.log_probs(outputs[-1]["logits"])
    decoded = decode(log_probs, inputs=examples["inputs"])
    confidence = answer_confidence(log_probs, gap, torch.zeros_like(gap))
    tokens = [given["logits"].argmax(-1) for given in outputs[:-1]] + [decoded.tokens]
    answers = torch.stack(tokens, 1).cpu().numpy()
    return [
        Reasoning(
            question=np.asarray(question, np.int8),
            answers=np.stack([rules.tokens_to_grid(step) for step in answers[i]]),
            log_prob=float(decoded.log_probs[i]),
            confidence=float(confidence[i]),
            q_halt=q_halt[i].sigmoid().cpu().numpy(),
            q_continue=q_continue[i].sigmoid().cpu().numpy(),
            halts=halts[i].cpu().numpy(),
        )
        for i, question in enumerate(questions)
    ]
