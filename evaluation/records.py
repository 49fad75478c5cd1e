"""The content of OUTPUT_records.json (`save_records=true`): confusion of tokens, calibration of the
confidence, and examples of wrong answers.

Only sums of integers and the first rows of an order are kept, so that neither the batch size nor
the number of ranks changes a bit. Imports no torch.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds.base import Kind, known_kind
from evaluation.evaluators.base import Gather
from puzzle_dataset import PuzzleDataset

NUM_FAILURES = 12
"""Wrong answers kept for each set and each of two orders."""

_NUM_BINS = 10  # Of the confidence.
_MOST_BOARDS = 6  # Answers kept of the solved puzzle that is shown.
_MAX_VOCABULARY = 64  # A larger confusion table would not be readable.
_UNIT = 2**30  # Confidences are summed as integer multiples of 1 / _UNIT, in any order.
_ROWS_AT_ONCE = 4096


def size_of_answers(dataset: PuzzleDataset, set_name: str, number: int) -> dict[str, np.ndarray]:
    """Return the answer sizes of the first rows of a set, int64 [number] by name. The size of a
    maze's answer is `path_length`, the moves of its path.
    """
    if (kind := known_kind(dataset.kind)) is None:
        return {}
    parts = []
    for start in range(0, max(number, 1), _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, number))
        ids = np.zeros(rows.stop - start, np.int32)
        parts.append(kind.answer_sizes(dataset.read(set_name, rows, ids).labels))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Answers:
    """Collects the answers of this rank, batch by batch, and summarizes all ranks. With the `kind`
    of puzzles that have several right answers, an answer that keeps the rules is right.
    """

    def __init__(self, vocab_size: int, kind: Kind | None = None) -> None:
        self.kind = kind
        self._vocab_size = vocab_size if vocab_size <= _MAX_VOCABULARY else 0
        self._sets: dict[str, _SetSummary] = {}

    def add(self, set_name: str, rows: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Add answers to rows of a set.

        Args:
            rows: integers [n], their numbers in the set.
            values: `inputs`, `labels` and `preds`, integers [n, S] tokens, labels -100 where
                ignored. If known, `q_halt`, float [n], and `confidence`, float [n, S], how sure the
                model is of each answer and each cell; `valid` [n], nonzero if the answer is right
                though it may differ from the labels; `right` [n, steps], nonzero if the answer was
                right after a step, and `after`, integers [n, first steps, S], the tokens after it.
        """
        inputs, labels, preds = (values[name] for name in ("inputs", "labels", "preds"))
        q_halt, confidence = values.get("q_halt"), values.get("confidence")
        summary = self._sets.setdefault(set_name, _SetSummary(self._vocab_size))
        labelled = labels != IGNORE_LABEL_ID
        if (valid := values.get("valid")) is not None:
            labels = np.where(labelled & (valid > 0)[:, None], preds, labels)
        is_right = labelled & (preds == labels)
        summary.count_tokens(labels[labelled], preds[labelled])
        if confidence is not None:
            summary.count_confidence(confidence[labelled], is_right[labelled])
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
        slowest = _slowest(rows, values) if "right" in values and "after" in values else []
        summary.keep(failures, slowest)

    def finish(self, gather: Gather) -> dict[str, dict[str, Any]]:
        """Merge the answers of all ranks; each of them must call. Return for each set, JSON-ready:

        - `confusion`: [V, V] counts of labelled cells; rows are labels, columns answers. Null for
          more than 64 tokens;
        - `confidence`: for each tenth of the confidence the number of cells (`count`), of right
          cells (`right`) and the mean confidence (`mean`, null without cells). Null if no head
          gives a confidence;
        - `failures`: wrong answers in two orders, `surest` (by q_halt) and `most_wrong` (by the
          number of wrong cells); one in both lists is only in the first;
        - `solving`: the solved puzzle that took the most steps, with its `answers` after some
          `steps`; the last of them is right. Null if nothing is solved or only the last step was
          read.
        """
        total: dict[str, _SetSummary] = {}
        for part in gather(self._sets):
            for name, summary in part.items():
                total.setdefault(name, _SetSummary(self._vocab_size)).add(summary)
        return {name: summary.to_json() for name, summary in total.items()}


def _slowest(rows: np.ndarray, values: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the solved puzzle that took the most steps, in a list; empty if none is solved."""
    right, after = values["right"], values["after"]
    known = right[:, : after.shape[1]] > 0
    took = np.where(known.any(axis=1) & (right[:, -1] > 0), known.argmax(axis=1) + 1, 0)
    if not took.any():
        return []
    row = int(took.argmax())
    numbers = np.unique(np.rint(np.linspace(1, took[row], _MOST_BOARDS)).astype(int))
    solving = {
        "index": int(rows[row]),
        "inputs": values["inputs"][row].tolist(),
        "labels": values["labels"][row].tolist(),
        "steps": numbers.tolist(),
        "answers": after[row, numbers - 1].tolist(),
    }
    return [solving]


class _SetSummary:
    """The sums and failures of one set."""

    def __init__(self, vocab_size: int) -> None:
        self.confusion = np.zeros((vocab_size, vocab_size), np.int64)
        # For each tenth: cells, right cells, and the sum of confidences in units.
        self.confidence = np.zeros((3, _NUM_BINS), np.int64)
        self.surest: list[dict[str, Any]] = []
        self.most_wrong: list[dict[str, Any]] = []
        self.solving: list[dict[str, Any]] = []

    def keep(self, failures: Iterable[dict[str, Any]], solving: list[dict[str, Any]]) -> None:
        """Keep the failures that are among the first in one of the orders, and the solved puzzle
        that took the most steps; among equals the first.
        """
        known = {one["index"]: one for one in (*self.surest, *self.most_wrong, *failures)}
        with_q = [one for one in known.values() if one["q_halt"] is not None]
        surest = sorted(with_q, key=lambda one: (-one["q_halt"], one["index"]))
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

    def add(self, other: "_SetSummary") -> None:
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
