"""Run the probes of an evaluation, and report what they measured."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from apps.inside.course import bytes_of_course, course_of
from apps.inside.probes import Column, Columns, Form
from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds.base import known_kind
from evaluation import table
from evaluation.job import Job, beside
from evaluation.metrics import normal
from evaluation.probes import PROBES
from evaluation.report import publish
from evaluation.think import evaluating
from models.act import ACTLossHead
from puzzle_dataset import Batch, EvalBatches
from runtime.errors import ConfigError
from runtime.host_memory import host_memory_left
from runtime.progress import bar
from runtime.ranks import Ranks

GROUPS = ("right", "wrong")


def with_probes(
    job: Job, prepared: object, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Callable[[dict[str, Any], float], None]:
    """Run the probes of the settings on all sets that are not empty, on all ranks, without
    compiling. Return a function that writes and prints the result.

    Raises:
        ConfigError: a probe cannot measure this model.
    """
    first_row = ranks.rank * batches.local_batch_size
    found: dict[str, list[tuple[int, dict[str, Columns]]]] = defaultdict(list)
    with evaluating(model, ranks, first_row):
        for number, (name, batch, count, start) in enumerate(
            bar(batches, "probing", "batches", show=ranks.is_main)
        ):
            ranks.mark(f"batch {number + 1} of the probes", long=True)
            own = max(0, min(count - first_row, len(batch.inputs)))
            size, cells = batches.local_batch_size, batch.inputs.shape[1]
            for rows in _parts(model, own, size, cells, ranks.device):
                part = _rows_of(batch, rows)
                row = start + first_row + rows.start
                found[name].append((row, _probed(job, model, part, ranks, row)))
    sets = {}
    for name in (name for name, number in batches.num_examples.items() if number):
        parts = [part for of_rank in ranks.gather_objects(found[name]) for part in of_rank]
        sets[name] = _merged([columns for _, columns in sorted(parts, key=lambda part: part[0])])
    return partial(_report, job, sets)


def _parts(
    model: ACTLossHead, number: int, size: int, cells: int, device: torch.device
) -> Sequence[slice]:
    """Return the rows of a batch in parts whose courses fit into half of the memory that is left.

    Raises:
        ConfigError: the course of a single puzzle does not fit.
    """
    each, left = 3 * bytes_of_course(model, cells), _memory_left(device) / 2
    if each > left:
        steps = model.model.eval_max_steps
        needs = f"{steps} steps of a puzzle need {each / 1e9:.3g} GB, {left / 1e9:.3g} GB are free"
        raise ConfigError(f"probes: {needs}; {int(steps * left / each)} steps would fit")
    most = int(min(size, left // each))
    return [slice(start, min(start + most, number)) for start in range(0, number, most)]


def _memory_left(device: torch.device) -> float:
    """Return the bytes that are left where a course is kept."""
    if device.type != "cuda":
        return host_memory_left()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def _rows_of(batch: Batch, rows: slice) -> Batch:
    fields = {name: values[rows] for name, values in batch.fields.items()}
    return Batch(batch.inputs[rows], batch.labels[rows], batch.puzzle_identifiers[rows], fields)


def _probed(
    job: Job, model: ACTLossHead, batch: Batch, ranks: Ranks, first_row: int
) -> dict[str, Columns]:
    kind = known_kind(job.dataset.kind)
    course = course_of(model, batch, kind, ranks, first_row, job.config.seed)
    labelled = (batch.labels != IGNORE_LABEL_ID).any(-1)
    right = np.where(labelled, course.right.cpu().numpy(), np.nan)
    found = {"": {"right": Column(right)}}
    for config in job.config.probes:
        found[config.name] = PROBES.load(config.name)(config, course)
    return found


def _merged(parts: Sequence[dict[str, Columns]]) -> dict[str, Columns]:
    """Join the columns of all parts; those that a part lacks are NaN there."""
    joined = defaultdict[str, Columns](dict)
    keys = {(probe, name) for part in parts for probe in part for name in part[probe]}
    for probe, name in sorted(keys):
        columns = [part[probe].get(name) for part in parts]
        form: Form = next(column.form for column in columns if column)
        rows = [len(part[""]["right"].values) if form == "value" else 0 for part in parts]
        values = [c.values if c else np.full(n, np.nan) for c, n in zip(columns, rows, strict=True)]
        joined[probe][name] = Column(np.concatenate([one for one in values if len(one)]), form)
    return dict(joined)


def summary(columns: dict[str, Columns]) -> dict[str, Any]:
    """Return what the probes measured on a set, JSON-ready: for each probe and column the mean with
    its interval, the counts of words, or the mean curve, apart for right and wrong answers; the
    mean map; and the paths with whether they end right.
    """
    right = columns[""]["right"].values  # NaN without labels: in neither group.
    groups = {"right": right > 0, "wrong": right == 0}
    return {
        probe: {name: _summarized(column, groups) for name, column in of_probe.items()}
        for probe, of_probe in columns.items()
        if probe
    } | {"puzzles": {name: int(rows.sum()) for name, rows in groups.items()}}


def _summarized(column: Column, groups: Mapping[str, np.ndarray]) -> Any:
    values, form = column
    if form == "map":
        return {"mean": np.round(values.mean(0), 5).tolist()}
    if form == "path":
        ends = groups["right"][: len(values)].tolist()
        return {"paths": np.round(values, 3).tolist(), "right": ends}
    found = {}
    for name, rows in groups.items():
        own = values[rows]
        if form == "word":
            texts, numbers = np.unique(own, return_counts=True)
            found[name] = dict(zip(texts.tolist(), numbers.tolist(), strict=True))
        elif form == "curve":
            # Significant digits: a residual becomes tiny.
            found[name] = [float(f"{one:.5g}") for one in own.mean(0)] if len(own) else None
        else:
            own = own[np.isfinite(own)]
            found[name] = asdict(normal(own)) | {"count": len(own)} if len(own) else None
    return found


def as_csv(sets: Mapping[str, dict[str, Columns]]) -> str:
    """Return a line for each puzzle with the values and words of all probes."""
    found = {
        set_name: {
            f"{probe}.{name}".lstrip("."): column.values
            for probe, of_probe in columns.items()
            for name, column in of_probe.items()
            if column.form in ("value", "word")
        }
        for set_name, columns in sets.items()
    }
    # A set whose answers are all right lacks the columns of the probe `escapes`.
    names = dict.fromkeys(name for values in found.values() for name in values)
    return table.rows_as_csv(names, {n: {**dict.fromkeys(names), **v} for n, v in found.items()})


def as_text(sets: Mapping[str, dict[str, Any]]) -> str:
    """Return a table of the summaries: the figures of right and of wrong answers side by side."""
    lines = []
    for set_name, probes in sets.items():
        lines.append([set_name, "puzzles", *(probes["puzzles"][group] for group in GROUPS)])
        for probe, columns in probes.items():
            for name, found in columns.items() if probe != "puzzles" else ():
                if set(found) >= set(GROUPS):
                    cells = [_shown(found[group]) for group in GROUPS]
                    lines.append([set_name, f"{probe}.{name}", *cells])
    return table.as_text(["set", "measure", *GROUPS], lines, "means; of curves: the last step")


def _shown(found: Any) -> table.Cell:
    if not found:
        return None
    if isinstance(found, list):
        return float(found[-1])
    if "value" in found:
        return float(found["value"])
    return ", ".join(f"{number} {word}" for word, number in found.items())


def _report(
    job: Job, sets: dict[str, dict[str, Columns]], facts: dict[str, Any], seconds: float
) -> None:
    summaries = {name: summary(columns) for name, columns in sets.items()}
    asked = [probe.model_dump(mode="json") for probe in job.config.probes]
    content = facts | {"probes": asked, "inside": table.plain(summaries)}
    files = {beside(job.output, "_inside.csv"): as_csv(sets)}
    publish(job, content, files, as_text(summaries), f"{seconds:.1f} s")
