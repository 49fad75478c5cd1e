"""What an answer must satisfy, as masks over the tokens that cells can still take.

A decoder (`evaluation.decoding`) decides cell by cell; a constraint says which decisions are open
and what follows from each. States hold N rows: puzzles, or the partial answers of a beam.
"""

from collections import Counter
from functools import cache
from math import isqrt
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dataset.maze.rules import FREE, GOAL, PATH, START, WALL
from dataset.sudoku.rules import EMPTY_TOKEN, find_conflict, grid_size, layout_of, tokens_to_grid

UNDECIDED = -1

_FLOOD_MOVES = 16

State = dict[str, Tensor]
"""N partial answers, each value [N, ...]. All have `tokens`, int64 [N, S], UNDECIDED where open,
and `allowed`, bool [N, S, V], what can be decided next: nothing where a cell is decided, has no
token left, or must wait for other cells."""


class Constraint(Protocol):
    """Masks that follow the decisions made so far; N rows, S cells, V tokens."""

    def choices(self, num_cells: int, vocab_size: int) -> Tensor:
        """Return the tokens that a cell which the puzzle leaves open can hold at all, bool [V].

        Raises:
            ValueError: no puzzle of this kind has so many cells, or more tokens are needed.
        """
        ...

    def start(self, inputs: Tensor, vocab_size: int) -> State:
        """Decide the cells that the puzzles, integer [N, S] tokens, fix.

        Raises:
            ValueError: a row is no puzzle of this kind; names the first.
        """
        ...

    def is_feasible(self, state: State) -> Tensor:
        """Return the rows that may have a completion, bool [N]; once nothing is allowed any more,
        those that are complete.
        """
        ...

    def place(self, state: State, cells: Tensor, tokens: Tensor) -> State:
        """Return a new state, after deciding one cell of each row, int64 [N], as one of its allowed
        tokens, int64 [N], and what follows at once.
        """
        ...


class SudokuConstraint:
    """Clues are kept, and no digit stands twice in a row, column or box of 4x4, 6x6 or 9x9 cells.

    Tokens are digit + 1; 0 (padding) counts as an empty cell of the input. The mask rules out what
    the decided cells rule out, no more: a cell may be left without a token; its row is infeasible.
    """

    def choices(self, num_cells: int, vocab_size: int) -> Tensor:
        size = grid_size(num_cells)
        if vocab_size < size + 2:
            needs = f"a {size}x{size} Sudoku needs {size + 2}: digit + 1"
            raise ValueError(f"{vocab_size} tokens; {needs}")
        tokens = torch.arange(vocab_size)
        return (tokens > EMPTY_TOKEN) & (tokens <= size + EMPTY_TOKEN)

    def start(self, inputs: Tensor, vocab_size: int) -> State:
        choices = self.choices(inputs.shape[1], vocab_size).to(inputs.device)
        for row, puzzle in enumerate(inputs.cpu().numpy()):
            try:
                conflict = find_conflict(tokens_to_grid(puzzle))
            except ValueError as error:
                conflict = str(error)
            if conflict is not None:
                raise ValueError(f"row {row} of the inputs is no Sudoku: {conflict}")
        is_clue = inputs > EMPTY_TOKEN
        tokens = torch.where(is_clue, inputs.long(), UNDECIDED)
        peers = _peers(inputs)
        ruled_out = peers.float() @ _one_hot(tokens, vocab_size).float() > 0
        return {"tokens": tokens, "allowed": choices & ~ruled_out & ~is_clue.unsqueeze(-1)}

    def is_feasible(self, state: State) -> Tensor:
        return ((state["tokens"] != UNDECIDED) | state["allowed"].any(-1)).all(-1)

    def place(self, state: State, cells: Tensor, tokens: Tensor) -> State:
        placed = _one_hot(tokens, state["allowed"].shape[-1])
        ruled_out = _peers(state["tokens"])[cells].unsqueeze(-1) & placed.unsqueeze(1)
        decided = _place(state["tokens"], cells, tokens)
        allowed = state["allowed"] & ~ruled_out & (decided == UNDECIDED).unsqueeze(-1)
        return {"tokens": decided, "allowed": allowed}


class MazeConstraint:
    """Walls, S and G are kept; on the other cells PATH marks one path from S to G, FREE the rest.

    The path is grown from S. Its head decides one neighbour after the other: PATH moves the head
    there and makes the neighbours it leaves behind FREE; FREE closes that way. A way is open only
    while G can be reached through it past cells that touch no earlier cell of the path. So no row
    gets stuck, and the answer leaves no choice how to walk: S and G have one neighbour on the path,
    its other cells two. (Every shortest path is such a path.) With S beside G all cells are FREE.
    A row where G cannot be reached is infeasible from the start.
    """

    def choices(self, num_cells: int, vocab_size: int) -> Tensor:
        if isqrt(num_cells) ** 2 != num_cells:
            raise ValueError(f"{num_cells} cells are no square maze")
        if vocab_size <= PATH:
            raise ValueError(f"{vocab_size} tokens; a maze needs {PATH + 1}")
        tokens = torch.arange(vocab_size)
        return (tokens == FREE) | (tokens == PATH)

    def start(self, inputs: Tensor, vocab_size: int) -> State:
        self.choices(inputs.shape[1], vocab_size)
        is_start, is_goal = inputs == START, inputs == GOAL
        are_mazes = (is_start.sum(-1) == 1) & (is_goal.sum(-1) == 1)
        are_mazes &= ((inputs >= WALL) & (inputs <= GOAL)).all(-1)
        if not are_mazes.all():
            row = int((~are_mazes).int().argmax())
            counts = dict(sorted(Counter(inputs[row].tolist()).items()))
            accepted = f"{WALL} and {FREE}, and {START} and {GOAL} once"
            found = f"row {row} of the inputs is no maze: tokens and how often they occur"
            raise ValueError(f"{found} are {counts}; accepted: {accepted}")
        tokens = torch.where(inputs == FREE, UNDECIDED, inputs.long())
        return self._enter(tokens, is_start.int().argmax(-1), vocab_size)

    def is_feasible(self, state: State) -> Tensor:
        return state["has_arrived"] | state["allowed"][..., PATH].any(-1)

    def place(self, state: State, cells: Tensor, tokens: Tensor) -> State:
        decided = _place(state["tokens"], cells, tokens)
        ways = state["allowed"][..., PATH] & (decided == UNDECIDED)
        vocab_size = state["allowed"].shape[-1]
        placed = state | {"tokens": decided, "allowed": self._allow(ways, vocab_size)}
        moves = (tokens == PATH).nonzero().squeeze(-1)
        left_behind = _touching(_one_hot(state["head"][moves], decided.shape[1]))
        before = decided[moves]
        before = torch.where(left_behind & (before == UNDECIDED), FREE, before)
        entered = self._enter(before, cells[moves], vocab_size)
        return {name: placed[name].index_copy(0, moves, entered[name]) for name in placed}

    def _enter(self, tokens: Tensor, head: Tensor, vocab_size: int) -> State:
        """Find the ways on from a new head, int64 [N]; beside G the path is complete."""
        is_open, is_goal = tokens == UNDECIDED, tokens == GOAL
        beside_head = _touching(_one_hot(head, tokens.shape[1]))
        has_arrived = (beside_head & is_goal).any(-1)
        is_on_the_way = ~has_arrived.unsqueeze(-1)
        leads_to_goal = _flood(is_goal, is_open & ~beside_head)
        ways = beside_head & is_open & _touching(leads_to_goal) & is_on_the_way
        return {
            "tokens": torch.where(is_open & ~is_on_the_way, FREE, tokens),
            "head": head,
            "has_arrived": has_arrived,
            "allowed": self._allow(ways, vocab_size),
        }

    def _allow(self, ways: Tensor, vocab_size: int) -> Tensor:
        allowed = ways.new_zeros(*ways.shape, vocab_size)
        allowed[..., PATH] = ways
        allowed[..., FREE] = ways & (ways.sum(-1, keepdim=True) > 1)  # The last stays open.
        return allowed


def _one_hot(values: Tensor, num_values: int) -> Tensor:
    """Mark each value, bool [..., num_values]; values out of range mark nothing."""
    return values.unsqueeze(-1) == torch.arange(num_values, device=values.device)


def _place(decided: Tensor, cells: Tensor, tokens: Tensor) -> Tensor:
    return decided.scatter(1, cells.unsqueeze(1), tokens.unsqueeze(1))


def _peers(cells: Tensor) -> Tensor:
    """Tell which cells share a unit, themselves excluded, bool [S, S], for a tensor [N, S]."""
    return torch.from_numpy(_are_peers(cells.shape[1])).to(cells.device)


@cache
def _are_peers(num_cells: int) -> np.ndarray:
    units = layout_of(grid_size(num_cells)).cell_units
    shares_unit = (units[:, None, :] == units[None, :, :]).any(-1)
    return shares_unit & ~np.eye(num_cells, dtype=bool)


def _touching(cells: Tensor) -> Tensor:
    """Mark the cells above, below, left and right of marked ones; bool [N, S] squares."""
    size = isqrt(cells.shape[1])
    grid = cells.view(-1, size, size)
    touching = torch.zeros_like(grid)
    touching[:, 1:] |= grid[:, :-1]
    touching[:, :-1] |= grid[:, 1:]
    touching[:, :, 1:] |= grid[:, :, :-1]
    touching[:, :, :-1] |= grid[:, :, 1:]
    return touching.view_as(cells)


def _flood(sources: Tensor, passable: Tensor) -> Tensor:
    """Mark the sources and all cells reached from them past passable ones; bool [N, S]."""
    reached, num_reached = sources, -1
    while (count := int(reached.sum())) != num_reached:
        num_reached = count
        for _ in range(_FLOOD_MOVES):
            reached = reached | (_touching(reached) & passable)
    return reached
