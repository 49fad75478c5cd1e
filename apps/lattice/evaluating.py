"""Evaluate by search: run the searches, compute the scores and write the files.

Trying many guesses solves puzzles even without knowledge. As a control, the same search can run
with an untrained model, with as many chains and rounds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apps.lattice.config import LatticeConfig
from apps.lattice.search import Ledger, Search, SearchResult, search_sets
from evaluation import table
from evaluation.job import Job, beside
from evaluation.measure import Prepared, Report
from evaluation.metrics import Estimate, wilson
from evaluation.records import Answers, size_of_answers
from evaluation.report import publish, records
from models.act import ACTLossHead
from models.registry import build_model
from puzzle_dataset import Batch, EvalBatches, PuzzleDataset
from runtime.ranks import Ranks

_SHARES = ("solved", "wrong", "abstained", "at_once")


@dataclass(frozen=True)
class SearchScores:
    """The results of a search over a set: shares of the puzzles, and the cost."""

    set_name: str
    searcher: str  # "model" or "untrained"
    num_puzzles: int
    solved: Estimate  # solved, wrong and abstained add up to 1
    wrong: Estimate
    abstained: Estimate
    at_once: Estimate  # solved by one pass of the model, without search
    calls: tuple[float, float, float]  # mean, median and 95th percentile over the puzzles
    solved_within: dict[int, float]  # number of calls -> share solved with at most this many
    seconds: float  # mean time of one rank for a puzzle


def search(
    arch: LatticeConfig,
    job: Job,
    prepared: Prepared,
    model: ACTLossHead,
    _: EvalBatches,
    ranks: Ranks,
) -> Report:
    """Search on all ranks with the model, and with an untrained one if `control` asks for it."""
    config, settings = job.config, job.config.search
    forward = prepared(model)
    searchers = {"model": (forward, model, config.max_examples)}
    if settings.control:
        torch.manual_seed(config.seed)
        untrained = build_model(arch, job.facts).to(ranks.device)
        number = min(settings.control, config.max_examples or settings.control)
        searchers["untrained"] = (prepared(untrained), untrained, number)
    ledger = Ledger(beside(job.output, "_search"), search_key(job, arch), ranks)
    scores, by_model = list[SearchScores](), dict[str, list[SearchResult]]()
    for who, (step, searched, number) in searchers.items():
        puzzles = {name: rows_of(job.dataset, name, number) for name in job.dataset.sets}
        one = Search(step, searched.eval(), arch, ranks, settings, config.seed)
        found = search_sets(one, puzzles, ledger, who, show_progress=ranks.is_main)
        if who == "model":
            by_model = found
        for name, rows in found.items():
            scores += scores_of(name, who, rows, puzzles[name].labels)
    return partial(report, scores, by_model, job)


def search_key(job: Job, arch: LatticeConfig) -> str:
    """Return all that determines the answers of a search, as JSON."""
    config = job.config
    key = {"model": job.trained.digest(), "weights": config.weights, "seed": config.seed}
    key |= {"data": job.dataset.fingerprint(), "arch": arch.model_dump(mode="json")}
    return json.dumps(key | {"search": config.search.model_dump(exclude={"control", "at_once"})})


def rows_of(dataset: PuzzleDataset, set_name: str, number: int | None) -> Batch:
    """Return the first rows of a set, or all."""
    total = dataset.sets[set_name].num_examples
    count = total if number is None else min(number, total)
    return dataset.read(set_name, slice(0, count), np.zeros(count, np.int32))


def report(
    scores: Sequence[SearchScores],
    found: Mapping[str, Sequence[SearchResult]],
    job: Job,
    facts: dict[str, Any],
    seconds: float,
) -> None:
    """Write the scores of a search as JSON, and its records if asked for; print a table."""
    settings = job.config.search.model_dump()
    content = facts | {"search": settings, "searchers": table.plain(scores)}
    files = records_of_search(found, job) if job.config.save_records else {}
    publish(job, content, files, as_text(scores), f"{seconds:.1f} s")
    for path in job.output.parent.glob(f"{beside(job.output, '_search').name}.*.jsonl"):
        path.unlink(missing_ok=True)  # The ledger: the result is written.


def records_of_search(found: Mapping[str, Sequence[SearchResult]], job: Job) -> dict[Path, str]:
    """Return the `records` of a search. Puzzles without an answer are not among the answers."""
    answers, labels, known = Answers(job.facts.vocab_size), {}, {}
    for name, puzzles in found.items():
        rows = rows_of(job.dataset, name, len(puzzles))
        labels[name] = rows.labels
        known[name] = {
            "rating": job.dataset.sets[name].example_ratings(),
            "clues": (rows.inputs == rows.labels).sum(axis=1),
            **size_of_answers(job.dataset, name, len(puzzles)),
        }
        answered = np.array([one.row for one in puzzles if one.answer is not None], np.int64)
        if len(answered):
            preds = np.stack([one.answer for one in puzzles if one.answer is not None])
            inputs, tokens = rows.inputs[answered], rows.labels[answered]
            answers.add(name, answered, {"inputs": inputs, "labels": tokens, "preds": preds})
    lines = as_csv(found, labels, known)
    return records(job, lines, answers.finish(lambda own: [own]))


def scores_of(
    set_name: str, searcher: str, found: Sequence[SearchResult], labels: np.ndarray
) -> list[SearchScores]:
    """Compare the results with the labels, tokens [N, S] by row. Return [] if no row has labels."""
    found = [one for one in found if (labels[one.row] >= 0).any()]
    if not found:
        return []

    judged = _judged(found, labels[[one.row for one in found]])
    calls = np.array([one.calls for one in found])
    bounds = 2 ** np.arange(np.ceil(np.log2(calls.max())) + 1).astype(int)
    solved_within = {int(n): float(np.mean((calls <= n) & judged["solved"])) for n in bounds}
    scores = SearchScores(
        set_name=set_name,
        searcher=searcher,
        num_puzzles=len(found),
        **{name: wilson(int(holds.sum()), len(found)) for name, holds in judged.items()},
        calls=(float(calls.mean()), float(np.median(calls)), float(np.percentile(calls, 95))),
        solved_within=solved_within,
        seconds=float(np.mean([one.seconds for one in found])),
    )
    return [scores]


def as_csv(
    found: Mapping[str, Sequence[SearchResult]],
    labels: Mapping[str, np.ndarray],
    known: Mapping[str, Mapping[str, np.ndarray | None]],
) -> str:
    """Return a line for each puzzle of all sets. `labels` are tokens [N, S] of each set; `known`
    are further columns of each set by name, from the data.
    """
    counted = ("calls", "rounds", "taken_back", "restarts", "seconds")
    sets, names = {}, dict.fromkeys(name for values in known.values() for name in values)
    for name, puzzles in found.items():
        has_labels = (labels[name] >= 0).any(axis=1)
        judged = _judged(puzzles, labels[name])
        columns = {n: np.where(has_labels, holds, np.nan) for n, holds in judged.items()}
        columns |= {n: np.array([float(getattr(one, n)) for one in puzzles]) for n in counted}
        sets[name] = {**known[name], **columns}
    return table.rows_as_csv([*names, *_SHARES, *counted], sets)


def _judged(found: Sequence[SearchResult], labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return for each of `_SHARES` whether it holds for each puzzle, bool [N]."""

    def right(answers: Sequence[np.ndarray | None]) -> np.ndarray:
        pairs = zip(answers, labels, strict=True)
        return np.array([a is not None and np.array_equal(a, label) for a, label in pairs], bool)

    has_answer = np.array([one.answer is not None for one in found], bool)
    solved, at_once = right([one.answer for one in found]), right([one.at_once for one in found])
    wrong = has_answer & ~solved
    return {"solved": solved, "wrong": wrong, "abstained": ~has_answer, "at_once": at_once}


def as_text(scores: Sequence[SearchScores]) -> str:
    """Return a table with a line for each set and searcher, shares with 95 % intervals."""
    lines = []
    for one in scores:
        shares = [getattr(one, name) for name in _SHARES]
        counts = [f"{value:,.0f}" for value in one.calls]
        place = [one.set_name, one.searcher, one.num_puzzles]
        lines.append([*place, *shares, *counts, f"{one.seconds:.3g}"])
    header = ["set", "searcher", "puzzles", *_SHARES, "calls", "median", "95 %", "seconds"]
    explained = "in brackets: 95 % confidence intervals; calls: rows through the model for a puzzle"
    within = [
        f"{one.set_name}, {one.searcher}: share solved by number of calls: "
        + ", ".join(f"{bound} {share:.3f}" for bound, share in one.solved_within.items())
        for one in scores
        if one.searcher == "model"
    ]
    return "\n".join((table.as_text(header, lines, explained), *within))
