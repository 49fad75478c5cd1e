"""The tables of a report and its headline."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from apps.reports.html import (
    Cell,
    details,
    figure,
    intro,
    pairs,
    percent,
    share,
    table,
    text,
    words,
)
from apps.reports.reading import Result, Run
from evaluation.headline import MEASURES, Score, headline_of, score_of, weight_of
from evaluation.metrics import Estimate
from evaluation.values import at, estimate_of, items, listed, number, share_of
from runtime.text import many

_MAX_ROWS = 200
_IN_RUN = "during training"
# Settings that name a run or its folder and do not change it.
PLACES = ("run_name", "checkpoint_path", "sweep_name", "project_name")


class Headline(NamedTuple):
    """The main score of a run: the measure, its value, and words about its evaluation."""

    name: str
    estimate: Estimate
    words: str


def headline(run: Run) -> Headline | None:
    """Return the main score of a run, None without evaluations; see `weight_of`. Of equally
    large evaluations at one step, one after the run wins over one during training.
    """
    own = _test_folders(run)

    def weight(one: tuple[Result, Score]) -> tuple[float, ...]:
        relevance, size, step, *rest = weight_of(one[0].content, one[1], own)
        return relevance, size, step, one[0].name != _IN_RUN, *rest

    results = [*run.results, *_last_in_training(run, own)]
    scored = [(one, score) for one in results if (score := score_of(one.content)) is not None]
    if not scored:
        return None
    result, score = max(scored, key=weight)
    return Headline(MEASURES[score.name], score.estimate, _details(result, score))


def _test_folders(run: Run) -> list[str]:
    """Return the folders that a run is tested on, parsed from the text of its settings."""
    named = (run.settings.get(key, "null") for key in ("data_paths_test", "data_paths"))
    several = next((value for value in named if value != "null"), None)
    one = run.settings.get("data_path", "null")
    if several is None:
        return [] if one == "null" else [one]
    return [folder.strip(" '\"") for folder in several.strip("[]").split(",")]


def _last_in_training(run: Run, own: Sequence[str]) -> list[Result]:
    """Return the last evaluation during training in the form of `evaluate.py`, [] if none."""
    known = {name: curve.last for name, curve in run.curves.items() if curve.last}
    name = headline_of(known, "eval/")
    if name is None:
        return []
    step, value = known[name]
    split, limit = (run.settings.get(f"eval_{key}", "null") for key in ("split", "max_examples"))
    split = "test" if split == "null" else split
    count = int(known.get("eval/count", (0, 0))[1])
    content = {
        "step": step,
        "data": [f"{folder}/{split}" for folder in own] or [split],
        "max_examples": None if limit == "null" else limit,
        "metrics": {"exact_accuracy": value, "count": count},
    }
    if name == "eval/rules/valid":
        estimate = share_of(value, count) or Estimate(value, None, None)
        details = {"valid": asdict(estimate), "num_examples": count}
        content["evaluators"] = {"rules": {"metrics": {"valid": value}, "details": details}}
    if name == "eval/arc/pass@2":
        tasks = items(dict(run.votes).get(f"eval_step_{step}/arc_tasks.json"))
        scored = sum(any(at(one, "known") is True for one in listed(of)) for _, of in tasks)
        found = {"metrics": {"pass@2": value}, "details": {"num_scored_tasks": scored}}
        content["evaluators"] = {"arc": found}
    return [Result(_IN_RUN, content)]


def _details(result: Result, score: Score) -> str:
    parts = [score.counted] if score.counted else []
    if score.wrong is not None:
        parts.insert(0, f"wrong {percent(score.wrong.value)}")
    if result.name == _IN_RUN:
        parts.append(_IN_RUN)
    if result.step >= 0:
        parts.append(f"step {result.step:,}")
    steps = at(result.content, "arch", "halt_max_steps")
    if type(steps) is int and "searchers" not in result.content:
        parts.append(many(steps, "ACT step"))
    return ", ".join(parts)


# Tables of evaluations

_Columns = Sequence[tuple[str, Callable[[Any], Cell], tuple[str | int, ...]]]


def _count(value: Any) -> Cell:
    return figure(number(value), ",.0f")


def _seconds(value: Any) -> Cell:
    return figure(number(value), ".3g")


def _share(value: Any) -> Cell:
    return share(estimate_of(value))


# For each column: heading, function that makes a cell, path to the value.
_FIGURES: _Columns = (
    ("puzzles", _count, ("count",)),
    ("exact", _share, ("metrics", "exact_accuracy")),
    ("cells", _share, ("metrics", "accuracy")),
    ("Q right", _share, ("metrics", "q_halt_accuracy")),
    ("ACT steps", lambda value: figure(number(value)), ("metrics", "steps", "value")),
    ("loss", lambda value: figure(number(value)), ("metrics", "lm_loss", "value")),
)
_CHAINS: _Columns = (
    ("steps", _count, ("depth",)),
    ("chains", _count, ("breadth",)),
    ("select", words, ("select",)),
    ("first chain", _share, ("single",)),
    ("selected", _share, ("selected",)),
    ("any chain", _share, ("oracle",)),
    ("seconds", _seconds, ("seconds",)),
)
_SEARCHERS: _Columns = (
    ("searcher", words, ("searcher",)),
    ("puzzles", _count, ("num_puzzles",)),
    ("solved", _share, ("solved",)),
    ("wrong", _share, ("wrong",)),
    ("no answer", _share, ("abstained",)),
    ("calls", _count, ("calls", 0)),
    ("median", _count, ("calls", 1)),
    ("95 %", _count, ("calls", 2)),
    ("seconds", _seconds, ("seconds",)),
)


def evaluations_html(run: Run) -> str:
    """Return the tables of all evaluations of a run."""
    of_sets = [
        ([words(f"{result.name}{where}"), words(name)], of_set)
        for result in run.results
        for where, path in (("", ("sets",)), (", at the halt", ("at_halt", "sets")))
        for name, of_set in items(at(result.content, *path))
    ]

    def of_each(key: str) -> list[tuple[list[Cell], Any]]:
        found = [(result, listed(at(result.content, key))) for result in run.results]
        return [([words(result.name)], one) for result, several in found for one in several]

    tables = (
        _table(["evaluation", "set"], of_sets, _FIGURES)
        + _evaluators_table(run.results)
        + _table(["thinking longer"], of_each("chains"), _CHAINS)
        + _table(["search"], of_each("searchers"), _SEARCHERS)
        + _last_table(run)
    )
    return intro("The small numbers are 95 % confidence intervals.") + tables if tables else ""


def _table(
    header: Sequence[str], found: Sequence[tuple[list[Cell], Any]], columns: _Columns
) -> str:
    rows = [
        [*first, *(cell(at(one, *path)) for _, cell, path in columns)]
        for first, one in found[:_MAX_ROWS]
    ]
    return table([*header, *(name for name, _, _ in columns)], rows, sortable=True)


def _evaluators_table(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        for name, found in items(at(result.content, "evaluators")):
            for metric, value in items(at(found, "metrics")):
                if (known := number(value)) is None:
                    continue
                estimate = estimate_of(at(found, "details", metric))
                is_share = 0 <= known <= 1 and not metric.startswith("unmatched")
                cell = share(estimate or Estimate(known, None, None)) if is_share else figure(known)
                rows.append([words(result.name), words(f"{name}: {metric}"), cell])
    return table(["evaluation", "measured", "value"], rows[:_MAX_ROWS])


def _last_table(run: Run) -> str:
    """Return the last metrics of the evaluations during training."""
    last = {name: c.last for name, c in run.curves.items() if name.startswith("eval/") and c.last}
    rows = [
        [words(name.removeprefix("eval/")), figure(value, ".5g"), figure(float(step), ",.0f")]
        for name, (step, value) in last.items()
    ]
    inner = table(["metric", "last value", "step"], rows)
    return details("Evaluations during training", inner) if inner else ""


def warnings_html(runs: Sequence[Run]) -> str:
    """Return a table of the diagnostics' warnings and of the first values that were not finite."""
    several, rows = len(runs) > 1, []
    for run in runs:
        gaps = {name: curve.not_finite for name, curve in run.curves.items()}
        more = [(step, f"{name} is not finite") for name, step in gaps.items() if step is not None]
        for step, sentence in sorted([*run.warnings, *more])[:_MAX_ROWS]:
            cells = [figure(float(step), ",.0f"), Cell(text(sentence, 500), kind="words")]
            rows.append([words(run.name), *cells] if several else cells)
    header = ["run"] * several + ["step", "warning"]
    return table(header, rows[: 2 * _MAX_ROWS], sortable=several)


# Settings


def settings_html(run: Run) -> str:
    """Return all settings as folded tables, one for each section."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, value in run.settings.items():
        section, _, rest = key.partition(".")
        groups.setdefault(section if rest else "run", []).append((key, value))
    return "".join(
        pairs(f"{text(section)} ({many(len(of_section), 'setting')})", of_section)
        for section, of_section in groups.items()
    )


def notes_html(runs: Sequence[Run]) -> str:
    """Return the notes about unreadable files as a list."""
    several = len(runs) > 1
    notes = [f"{run.name}: {note}" if several else note for run in runs for note in run.notes]
    entries = "".join(f"<li>{text(note)}</li>" for note in notes[:_MAX_ROWS])
    return f"<ul>{entries}</ul>" if entries else ""


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings that differ among runs, with their values in the order of the runs. Swept
    settings come first; `PLACES` are left out.
    """
    keys = dict.fromkeys(key for run in runs for key in (*run.swept, *run.settings))
    found = {}
    for key in keys:
        values = [run.swept.get(key, run.settings.get(key, "–")) for run in runs]
        if len(set(values)) > 1 and key not in PLACES:
            found[key] = values
    return found


def parameters_of(run: Run) -> str:
    """Return the number of the model's parameters as text, "" if not known."""
    counts = (number(at(result.content, "num_parameters")) for result in run.results)
    return next((f"{count:,.0f} parameters" for count in counts if count is not None), "")
