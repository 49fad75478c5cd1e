"""The ways to measure a model on a set, and how each writes its result. A way runs on all ranks; it
returns a function that reports what it found, on rank 0.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evaluation import chains
from evaluation.config import ThinkingSettings
from evaluation.headline import score_of
from evaluation.job import Job, beside, global_batch_size
from evaluation.outputs import OutputError, open_outputs
from evaluation.records import Answers, size_of_answers
from evaluation.report import Evaluation, as_csv, as_json, as_text, pooled
from evaluation.runner import evaluate
from evaluation.thinking import Forward
from models.act import ACTLossHead
from puzzle_dataset import EvalBatches
from runtime.errors import ConfigError
from runtime.files import write_together
from runtime.ranks import Ranks

Prepared = Callable[[ACTLossHead], Forward]
"""Gives what runs a model."""
Report = Callable[[dict[str, Any], float], None]
"""Writes and prints a result, given the facts that stand first in it, and the seconds it took."""


def batches_for(job: Job, model: ACTLossHead, ranks: Ranks) -> tuple[EvalBatches, Job]:
    """Return the batches of this rank, and the job with their size: a CUDA device may get more."""
    config = job.config
    if ranks.device.type == "cuda":
        fits = min(ranks.gather_objects(rows_that_fit(model, ranks.device)))
        size = global_batch_size(config, job.trained, job.dataset, ranks.world_size, fits)
        job = replace(job, batch_size=size)
    return EvalBatches(
        job.dataset,
        global_batch_size=job.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        max_examples=config.max_examples,
    ), job


def rows_that_fit(model: ACTLossHead, device: torch.device) -> int:
    """Return how many rows a CUDA device evaluates at a time.

    A row is taken to need 256 bytes x positions x hidden_size; as many rows as fit into half of the
    memory, at most 4,096.
    """
    inner = model.model.inner
    row = 256 * inner.num_positions * inner.hidden_size
    return min(4096, torch.cuda.get_device_properties(device).total_memory // 2 // row)


def in_one_pass(
    job: Job, prepared: Prepared, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Report:
    """Evaluate on all ranks and write the outputs asked for. What the default name of the result
    says of the settings, the names of outputs and of the evaluators' files say, too; beside an
    `output` of the user's choice only where rows halt early.

    Raises:
        ConfigError: a file cannot be written; names it.
    """
    output, weights = job.output, job.trained.weights
    folder = beside(output, "_outputs")
    suffix = "_at_halt" if job.config.halting == "q" else ""
    if job.config.output is None:
        suffix = output.stem.removeprefix(f"eval_{weights.name}")
    prefix = output.with_name(f"{weights.name}_all_preds{suffix}")
    try:
        published = prefix if job.trained.is_published else None
        with open_outputs(job.config.save_outputs, folder, batches, ranks, published) as save:
            evaluation = evaluate(
                prepared(model),
                model,
                batches,
                ranks,
                halting=job.config.halting,
                save=save,
                answers=Answers(job.facts.vocab_size) if job.config.save_records else None,
                evaluators=job.evaluators,
                show_progress=ranks.is_main,
                seed=job.config.seed,
            )
    except OutputError as error:
        raise ConfigError(f"the evaluation's files cannot be written: {error}") from None
    return partial(report, evaluation.with_files_named(suffix), job)


def with_chains(
    job: Job, prepared: Prepared, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Report:
    """Think longer about each puzzle, on all ranks."""
    found = chains.think_longer(
        prepared(model), model, batches, ranks, job.config, job.views, show_progress=ranks.is_main
    )
    return partial(report_chains, found, job)


def report(evaluation: Evaluation, job: Job, facts: dict[str, Any], seconds: float) -> None:
    """Write the result as JSON, `facts` first, the records asked for and the evaluators' files;
    print it as tables.
    """
    output = job.output
    content = facts | as_json(evaluation, output.parent)
    written = {output: as_file(content)}
    if job.config.save_records:
        ratings = {name: arrays.example_ratings() for name, arrays in job.dataset.sets.items()}
        sizes = {
            name: size_of_answers(job.dataset, name, result.num_examples)
            for name, result in evaluation.sets.items()
        }
        written |= records(job, as_csv(evaluation, ratings, sizes), evaluation.answers)
    for name, made in evaluation.files.items():
        written[output.parent / name] = json.dumps(made(), separators=(",", ":")) + "\n"
    write(written)
    number = sum(result.num_examples for result in evaluation.sets.values())
    exact = pooled(evaluation.sets).get("exact_accuracy")
    sys.stdout.write(
        f"{heading(facts)}{as_text(evaluation)}\n\n"
        f"{number:,} puzzles in {seconds:.1f} s: {number / seconds:,.1f} a second\n"
        f"written: {', '.join(map(str, written))}\n"
        f"exact_accuracy: {'no puzzle has labels' if exact is None else f'{exact:.4f}'}\n"
        f"{last_line(content, but='exact_accuracy')}"
    )


def report_chains(
    found: list[chains.Figures], job: Job, facts: dict[str, Any], seconds: float
) -> None:
    """Write what thinking longer gave as JSON and CSV, and print it as a table."""
    settings = {name: getattr(job.config, name) for name in ThinkingSettings.model_fields}
    content = facts | {"thinking": settings, "chains": chains.as_json(found)}
    table = beside(job.output, ".csv")
    write({job.output: as_file(content), table: chains.as_csv(found)})
    sys.stdout.write(
        f"{heading(facts)}{chains.as_text(found)}\n\n"
        f"{seconds:.1f} s\nwritten: {job.output}, {table}\n{last_line(content)}"
    )


def as_file(content: Mapping[str, Any]) -> str:
    """Return a result as the text of its file."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def last_line(content: Mapping[str, Any], but: str = "") -> str:
    """Return the line with the headline of a result, "" where there is none, or it is `but`."""
    score = score_of(content)
    return f"{score}\n" if score is not None and score.name != but else ""


def records(job: Job, table: str, answers: Mapping[str, Any]) -> dict[Path, str]:
    """Return the files of what is kept of single puzzles, with their content."""
    content = {"kind": job.dataset.kind, "sets": answers}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"
    output = job.output
    return {beside(output, "_records.csv"): table, beside(output, "_records.json"): text}


def heading(facts: Mapping[str, Any]) -> str:
    """Return the lines that say what was measured."""
    weights = f" ({facts['weights']} weights)" if facts["weights"] else ""
    return f"checkpoint: {facts['checkpoint']}{weights}\ndata: {', '.join(facts['data'])}\n\n"


def write(files: Mapping[Path, str]) -> None:
    """Write the files of the result, the result first; raises ConfigError where there is no room
    for all of them, and writes none.
    """
    try:
        write_together(files)
    except OSError as error:
        path = error.filename or next(iter(files))
        raise ConfigError(f"output={path}: cannot be written: {error.strerror}") from None
