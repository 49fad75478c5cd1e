import numpy as np
import pytest
import torch
from torch import Tensor

from dataset.kinds.maze import MAZE
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import BOX_SHAPES
from evaluation.constraints import UNDECIDED, Constraint


def allowed_by_hand(grid: np.ndarray, vocab_size: int) -> Tensor:
    box_rows, box_columns = BOX_SHAPES[len(grid)]
    allowed = torch.zeros(*grid.shape, vocab_size, dtype=torch.bool)
    for row, column in zip(*(grid == 0).nonzero(), strict=True):
        top, left = row // box_rows * box_rows, column // box_columns * box_columns
        box = grid[top : top + box_rows, left : left + box_columns]
        taken = {*grid[row], *grid[:, column], *box.reshape(-1)}
        for digit in set(range(1, len(grid) + 1)) - taken:
            allowed[row, column, digit + 1] = True
    return allowed.view(-1, vocab_size)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_the_sudoku_mask_equals_the_rules_after_every_digit(size: int) -> None:
    rng = np.random.default_rng(size)
    constraint, vocab_size = Constraint(SUDOKU), size + 3
    grids = np.zeros((3, size, size), np.int64)
    grids[1, 0, 0], grids[2, 1, 2] = 1, size
    state = constraint.start(torch.from_numpy(grids + 1).view(3, -1), vocab_size)
    while True:
        by_hand = torch.stack([allowed_by_hand(grid, vocab_size) for grid in grids])
        assert torch.equal(state["allowed"], by_hand)
        open_cells = torch.from_numpy(grids == 0).view(3, -1)
        stuck = (open_cells & ~by_hand.any(-1)).any(-1)
        assert torch.equal(constraint.is_feasible(state), ~stuck)
        options = [row.nonzero().tolist() for row in by_hand]
        if not all(options):
            break
        chosen = torch.tensor([option[rng.integers(len(option))] for option in options])
        before = {name: value.clone() for name, value in state.items()}
        after = constraint.place(state, chosen[:, 0], chosen[:, 1])
        assert all(torch.equal(before[name], state[name]) for name in state)
        state = after
        for grid, (cell, token) in zip(grids, chosen.tolist(), strict=True):
            grid.reshape(-1)[cell] = token - 1
        tokens = torch.from_numpy(np.where(grids == 0, UNDECIDED, grids + 1)).view(3, -1)
        assert torch.equal(state["tokens"], tokens)


def test_padding_is_an_empty_cell_of_a_sudoku() -> None:
    empty, padding = torch.ones(1, 16, dtype=torch.uint8), torch.zeros(1, 16, dtype=torch.int32)
    allowed = [Constraint(SUDOKU).start(cells, 6)["allowed"] for cells in (empty, padding)]
    assert torch.equal(*allowed)


def sudoku(**cells: int) -> Tensor:
    """A batch of an empty 4x4 puzzle and one with the tokens given, as c0=2."""
    tokens = torch.ones(2, 16, dtype=torch.int64)
    for cell, token in cells.items():
        tokens[1, int(cell[1:])] = token
    return tokens


@pytest.mark.parametrize(
    ("inputs", "vocab_size", "told"),
    [
        (torch.ones(1, 25, dtype=torch.int64), 11, "25 cells are no Sudoku grid"),
        (sudoku(), 5, "5 tokens; a 4x4 Sudoku needs 6"),
        (sudoku(c3=2, c0=2), 6, "row 1 of the inputs is no Sudoku: digit 1 stands twice in row 1"),
        (sudoku(c3=6), 9, "row 1 of the inputs is no Sudoku: .*accepted: 0 to 5"),
    ],
)
def test_what_is_no_sudoku_is_named(inputs: Tensor, vocab_size: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Constraint(SUDOKU).start(inputs, vocab_size)


def test_a_kind_without_such_rules_is_named() -> None:
    with pytest.raises(ValueError, match="rules of maze puzzles name no cells that must differ"):
        Constraint(MAZE).start(torch.ones(1, 16, dtype=torch.int64), 6)
