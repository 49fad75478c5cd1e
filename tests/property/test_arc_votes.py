"""Votes for ARC answers equal a plain count, in any order and on any number of ranks."""

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataset.arc.augmentation import augment_grid, format_identifier
from evaluation.evaluators.arc import (
    PuzzleNames,
    Tally,
    grid_of,
    parse_tasks,
    score,
    submission,
    task_details,
)

GRIDS = [[[1]], [[1, 2]], [[1], [2]], [[3, 4], [5, 6]], [[0]]]
TASKS = {
    "a": {"test": [{"input": [[1]], "output": [[1, 2]]}, {"input": [[2]], "output": [[0]]}]},
    "b": {"test": [{"input": [[3, 3]], "output": [[3, 4], [5, 6]]}]},
}
INPUTS = {name: [pair["input"] for pair in task["test"]] for name, task in TASKS.items()}
PERMUTATIONS = [[0, *range(1, 10)], [0, *range(9, 0, -1)], [0, 2, 1, *range(3, 10)]]

Row = tuple[str, int, int, int, int, float]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),  # test input
        st.integers(0, len(GRIDS) - 1),  # answer
        st.integers(0, 7),  # view
        st.integers(0, len(PERMUTATIONS) - 1),
        st.floats(-60, 60, width=32),
    ),
    max_size=30,
)


def canvas(grid: np.ndarray) -> np.ndarray:
    """Return the grid on a canvas of 3 x 3 cells."""
    tokens = np.ones((3, 3), np.uint8)
    tokens[: grid.shape[0], : grid.shape[1]] = grid + 2
    return tokens.reshape(-1)


def question_of(row: Row) -> list[list[int]]:
    return INPUTS[row[0]][row[1] % len(INPUTS[row[0]])]


def count(rows: list[Row]) -> Tally:
    names, arrays = ["<blank>"], dict[str, Any](inputs=[], preds=[])
    for row in rows:
        task, _, answer, view, permutation, _ = row
        colours = np.array(PERMUTATIONS[permutation], np.uint8)
        names.append(format_identifier(task, view, colours))
        for field, grid in (("inputs", question_of(row)), ("preds", GRIDS[answer])):
            arrays[field].append(canvas(augment_grid(np.array(grid, np.uint8), view, colours)))
    rows_of = {
        **{name: np.array(arrays[name], np.uint8).reshape(-1, 9) for name in ("inputs", "preds")},
        "puzzle_identifiers": np.arange(1, len(rows) + 1, dtype=np.int32),
        "q_halt_logits": np.array([row[-1] for row in rows], np.float32),
    }
    tally = Tally()
    tally.add_rows(parse_tasks(TASKS, "tasks"), PuzzleNames(names, "identifiers"), rows_of)
    return tally


@given(ROWS)
def test_the_ranking_is_that_of_a_plain_count(rows: list[Row]) -> None:
    tasks, tally = parse_tasks(TASKS, "tasks"), count(rows)
    assert tally.num_unmatched == 0
    for name, questions in INPUTS.items():
        for pair, question in zip(tasks[name], questions, strict=True):
            qs: dict[int, list[float]] = {}
            for row in rows:
                if row[0] == name and question_of(row) == question:
                    qs.setdefault(row[2], []).append(1 / (1 + math.exp(-row[-1])))
            ranked = tally.ranked(name, pair.input_key)
            found = {
                GRIDS.index(grid_of(votes.key).tolist()): (votes.count, votes.mean_q)
                for votes in ranked
            }
            assert found.keys() == qs.keys()
            for answer, values in qs.items():
                votes, mean_q = found[answer]
                assert votes == len(values)
                assert math.isclose(mean_q, math.fsum(values) / len(values), rel_tol=1e-12)
            assert list(found.values()) == sorted(found.values(), reverse=True)


@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 4))
def test_neither_order_nor_ranks_change_a_bit(rows: list[Row], random: Any, ranks: int) -> None:
    tasks, whole = parse_tasks(TASKS, "tasks"), count(rows)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    merged = Tally()
    for rank in range(ranks):
        merged.merge(count(shuffled[rank::ranks]))
    assert task_details(tasks, merged) == task_details(tasks, whole)
    assert submission(tasks, merged) == submission(tasks, whole)
    assert score(tasks, merged) == score(tasks, whole)
    assert merged.num_predictions == len(rows)
