"""Solve Sudokus with a trained model, and keep what it answered at each ACT step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dataset.sudoku import (
    grid_to_tokens,
    is_valid_solution,
    keeps_clues,
    layout_of,
    tokens_to_grid,
)
from models.losses import ACTLossHead

_BATCH_SIZE = 64


@dataclass(frozen=True)
class Reasoning:
    """How the answer to one puzzle came about.

    Attributes:
        question: int8 [size, size] digits, 0 where empty.
        answers: int8 [steps, size, size], the answer after each ACT step; 0 where the model left a
            cell empty.
        q_halt, q_continue: float32 [steps], sigmoid of the Q logits: the chance that the answer is
            right, as the model sees it, and the value of thinking on.
        halts: bool [steps], whether the halting rule of training would stop here.
    """

    question: np.ndarray
    answers: np.ndarray
    q_halt: np.ndarray
    q_continue: np.ndarray
    halts: np.ndarray

    @property
    def answer(self) -> np.ndarray:
        """The answer after the last step, int8 [size, size]."""
        return self.answers[-1]

    def is_solved(self, step: int = -1) -> bool:
        """Whether the answer after a step (by index) is a valid Sudoku that keeps the clues."""
        answer = self.answers[step]
        return is_valid_solution(answer, len(answer)) and keeps_clues(self.question, answer)

    def cells_changed(self) -> np.ndarray:
        """Number of cells that each step changed, int64 [steps]; the first one fills the puzzle."""
        before = np.concatenate([self.question[None], self.answers[:-1]])
        return (before != self.answers).sum(axis=(1, 2))

    def cells_wrong(self, step: int = -1) -> np.ndarray:
        """Mark the cells that cannot stay, bool [size, size]: empty ones, those whose digit stands
        twice in a row, column or box, and clues that were changed.
        """
        answer = self.answers[step]
        changed_clue = (self.question != 0) & (self.question != answer)
        return repeated_digits(answer) | (answer == 0) | changed_clue


def repeated_digits(grid: np.ndarray) -> np.ndarray:
    """Mark the cells whose digit stands again in their row, column or box; bool [size, size]."""
    layout = layout_of(len(grid))
    cells = grid.reshape(-1)
    has_digit = cells[:, None] == np.arange(1, layout.size + 1)  # [cells, digits]
    unit_counts = has_digit[layout.unit_cells].sum(axis=1)  # [units, digits]
    repeated = (unit_counts[layout.cell_units] > 1).any(axis=1)  # [cells, digits]
    return (has_digit & repeated).any(axis=1).reshape(grid.shape)


def reason(
    model: ACTLossHead, questions: list[np.ndarray], device: torch.device
) -> Iterator[Reasoning]:
    """Let the model think about each puzzle for all its ACT steps.

    Args:
        model: reads size * size cells with a vocabulary of size + 2.
        questions: integer [size, size] digits, 0 where empty, all of one size.
    Yields:
        what happened, in the order of the questions.
    """
    model.eval()
    for start in range(0, len(questions), _BATCH_SIZE):
        yield from _reason_batch(model, questions[start : start + _BATCH_SIZE], device)


@torch.no_grad()
def _reason_batch(
    model: ACTLossHead, questions: list[np.ndarray], device: torch.device
) -> list[Reasoning]:
    tokens = np.stack([grid_to_tokens(question) for question in questions]).astype(np.int32)
    examples = {
        "inputs": torch.from_numpy(tokens).to(device),
        "puzzle_identifiers": torch.zeros(len(questions), dtype=torch.int32, device=device),
    }
    act = model.model
    carry = act.initial_carry(examples)
    answers, q_halt, q_continue = [], [], []
    for _ in range(act.halt_max_steps):
        carry, output = act(carry, examples)
        answers.append(output.logits.argmax(-1).cpu().numpy())
        q_halt.append(output.q_halt_logits.cpu())
        q_continue.append(output.q_continue_logits.cpu())
    halt, go_on = torch.stack(q_halt, 1), torch.stack(q_continue, 1)  # [N, steps]
    halts = halt > go_on if act.learns_continue else halt > 0
    return [
        Reasoning(
            question=np.asarray(question, np.int8),
            answers=np.stack([tokens_to_grid(step[i]) for step in answers]),
            q_halt=halt[i].sigmoid().numpy(),
            q_continue=go_on[i].sigmoid().numpy(),
            halts=halts[i].numpy(),
        )
        for i, question in enumerate(questions)
    ]
