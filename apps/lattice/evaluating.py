"""Evaluate by search: what the model finds, beside chance, and its files."""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apps.lattice import search_report
from apps.lattice.config import LatticeConfig
from apps.lattice.search import Found, Ledger, Search, search_sets
from apps.lattice.search_report import Figures, figures_of
from evaluation import table
from evaluation.job import Job, beside
from evaluation.measure import Prepared, Report
from evaluation.records import Answers, size_of_answers
from evaluation.report import as_file, heading, last_line, records, write
from models.act import ACTLossHead
from models.registry import build_model
from puzzle_dataset import Batch, EvalBatches, PuzzleDataset
from runtime.ranks import Ranks


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
    content = facts | {"search": settings, "searchers": table.as_json(figures)}
    written = {job.output: as_file(content)}
    if job.config.save_records:
        written |= records_of_search(found, job)
    write(written)
    sys.stdout.write(
        f"{heading(facts)}{search_report.as_text(figures)}\n\n"
        f"{seconds:.1f} s\nwritten: {', '.join(map(str, written))}\n"
        f"{last_line(content)}"
    )
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
            answers.add(name, answered, rows.inputs[answered], rows.labels[answered], preds)
    lines = search_report.as_csv(found, labels, known)
    return records(job, lines, answers.finish(lambda own: [own]))
