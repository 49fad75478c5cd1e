"""What an answer must satisfy, as masks over the tokens that cells can still take.

A decoder (`evaluation.decoding`) decides cell by cell; a constraint says which decisions are open
and what follows from each. States hold N rows: puzzles, or the partial answers of a beam.
"""

from math import isqrt

import torch
from torch import Tensor

from dataset.kinds.base import Kind

UNDECIDED = -1

State = dict[str, Tensor]
"""N partial answers: `tokens`, int64 [N, S], UNDECIDED where open, and `allowed`, bool [N, S, V],
what can be decided next: nothing where a cell is decided or has no token left."""


class Constraint:
    """Clues are kept, and no token stands twice in cells that must differ by the rules of a kind:
    in a Sudoku those of a row, column or box.

    0 (padding) counts as an empty cell of the input. The mask rules out what the decided cells rule
    out, no more: a cell may be left without a token; its row is infeasible.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def choices(self, num_cells: int, vocab_size: int) -> Tensor:
        """Return the tokens that a cell which the puzzle leaves open can hold at all, bool [V].

        Raises:
            ValueError: no puzzle of this kind has so many cells, or more tokens are needed.
        """
        self._kind.peers(num_cells, vocab_size)
        choices = torch.zeros(vocab_size, dtype=torch.bool)
        choices[list(self._kind.answers(isqrt(num_cells)))] = True
        return choices

    def start(self, inputs: Tensor, vocab_size: int) -> State:
        """Decide the cells that the puzzles, integer [N, S] tokens, fix.

        Raises:
            ValueError: a row is no puzzle of this kind; names the first.
        """
        kind = self._kind
        choices = self.choices(inputs.shape[1], vocab_size).to(inputs.device)
        for row, puzzle in enumerate(inputs.cpu().numpy()):
            try:
                conflict = kind.conflict(kind.to_grid(puzzle))
            except ValueError as error:
                conflict = str(error)
            if conflict is not None:
                raise ValueError(f"row {row} of the inputs is no {kind.name}: {conflict}")
        is_clue = choices[inputs.long()]
        tokens = torch.where(is_clue, inputs.long(), UNDECIDED)
        peers = self._peers(tokens, vocab_size)
        ruled_out = peers.float() @ _one_hot(tokens, vocab_size).float() > 0
        return {"tokens": tokens, "allowed": choices & ~ruled_out & ~is_clue.unsqueeze(-1)}

    def is_feasible(self, state: State) -> Tensor:
        """Return the rows that may have a completion, bool [N]; once nothing is allowed any more,
        those that are complete.
        """
        return ((state["tokens"] != UNDECIDED) | state["allowed"].any(-1)).all(-1)

    def place(self, state: State, cells: Tensor, tokens: Tensor) -> State:
        """Return a new state, after deciding one cell of each row, int64 [N], as one of its allowed
        tokens, int64 [N], and what follows at once.
        """
        vocab_size = state["allowed"].shape[-1]
        peers = self._peers(state["tokens"], vocab_size)
        ruled_out = peers[cells].unsqueeze(-1) & _one_hot(tokens, vocab_size).unsqueeze(1)
        decided = state["tokens"].scatter(1, cells.unsqueeze(1), tokens.unsqueeze(1))
        allowed = state["allowed"] & ~ruled_out & (decided == UNDECIDED).unsqueeze(-1)
        return {"tokens": decided, "allowed": allowed}

    def _peers(self, tokens: Tensor, vocab_size: int) -> Tensor:
        """Return which cells must differ, bool [S, S], for a tensor [N, S]."""
        return torch.from_numpy(self._kind.peers(tokens.shape[1], vocab_size)).to(tokens.device)


def _one_hot(values: Tensor, num_values: int) -> Tensor:
    """Mark each value, bool [..., num_values]; values out of range mark nothing."""
    return values.unsqueeze(-1) == torch.arange(num_values, device=values.device)
