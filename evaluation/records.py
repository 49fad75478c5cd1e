"""What an evaluation keeps of single puzzles (`save_records=true`), beside a line for each: how
tokens are confused, how well the confidence is calibrated, and wrong answers to look at.

Only sums of integers and the first rows of an order are kept, so that neither batches nor the
number of ranks change a bit. Imports no torch.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds import KINDS
from evaluation.evaluators.base import Gather
from puzzle_dataset import PuzzleDataset

NUM_FAILURES = 12
"""Wrong answers that are kept of each set in each of two orders."""

_NUM_BINS = 10  # Of the confidence: tenths.
_MOST_BOARDS = 6  # Answers that are kept of the puzzle whose solving is shown.
_MAX_VOCABULARY = 64  # A larger table of confusions is nothing to look at.
_UNIT = 2**30  # Confidences are added as multiples of its inverse: in any order the same sum.
_ROWS_AT_ONCE = 4096


def size_of_answers(dataset: PuzzleDataset, set_name: str, number: int) -> dict[str, np.ndarray]:
    """Return the answer sizes of the first rows of a set, int64 [number] by name. Of a maze it is
    `path_length`, the moves of its path.
    """
    if not dataset.kind or dataset.kind not in KINDS:
        return {}
    kind, parts = KINDS.load(dataset.kind), []
    for start in range(0, max(number, 1), _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, number))
        ids = np.zeros(rows.stop - start, np.int32)
        parts.append(kind.answer_sizes(dataset.read(set_name, rows, ids).labels))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Answers:
    """Takes in answers of this rank, batch by batch, and tells at the end what they show.

    Args:
        vocab_size: of the data.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size if vocab_size <= _MAX_VOCABULARY else 0
        self._sets: dict[str, _OfSet] = {}

    def add(
        self,
        set_name: str,
        rows: np.ndarray,
        inputs: np.ndarray,
        labels: np.ndarray,
        preds: np.ndarray,
        *,
        q_halt: np.ndarray | None = None,
        confidence: np.ndarray | None = None,
        right: np.ndarray | None = None,
        after: np.ndarray | None = None,
    ) -> None:
        """Take in answers to rows of a set.

        Args:
            rows: integers [n], their numbers in the set.
            inputs, labels, preds: integers [n, S] tokens; labels -100 where ignored.
            q_halt: float [n], how sure the model is of each answer.
            confidence: float [n, S], how sure it is of each cell.
            right: [n, steps], not 0 where the answer was right after a step.
            after: integers [n, first steps, S], the tokens after each of the first steps.
        """
        of_set = self._sets.setdefault(set_name, _OfSet(self._vocab_size))
        labelled = labels != IGNORE_LABEL_ID
        is_right = labelled & (preds == labels)
        of_set.count_tokens(labels[labelled], preds[labelled])
        if confidence is not None:
            of_set.count_confidence(confidence[labelled], is_right[labelled])
        num_wrong = (labelled & ~is_right).sum(axis=1)
        failures = [
            {
                "index": int(rows[i]),
                "q_halt": None if q_halt is None or math.isnan(q_halt[i]) else float(q_halt[i]),
                "cells_wrong": int(num_wrong[i]),
                "cells_labelled": int(labelled[i].sum()),
                "inputs": inputs[i].tolist(),
                "labels": labels[i].tolist(),
                "answer": preds[i].tolist(),
            }
            for i in np.flatnonzero(num_wrong).tolist()
        ]
        of_set.keep(failures, _slowest(rows, inputs, labels, right, after))

    def finish(self, gather: Gather) -> dict[str, dict[str, Any]]:
        """Bring the ranks together, all of which take part; returns of each set, JSON-ready:

        - `confusion`: of labelled cells how often the token of a row was answered by that of a
          column, [V, V]; null where tokens are too many;
        - `confidence`: for each tenth of the confidence the number of cells (`count`), those that
          are right (`right`), and the mean confidence (`mean`, null without a cell); null where no
          head gives one;
        - `failures`: wrong answers, in two orders: `surest`, by how sure the model is, and
          `most_wrong`, by the number of wrong cells; what both have is in the first;
        - `solving`: of the puzzles that are solved the one that took the most steps, and its
          `answers` after some of these (`steps`, of which the last solved it); null where no step
          but the last was read, or nothing is solved.
        """
        total: dict[str, _OfSet] = {}
        for part in gather(self._sets):
            for name, of_set in part.items():
                total.setdefault(name, _OfSet(self._vocab_size)).add(of_set)
        return {name: of_set.to_json() for name, of_set in total.items()}


def _slowest(
    rows: np.ndarray,
    inputs: np.ndarray,
    labels: np.ndarray,
    right: np.ndarray | None,
    after: np.ndarray | None,
) -> list[dict[str, Any]]:
    """Return how the solved puzzle came about that took the most steps, if there is one."""
    if right is None or after is None:
        return []
    known = right[:, : after.shape[1]] > 0
    took = np.where(known.any(axis=1) & (right[:, -1] > 0), known.argmax(axis=1) + 1, 0)
    if not took.any():
        return []
    row = int(took.argmax())
    numbers = np.unique(np.rint(np.linspace(1, took[row], _MOST_BOARDS)).astype(int))
    solving = {
        "index": int(rows[row]),
        "inputs": inputs[row].tolist(),
        "labels": labels[row].tolist(),
        "steps": numbers.tolist(),
        "answers": after[row, numbers - 1].tolist(),
    }
    return [solving]


class _OfSet:
    """Sums and failures of a set's rows."""

    def __init__(self, vocab_size: int) -> None:
        self.confusion = np.zeros((vocab_size, vocab_size), np.int64)
        # Of each tenth: cells, right ones, and the sum of the confidences in units.
        self.confidence = np.zeros((3, _NUM_BINS), np.int64)
        self.surest: list[dict[str, Any]] = []
        self.most_wrong: list[dict[str, Any]] = []
        self.solving: list[dict[str, Any]] = []

    def keep(self, failures: Iterable[dict[str, Any]], solving: list[dict[str, Any]]) -> None:
        """Keep the failures that one of the orders has among its first, and of solved puzzles the
        one that took most steps; of equal ones the first.
        """
        known = {one["index"]: one for one in (*self.surest, *self.most_wrong, *failures)}
        told = [one for one in known.values() if one["q_halt"] is not None]
        surest = sorted(told, key=lambda one: (-one["q_halt"], one["index"]))
        most_wrong = sorted(known.values(), key=lambda one: (-one["cells_wrong"], one["index"]))
        self.surest, self.most_wrong = surest[:NUM_FAILURES], most_wrong[:NUM_FAILURES]
        slowest = sorted(self.solving + solving, key=lambda one: (-one["steps"][-1], one["index"]))
        self.solving = slowest[:1]

    def count_tokens(self, labels: np.ndarray, preds: np.ndarray) -> None:
        size = len(self.confusion)
        known = (labels >= 0) & (labels < size) & (preds >= 0) & (preds < size)
        pairs = labels[known].astype(np.int64) * size + preds[known]
        self.confusion += np.bincount(pairs, minlength=size * size).reshape(size, size)

    def count_confidence(self, confidence: np.ndarray, right: np.ndarray) -> None:
        known = np.isfinite(confidence)
        confidence, right = confidence[known].astype(np.float64), right[known]
        bins = np.clip((confidence * _NUM_BINS).astype(np.int64), 0, _NUM_BINS - 1)
        units = np.rint(confidence * _UNIT).astype(np.int64)
        self.confidence[0] += np.bincount(bins, minlength=_NUM_BINS)
        self.confidence[1] += np.bincount(bins[right], minlength=_NUM_BINS)
        np.add.at(self.confidence[2], bins, units)

    def add(self, other: "_OfSet") -> None:
        self.confusion += other.confusion
        self.confidence += other.confidence
        self.keep((*other.surest, *other.most_wrong), other.solving)

    def to_json(self) -> dict[str, Any]:
        counts, right, units = self.confidence.tolist()
        confidence = None
        if sum(counts):
            means = [unit / _UNIT / n if n else None for unit, n in zip(units, counts, strict=True)]
            confidence = {"count": counts, "right": right, "mean": means}
        return {
            "confusion": self.confusion.tolist() or None,
            "confidence": confidence,
            "failures": {
                "surest": self.surest,
                "most_wrong": [one for one in self.most_wrong if one not in self.surest],
            },
            "solving": next(iter(self.solving), None),
        }
