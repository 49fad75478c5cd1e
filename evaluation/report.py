"""The result of an evaluation as a table, as JSON and CSV, and the files that it writes."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import chains, table
from evaluation.config import ThinkingSettings
from evaluation.evaluators.base import Findings
from evaluation.headline import headline_of, score_of
from evaluation.job import Job, beside
from evaluation.metrics import SetResult
from evaluation.outputs import as_line
from evaluation.records import size_of_answers
from models.metrics import as_reported, is_loss
from runtime.errors import ConfigError
from runtime.files import write_together

_SHARES = ("exact_accuracy", "accuracy", "q_halt_accuracy")
_MEANS = ("steps", "lm_loss", "q_halt_loss")
_RECORDED = ("clues", "valid", "exact_accuracy", "accuracy", "steps", "q_halt")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, the same on all ranks.

    Attributes:
        sets: the figures of each test set, in the order of the data.
        findings: of each evaluator.
        records: the rows' values of each set by name, [num_examples] in test order: the metrics,
            `count` (1 if the row has labels), `q_halt` (a probability; NaN without this head),
            `clues` (cells given by the puzzle); with save_records also `valid` (1 if an answer of
            several keeps the rules, else 0) and `right_after_K` (1 if it is right after ACT step K)
            for each K.
        answers: the summary of each set from `evaluation.records.Answers`, with save_records.
    """

    sets: Mapping[str, SetResult]
    findings: Mapping[str, Findings] = field(default_factory=dict)
    records: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, Callable[[], Any]]:
        """The evaluators' files: functions that return the JSON-ready content, by file name."""
        return {name: made for one in self.findings.values() for name, made in one.files.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of evaluators, as EVALUATOR/NAME."""
        return {
            f"{evaluator}/{name}": value
            for evaluator, found in self.findings.items()
            for name, value in found.metrics.items()
        }


def pooled(sets: Mapping[str, SetResult]) -> dict[str, float]:
    """Return `count` and the metrics over the rows of all sets; no metrics if there are no rows."""
    figures = {"count": float(sum(result.count for result in sets.values()))}
    for name in dict.fromkeys(name for result in sets.values() for name in result.metrics):
        parts = [
            (result.num_examples if is_loss(name) else result.count, result.metrics[name].value)
            for result in sets.values()
            if name in result.metrics
        ]
        total = sum(rows for rows, _ in parts)
        figures[name] = sum(rows * value for rows, value in parts) / total
    return as_reported(figures)


def flatten(evaluation: Evaluation) -> dict[str, float]:
    """Return the figures by name: `eval/NAME` over all sets, `eval/EVALUATOR/NAME` of evaluators,
    and `eval/SET/NAME` of each set if there are several. The headline comes first.
    """
    found = {}
    for set_name, result in evaluation.sets.items() if len(evaluation.sets) > 1 else ():
        found[f"{set_name}/count"] = float(result.count)
        found |= {f"{set_name}/{name}": one.value for name, one in result.reported.items()}
    found |= pooled(evaluation.sets) | evaluation.metrics
    first = headline_of(found)
    names = [first, *found] if first else found
    return {f"eval/{name}": found[name] for name in names}


def as_json(evaluation: Evaluation, paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return the figures JSON-ready: `metrics` over all sets, `sets` one by one with intervals, and
    `evaluators` with their metrics, details and files, which are at `paths`. NaN and infinity
    become text ("nan").
    """
    sets = {
        name: {
            "num_examples": result.num_examples,
            "count": result.count,
            "metrics": {name: table.plain(value) for name, value in result.reported.items()},
        }
        for name, result in evaluation.sets.items()
    }
    evaluators = {
        name: {
            "metrics": table.plain(found.metrics),
            "details": table.plain(found.details),
            "files": [str(paths[name]) for name in found.files],
        }
        for name, found in evaluation.findings.items()
    }
    together = {name: table.plain(value) for name, value in pooled(evaluation.sets).items()}
    return {"metrics": together, "sets": sets, "evaluators": evaluators}


def as_csv(
    records: Mapping[str, Mapping[str, np.ndarray]],
    known: Mapping[str, Mapping[str, np.ndarray | None]],
) -> str:
    """Return a line for each row of all sets; fields of unknown values are empty.

    Args:
        records: see `Evaluation`.
        known: values from the data for at least these rows, by set and name; None: unknown.
    """
    rows = next(iter(records.values()), {})
    measured = [name for name in _RECORDED if name in rows]
    measured += [name for name in rows if name.startswith("right_after_")]
    sets = {}
    for set_name, values in records.items():
        # For rows without labels only q_halt is known.
        has_labels = values["count"] > 0
        sets[set_name] = dict(known[set_name]) | {
            name: np.where(has_labels | (name == "q_halt"), values[name], np.nan)
            for name in measured
        }
    return table.rows_as_csv([*next(iter(known.values()), {}), *measured], sets)


def as_text(evaluation: Evaluation) -> str:
    """Return a table of the sets, shares with 95 % intervals, and the metrics of evaluators."""
    lines = []
    for set_name, result in evaluation.sets.items():
        own = result.metrics
        means = (own[name].value if name in own else None for name in _MEANS)
        lines.append([set_name, result.count, *map(own.get, _SHARES), *means])
    explained = "in brackets: 95 % confidence intervals"
    text = table.as_text(["set", "count", *_SHARES, *_MEANS], lines, explained)
    if not evaluation.findings:
        return text
    found = evaluation.metrics
    width = max(map(len, found), default=0)
    metrics = [f"{name.ljust(width)}  {value:.4f}" for name, value in found.items()]
    return "\n".join([text, "", "\n".join(metrics)])


# Writing and printing


def report(evaluation: Evaluation, job: Job, facts: dict[str, Any], seconds: float) -> None:
    """Write the result (`facts` first), its records and the evaluators' files, and print it. The
    names of the evaluators' files get the ending of the result's default name; if the user set
    `output`, only the parts of `Job.differs`.
    """
    config, output, sets = job.config, job.output, evaluation.sets
    suffix = "".join(f"_{part}" for part in job.differs)
    if config.output is None:
        suffix = output.stem.removeprefix(f"eval_{job.trained.weights.name}")
    paths = {name: Path(name) for name in evaluation.files}
    paths = {n: output.with_name(f"{path.stem}{suffix}{path.suffix}") for n, path in paths.items()}
    content, files = facts | as_json(evaluation, paths), {}
    if config.save_records:
        known = {
            name: {"rating": job.dataset.sets[name].example_ratings()}
            | size_of_answers(job.dataset, name, result.num_examples)
            for name, result in sets.items()
        }
        files |= records(job, as_csv(evaluation.records, known), evaluation.answers)
    for name, made in evaluation.files.items():
        files[paths[name]] = as_line(made())
    number = sum(result.num_examples for result in sets.values())
    took = f"{number:,} puzzles in {seconds:.1f} s: {number / seconds:,.1f} a second"
    exact = pooled(sets).get("exact_accuracy")
    known = "no puzzle has labels" if exact is None else f"{exact:.4f}"
    publish(job, content, files, as_text(evaluation), took, f"exact_accuracy: {known}")


def report_chains(
    scores: list[chains.ChainScores], job: Job, facts: dict[str, Any], seconds: float
) -> None:
    """Write the scores of thinking longer, and print them as a table."""
    names = {*ThinkingSettings.model_fields, *({"energy"} & {*job.config.select})}
    settings = job.config.model_dump(include=names, by_alias=True)
    content = facts | {"thinking": settings, "chains": table.plain(scores)}
    publish(job, content, {}, chains.as_text(scores), f"{seconds:.1f} s")


def records(job: Job, lines: str, answers: Mapping[str, Any]) -> dict[Path, str]:
    """Return the content of the files of records, by path."""
    content = {"kind": job.dataset.kind, "sets": answers}
    text, output = as_line(content), job.output
    return {beside(output, "_records.csv"): lines, beside(output, "_records.json"): text}


def publish(
    job: Job,
    content: Mapping[str, Any],
    files: Mapping[Path, str],
    text: str,
    took: str,
    exact: str = "",
) -> None:
    """Print the checkpoint, the data, `text` and the time. Write the result as JSON with its
    further files. Print their names, the line `exact` and the headline.

    Raises:
        ConfigError: the files cannot be written; none is left.
    """
    weights = f" ({content['weights']} weights)" if content["weights"] else ""
    origin = f"checkpoint: {content['checkpoint']}{weights}\ndata: {', '.join(content['data'])}\n"
    sys.stdout.write(f"{origin}\n{text}\n\n{took}\n")  # First, because the disk may be full.
    written = {job.output: json.dumps(content, indent=1, allow_nan=False) + "\n", **files}
    try:
        write_together(written)
    except OSError as error:
        path = error.filename or job.output
        raise ConfigError(f"output={path}: cannot be written: {error.strerror}") from None
    score = score_of(content)
    lines = [
        f"written: {', '.join(map(str, written))}",
        *([exact] if exact else []),
        *([str(score)] if score and not (exact and score.name == "exact_accuracy") else []),
    ]
    sys.stdout.write("\n".join([*lines, ""]))
