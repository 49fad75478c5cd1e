"""The solver, compared with an exhaustive search over all 4x4 grids."""

from functools import cache
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.sudoku.rules import count_solutions, find_conflict, solve


@cache
def all_solutions() -> np.ndarray:
    """Find every solution of size 4 by trying all quadruples of rows: int [288, 16]."""
    rows = np.array(list(permutations(range(1, 5))))
    found = []
    for first in rows:
        for second in rows:
            if any(len({*first[i : i + 2], *second[i : i + 2]}) < 4 for i in (0, 2)):
                continue
            for third in rows:
                for fourth in rows:
                    grid = np.stack([first, second, third, fourth])
                    columns_right = (np.sort(grid, axis=0) == np.arange(1, 5)[:, None]).all()
                    if columns_right and len({*third[:2], *fourth[:2]}) == 4:
                        found.append(grid.reshape(-1))
    return np.array(found)


grids = st.lists(st.integers(0, 4), min_size=16, max_size=16).map(np.array)
masks = st.lists(st.booleans(), min_size=16, max_size=16).map(np.array)


@settings(deadline=None)
@given(grids, st.integers(0, 287), masks, st.integers(0, 15), st.integers(0, 4))
def test_clues_of_any_grid_of_a_solution_and_of_one_change(grid, number, kept, cell, digit):
    check(grid)
    puzzle = np.where(kept, all_solutions()[number], 0)
    check(puzzle)
    puzzle[cell] = digit
    check(puzzle)


def check(puzzle: np.ndarray) -> None:
    solutions = all_solutions()
    fitting = solutions[((puzzle == 0) | (puzzle == solutions)).all(axis=1)]
    grid, backtracks = solve(puzzle.reshape(4, 4))
    assert count_solutions(puzzle.reshape(4, 4), limit=500) == len(fitting)
    assert count_solutions(puzzle.reshape(4, 4)) == min(len(fitting), 2)
    assert backtracks >= 0
    if find_conflict(puzzle.reshape(4, 4)) is not None or grid is None:
        assert len(fitting) == 0
    if grid is not None:
        assert grid.reshape(-1).tolist() in fitting.tolist()
