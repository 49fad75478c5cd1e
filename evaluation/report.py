"""The figures of an evaluation for people (a table) and for programs (JSON), and the files that it
writes.
"""

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

_COLUMNS = ("exact_accuracy", "accuracy", "q_halt_accuracy", "steps", "lm_loss", "q_halt_loss")
_WITH_INTERVAL = ("exact_accuracy", "accuracy", "q_halt_accuracy")
_RECORDED = ("exact_accuracy", "accuracy", "steps", "q_halt")


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation has found, the same on all ranks: the figures of each test set, in the
    order of the data, and what each evaluator found.

    Attributes:
        records: of each set the rows' values by name, [num_examples] in test order: the metrics,
            `count` (1 where the row has labels), `q_halt` (a probability, NaN without such a head),
            `clues` (cells whose label is given); where puzzles are recorded, `right_after_K` (1
            where the answer of ACT step K is right) for each K; and with `at_halt` what
            `at_halt_NAME` was there.
        at_halt: the figures at the step at which each row would have halted, where that was asked.
        answers: of each set what `evaluation.records.Answers` tells, where puzzles are recorded.
    """

    sets: Mapping[str, SetResult]
    findings: Mapping[str, Findings] = field(default_factory=dict)
    records: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    at_halt: Mapping[str, SetResult] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, Callable[[], Any]]:
        """JSON-ready content of the evaluators' files, by file name, made when it is asked for."""
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
    """Return `count` and the metrics over the rows of all sets; without a row, no metric."""
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
    """Return the figures over all sets as `eval/NAME`, those of several sets as `eval/SET/NAME`
    too, and those of evaluators as `eval/EVALUATOR/NAME`; the headline comes first.
    """
    found = {}
    for set_name, result in evaluation.sets.items() if len(evaluation.sets) > 1 else ():
        found[f"{set_name}/count"] = float(result.count)
        found |= {f"{set_name}/{name}": one.value for name, one in result.reported.items()}
    found |= pooled(evaluation.sets) | evaluation.metrics
    first = headline_of(found)
    names = [first, *found] if first else found
    return {f"eval/{name}": found[name] for name in names}


def as_json(evaluation: Evaluation, folder: Path, suffix: str = "") -> dict[str, Any]:
    """Return the figures as JSON-ready values: `metrics` over all sets, `sets` one by one with
    their intervals, both again in `at_halt` where they were measured there, and `evaluators` with
    their metrics, details and files in `folder`.

    A figure that is not finite becomes text ("nan"), since JSON has no number for it.
    """
    content = _json_sets(evaluation.sets)
    if evaluation.at_halt:
        content["at_halt"] = _json_sets(evaluation.at_halt)
    content["evaluators"] = {
        name: {
            "metrics": found.metrics,
            "details": found.details,
            "files": [str(folder / named(file, suffix)) for file in found.files],
        }
        for name, found in evaluation.findings.items()
    }
    return content


def named(file: str, suffix: str) -> str:
    """Return the name of an evaluator's file with `suffix` behind its stem."""
    return f"{Path(file).stem}{suffix}{Path(file).suffix}"


def _json_sets(sets: Mapping[str, SetResult]) -> dict[str, Any]:
    one_by_one = {
        name: {
            "num_examples": result.num_examples,
            "count": result.count,
            "metrics": {name: table.plain(value) for name, value in result.reported.items()},
        }
        for name, result in sets.items()
    }
    together = {name: table.plain(value) for name, value in pooled(sets).items()}
    return {"metrics": together, "sets": one_by_one}


def as_csv(
    records: Mapping[str, Mapping[str, np.ndarray]],
    known: Mapping[str, Mapping[str, np.ndarray | None]],
) -> str:
    """Return a line for each row of all sets; a field is empty where its value is not known.

    Args:
        records: as an `Evaluation` has them.
        known: of each set by name, what the data say of at least these rows; None: not known.
    """
    rows = next(iter(records.values()), {})
    names = [prefix + name for prefix in ("", "at_halt_") for name in ("clues", *_RECORDED)]
    measured = [name for name in names if name in rows]
    measured += [name for name in rows if name.startswith("right_after_")]
    sets = {}
    for set_name, values in records.items():
        # Nothing but q_halt is known of a row without labels.
        has_labels = values["count"] > 0
        sets[set_name] = dict(known[set_name]) | {
            name: np.where(has_labels | name.endswith("q_halt"), values[name], np.nan)
            for name in measured
        }
    return table.rows_as_csv([*next(iter(known.values()), {}), *measured], sets)


def as_text(evaluation: Evaluation) -> str:
    """Return a line for each set, shares with 95 % intervals, one for each evaluator's metric."""
    at_halt = {f"{name}, at the halt": result for name, result in evaluation.at_halt.items()}
    lines = [
        [set_name, result.count, *(_cell(result, name) for name in _COLUMNS)]
        for set_name, result in {**evaluation.sets, **at_halt}.items()
    ]
    explained = "in brackets: 95 % confidence intervals"
    text = table.as_text(["set", "count", *_COLUMNS], lines, explained)
    if not evaluation.findings:
        return text
    found = evaluation.metrics
    width = max(map(len, found), default=0)
    metrics = [f"{name.ljust(width)}  {value:.4f}" for name, value in found.items()]
    return "\n".join([text, "", "\n".join(metrics)])


def _cell(result: SetResult, name: str) -> table.Cell:
    estimate = result.metrics.get(name)
    return estimate if estimate is None or name in _WITH_INTERVAL else estimate.value


# Files and what is printed


def report(
    evaluation: Evaluation, job: Job, suffix: str, facts: dict[str, Any], seconds: float
) -> None:
    """Write the result as JSON, `facts` first, the records asked for and the evaluators' files,
    whose names get the `suffix`; print it as tables.
    """
    output, sets = job.output, evaluation.sets
    content = facts | as_json(evaluation, output.parent, suffix)
    written = {output: as_file(content)}
    if job.config.save_records:
        known = {
            name: {"rating": job.dataset.sets[name].example_ratings()}
            | size_of_answers(job.dataset, name, result.num_examples)
            for name, result in sets.items()
        }
        written |= records(job, as_csv(evaluation.records, known), evaluation.answers)
    for name, made in evaluation.files.items():
        written[output.parent / named(name, suffix)] = as_line(made())
    write(written)
    number = sum(result.num_examples for result in sets.values())
    exact = pooled(sets).get("exact_accuracy")
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
    content = facts | {"thinking": settings, "chains": table.as_json(found)}
    lines = beside(job.output, ".csv")
    write({job.output: as_file(content), lines: table.as_csv(found)})
    sys.stdout.write(
        f"{heading(facts)}{chains.as_text(found)}\n\n"
        f"{seconds:.1f} s\nwritten: {job.output}, {lines}\n{last_line(content)}"
    )


def as_file(content: Mapping[str, Any]) -> str:
    """Return a result as the text of its file."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def last_line(content: Mapping[str, Any], but: str = "") -> str:
    """Return the line with the headline of a result, "" where there is none, or it is `but`."""
    score = score_of(content)
    return f"{score}\n" if score is not None and score.name != but else ""


def records(job: Job, lines: str, answers: Mapping[str, Any]) -> dict[Path, str]:
    """Return the files of what is kept of single puzzles, with their content."""
    content = {"kind": job.dataset.kind, "sets": answers}
    text, output = as_line(content), job.output
    return {beside(output, "_records.csv"): lines, beside(output, "_records.json"): text}


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
