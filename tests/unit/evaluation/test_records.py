"""The summary of answers does not depend on batches and ranks, and its figures are right."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset import build_maze_dataset
from dataset.maze import rules as maze
from evaluation.records import NUM_FAILURES, Answers, size_of_answers
from puzzle_dataset import PuzzleDataset

ROWS, CELLS, VOCAB = 60, 16, 6


def rows_of(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, VOCAB, (ROWS, CELLS)).astype(np.int32)
    is_wrong = rng.random(labels.shape) < rng.random((ROWS, 1)) / 8
    preds = np.where(is_wrong, rng.integers(2, VOCAB, labels.shape), labels).astype(np.int32)
    labels[rng.random(labels.shape) < 0.1] = -100
    confidence = rng.random(labels.shape).astype(np.float32)
    q_halt = rng.random(ROWS).astype(np.float32)
    inputs = np.ones_like(labels)
    return {
        **{"rows": np.arange(ROWS), "inputs": inputs, "labels": labels, "preds": preds},
        **{"q_halt": q_halt, "confidence": confidence},
    }


def told(*shares: list[slice], **more: Any) -> dict[str, Any]:
    """Return the summary of ranks that each get these rows, batch by batch."""
    values = rows_of() | more
    ranks = [Answers(VOCAB) for _ in shares]
    for rank, parts in zip(ranks, shares, strict=True):
        for part in parts:
            own = {name: value[part] for name, value in values.items() if value is not None}
            rank.add("all", own.pop("rows"), own)
    found = [rank.finish(lambda own: [one._sets for one in ranks]) for rank in ranks]
    assert all(one == found[0] for one in found)
    json.dumps(found[0], allow_nan=False)
    return found[0]["all"]


def test_batches_and_ranks_change_nothing() -> None:
    whole = told([slice(0, ROWS)])
    assert whole == told([slice(i, i + 7) for i in range(0, ROWS, 7)])
    # Ranks get slices of each batch of 20.
    halves = [[slice(i + 10 * r, i + 10 * r + 10) for i in range(0, ROWS, 20)] for r in (0, 1)]
    assert whole == told(*halves)
    assert whole == told(*halves[::-1])


def test_confusion_counts_labelled_cells() -> None:
    values, counts = rows_of(), np.zeros((VOCAB, VOCAB), int)
    for labels, preds in zip(values["labels"], values["preds"], strict=True):
        for label, pred in zip(labels, preds, strict=True):
            if label >= 0:
                counts[label, pred] += 1
    assert told([slice(0, ROWS)])["confusion"] == counts.tolist()


def test_confidence_is_counted_in_tenths() -> None:
    values, found = rows_of(), told([slice(0, ROWS)])["confidence"]
    labelled = values["labels"] >= 0
    confidence = values["confidence"][labelled].astype(float)
    right = (values["labels"] == values["preds"])[labelled]
    for tenth in range(10):
        own = (confidence >= tenth / 10) & (confidence < (tenth + 1) / 10)
        assert (found["count"][tenth], found["right"][tenth]) == (own.sum(), right[own].sum())
        assert found["mean"][tenth] == pytest.approx(confidence[own].mean(), abs=1e-8)
    assert told([slice(0, ROWS)], confidence=None)["confidence"] is None
    extremes = np.where(values["confidence"] < 0.5, 1.0, np.nan)
    found = told([slice(0, ROWS)], confidence=extremes)["confidence"]
    assert found["count"][9] == (labelled & (extremes == 1)).sum()
    assert (found["mean"][9], found["mean"][0]) == (1.0, None)


def test_failures_are_the_surest_and_the_most_wrong() -> None:
    values, found = rows_of(), told([slice(0, ROWS)])["failures"]
    wrong = ((values["labels"] != values["preds"]) & (values["labels"] >= 0)).sum(1)
    failed = np.flatnonzero(wrong)
    assert len(failed) > 2 * NUM_FAILURES
    surest = sorted(failed, key=lambda row: -values["q_halt"][row])[:NUM_FAILURES]
    assert [one["index"] for one in found["surest"]] == surest
    most = sorted(failed, key=lambda row: (-wrong[row], row))[:NUM_FAILURES]
    assert [one["index"] for one in found["most_wrong"]] == [r for r in most if r not in surest]
    one = found["most_wrong"][0]
    row = one["index"]
    assert one["cells_wrong"] == wrong[row]
    assert one["cells_labelled"] == (values["labels"][row] >= 0).sum()
    for name, array in (("inputs", "inputs"), ("labels", "labels"), ("answer", "preds")):
        assert one[name] == values[array][row].tolist()


@pytest.mark.parametrize("q_halt", [None, np.full(ROWS, np.nan)])
def test_without_q_nobody_was_sure(q_halt: Any) -> None:
    found = told([slice(0, ROWS)], q_halt=q_halt)["failures"]
    assert found["surest"] == []
    assert len(found["most_wrong"]) == NUM_FAILURES
    assert found["most_wrong"][0]["q_halt"] is None


def test_a_large_vocabulary_has_no_table() -> None:
    answers = Answers(1000)
    cells = np.full((1, 4), 900)
    answers.add("all", np.arange(1), {"inputs": cells, "labels": cells, "preds": cells + 1})
    found = answers.finish(lambda own: [own])["all"]
    assert found["confusion"] is None
    assert found["failures"]["most_wrong"][0]["cells_wrong"] == 4


def test_kinds_and_sizes(
    sudoku_data: Path, arc_data: Path, tasks_data: Path, tmp_path: Path
) -> None:
    flags = "--source=generate --size=5 --min-length=2 --subsample-size=4 --test-size=6"
    assert build_maze_dataset.main([*flags.split(), f"--output-dir={tmp_path}"]) == 0
    mazes = PuzzleDataset([tmp_path], "test")
    assert mazes.kind == "maze"
    (lengths,) = size_of_answers(mazes, "all", 4).values()
    _, moves = maze.solve(np.array(mazes.sets["all"].inputs[:4]))
    assert lengths.tolist() == moves.tolist()
    tasks = PuzzleDataset([arc_data], "test")
    assert tasks.kind == "arc"
    labels = tasks.sets["all"].labels
    assert size_of_answers(tasks, "all", len(labels)) == {
        "grid_cells": pytest.approx((labels >= 2).sum(axis=1))
    }
    sudokus = PuzzleDataset([sudoku_data], "test")
    assert (sudokus.kind, size_of_answers(sudokus, "all", 3)) == ("sudoku", {})
    assert PuzzleDataset([tasks_data], "test").kind is None


def test_of_solved_puzzles_the_slowest_is_followed() -> None:
    right = np.zeros((5, 9))
    right[0, 2:] = right[1, 7:] = right[3, 7:] = 1  # Row 4 is right for a while, row 2 never.
    right[4, 3:6] = 1
    after = np.arange(5 * 8 * 2).reshape(5, 8, 2)
    rows, cells = np.arange(5), np.ones((5, 2), int)

    def followed(*shares: list[int]) -> Any:
        ranks = [Answers(VOCAB) for _ in shares]
        for rank, own in zip(ranks, shares, strict=True):
            for r in own:
                one = slice(r, r + 1)
                solved = {"right": right[one], "after": after[one]}
                own = dict.fromkeys(("inputs", "labels", "preds"), cells[one])
                rank.add("all", rows[one], own | solved)
        return ranks[0].finish(lambda own: [one._sets for one in ranks])["all"]["solving"]

    found = followed([0, 1, 2, 3, 4])
    assert found == followed([3, 0], [4, 2, 1])
    assert (found["index"], found["steps"]) == (1, [1, 2, 4, 5, 7, 8])
    assert found["answers"] == after[1, [0, 1, 3, 4, 6, 7]].tolist()
    assert followed([2, 4]) is None
