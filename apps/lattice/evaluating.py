"""Evaluate by search: what the model finds, and its files.

A search finds answers that the model alone would not; how many it would find with a model that
knows nothing is therefore measured beside it, with the same number of chains and rounds.
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
from apps.lattice.search import Found, Ledger, Search, search_sets
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


@dataclass(frozen=True)
class Figures:
    """Shares of the puzzles, and what they cost."""

    set_name: str
    searcher: str  # model, or untrained
    num_puzzles: int
    solved: Estimate  # the first three add up to 1
    wrong: Estimate
    abstained: Estimate
    at_once: Estimate  # solved by one pass of the model, without search
    calls: tuple[float, float, float]  # for a puzzle: mean, median, 95th percentile
    solved_within: dict[int, float]  # the share solved with at most this many calls
    seconds: float  # of one rank for each puzzle


def search(
    arch: LatticeConfig,
    job: Job,
    prepared: Prepared,
    model: ACTLossHead,
    _: EvalBatches,
    ranks: Ranks,
) -> Report:
    """Search on all ranks with the model, and with weights that were never trained."""
    config, settings = job.config, job.config.search
    forward = prepared(model)
    searchers = {"model": (forward, model, config.max_examples)}
    if settings.control:
        torch.manual_seed(config.seed)
        untrained = build_model(arch, job.facts).to(ranks.device)
        searchers["untrained"] = (prepared(untrained), untrained, settings.control)
    ledger = Ledger(ledger_prefix(job), search_key(job, arch), ranks)
    figures, by_model = list[Figures](), dict[str, list[Found]]()
    for who, (step, searched, number) in searchers.items():
        puzzles = {name: rows_of(job.dataset, name, number) for name in job.dataset.sets}
        one = Search(step, searched.eval(), arch, ranks, settings, config.seed)
        found = search_sets(one, puzzles, ledger, who, show_progress=ranks.is_main)
        if who == "model":
            by_model = found
        for name, rows in found.items():
            figures += figures_of(name, who, rows, puzzles[name].labels)
    return partial(report, figures, by_model, job)


def search_key(job: Job, arch: LatticeConfig) -> str:
    """Return what decides the answers of a search."""
    config = job.config
    key = {"model": job.trained.digest(), "weights": config.weights, "seed": config.seed}
    key |= {"data": job.dataset.fingerprint(), "arch": arch.model_dump(mode="json")}
    return json.dumps(key | {"search": config.search.model_dump(exclude={"control", "at_once"})})


def ledger_prefix(job: Job) -> Path:
    """Return how the files begin that keep what an unfinished search has found."""
    return beside(job.output, "_search")


def rows_of(dataset: PuzzleDataset, set_name: str, number: int | None) -> Batch:
    """Return the first rows of a set, or all."""
    total = dataset.sets[set_name].num_examples
    count = total if number is None else min(number, total)
    return dataset.read(set_name, slice(0, count), np.zeros(count, np.int32))


def report(
    figures: Sequence[Figures],
    found: Mapping[str, Sequence[Found]],
    job: Job,
    facts: dict[str, Any],
    seconds: float,
) -> None:
    """Write what a search gave as JSON, and the records asked for; print it as a table."""
    settings = job.config.search.model_dump()
    content = facts | {"search": settings, "searchers": table.plain(figures)}
    files = records_of_search(found, job) if job.config.save_records else {}
    publish(job, content, files, as_text(figures), f"{seconds:.1f} s")
    for path in job.output.parent.glob(f"{ledger_prefix(job).name}.*.jsonl"):
        path.unlink(missing_ok=True)  # The result is written.


def records_of_search(found: Mapping[str, Sequence[Found]], job: Job) -> dict[Path, str]:
    """Return `records` of a search; a puzzle without an answer has none that could be wrong."""
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


def figures_of(
    set_name: str, searcher: str, found: Sequence[Found], labels: np.ndarray
) -> list[Figures]:
    """Compare what was found with the labels, tokens [N, S], by row; none where no row has any."""
    found = [one for one in found if (labels[one.row] >= 0).any()]
    if not found:
        return []

    def share(holds: np.ndarray) -> Estimate:
        return wilson(int(holds.sum()), len(found))

    labels = labels[[one.row for one in found]]
    has_answer, right = _judged([one.answer for one in found], labels)
    calls = np.array([one.calls for one in found])
    figures = Figures(
        set_name=set_name,
        searcher=searcher,
        num_puzzles=len(found),
        solved=share(right),
        wrong=share(has_answer & ~right),
        abstained=share(~has_answer),
        at_once=share(_judged([one.at_once for one in found], labels)[1]),
        calls=(float(calls.mean()), float(np.median(calls)), float(np.percentile(calls, 95))),
        solved_within=_within(calls, right),
        seconds=float(np.mean([one.seconds for one in found])),
    )
    return [figures]


def _within(calls: np.ndarray, right: np.ndarray) -> dict[int, float]:
    bounds = 2 ** np.arange(np.ceil(np.log2(calls.max())) + 1).astype(int)
    return {int(bound): float(np.mean((calls <= bound) & right)) for bound in bounds}


def as_csv(
    found: Mapping[str, Sequence[Found]],
    labels: Mapping[str, np.ndarray],
    known: Mapping[str, Mapping[str, np.ndarray | None]],
) -> str:
    """Return a line for each puzzle of all sets, with its labels, tokens [N, S], and what is known
    of it from the data, by name.
    """
    counted = ("calls", "rounds", "taken_back", "restarts", "seconds")
    sets, names = {}, dict.fromkeys(name for values in known.values() for name in values)
    for name, puzzles in found.items():
        has_answer, right = _judged([one.answer for one in puzzles], labels[name])
        _, at_once = _judged([one.at_once for one in puzzles], labels[name])
        shares = {"solved": right, "wrong": has_answer & ~right, "abstained": ~has_answer}
        has_labels = (labels[name] >= 0).any(axis=1)
        columns = {
            name: np.where(has_labels, share, np.nan)
            for name, share in (shares | {"at_once": at_once}).items()
        }
        columns |= {n: np.array([float(getattr(one, n)) for one in puzzles]) for n in counted}
        sets[name] = {**known[name], **columns}
    return table.rows_as_csv([*names, "solved", "wrong", "abstained", "at_once", *counted], sets)


def _judged(
    answers: Sequence[np.ndarray | None], labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return where there is an answer, and where it is right, bool [N]."""
    pairs = zip(answers, labels, strict=True)
    right = [answer is not None and bool((answer == label).all()) for answer, label in pairs]
    return np.array([answer is not None for answer in answers], bool), np.array(right, bool)


def as_text(figures: Sequence[Figures]) -> str:
    """Return a line for each, shares with their 95 % intervals."""
    names = ("solved", "wrong", "abstained", "at_once")
    lines = []
    for one in figures:
        shares = [getattr(one, name) for name in names]
        counts = [f"{value:,.0f}" for value in one.calls]
        place = [one.set_name, one.searcher, one.num_puzzles]
        lines.append([*place, *shares, *counts, f"{one.seconds:.3g}"])
    header = ["set", "searcher", "puzzles", *names, "calls", "median", "95 %", "seconds"]
    explained = "in brackets: 95 % confidence intervals; calls: rows through the model for a puzzle"
    within = [
        f"{one.set_name}, {one.searcher}: solved within so many calls: "
        + ", ".join(f"{bound} {share:.3f}" for bound, share in one.solved_within.items())
        for one in figures
        if one.searcher == "model"
    ]
    return "\n".join((table.as_text(header, lines, explained), *within))
