"""Tables and words of a report: what was found, by whom, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from evaluation.metrics import Estimate
from reports.html import Cell, figure, share, table, text, words
from reports.reading import Result, Run
from reports.values import at, estimate_of, items, listed, number, share_of
from runtime.text import many

_SHARES = ("exact_accuracy", "accuracy", "q_halt_accuracy")
_MAX_ROWS = 200
# Settings that say where a run is, not what it does.
PLACES = ("run_name", "checkpoint_path", "sweep_name", "project_name")


@dataclass(frozen=True)
class Headline:
    """The one figure that stands for a run.

    Attributes:
        name: what it is.
        estimate: its value, with its interval where there is one.
        words: of what, and where it is from.
    """

    name: str
    estimate: Estimate
    words: str


def headline(run: Run) -> Headline | None:
    """Return the figure that stands for a run: what a search has solved, the votes on ARC, or the
    exact accuracy, of the newest weights on test puzzles; None where nothing was evaluated.
    """
    kinds = (_of_search, _of_votes, _of_puzzles)
    on_test = [result for result in run.results if _is_on_test(result)]
    results = on_test or run.results
    for step in dict.fromkeys(result.step for result in results):
        of_step = [result for result in results if result.step == step]
        for of_kind, result in product(kinds, of_step):
            if (found := of_kind(result)) is not None:
                return found
    return _of_training(run)


def _is_on_test(result: Result) -> bool:
    folders = [str(folder) for folder in listed(at(result.content, "data"))]
    return any(folder.rstrip("/").endswith("test") for folder in folders)


def _of_search(result: Result) -> Headline | None:
    for one in listed(at(result.content, "searchers")):
        estimate = estimate_of(at(one, "solved"))
        if at(one, "searcher") == "model" and estimate is not None:
            count = number(at(one, "num_puzzles")) or 0
            return Headline("solved by search", estimate, _told(result, count))
    return None


def _of_votes(result: Result) -> Headline | None:
    found = number(at(result.content, "evaluators", "arc", "metrics", "pass@2"))
    if found is None:
        return None
    tasks = number(at(result.content, "evaluators", "arc", "details", "num_scored_tasks")) or 0
    return Headline("ARC pass@2", Estimate(found, None, None), _told(result, tasks, "tasks"))


def _of_puzzles(result: Result) -> Headline | None:
    metrics, sets = at(result.content, "metrics"), items(at(result.content, "sets"))
    value, count = number(at(metrics, "exact_accuracy")), number(at(metrics, "count")) or 0
    if value is None:
        return None
    estimate = share_of(value, int(count)) or Estimate(value, None, None)
    if len(sets) == 1:
        estimate = estimate_of(at(sets[0][1], "metrics", "exact_accuracy")) or estimate
    return Headline("exact accuracy", estimate, _told(result, count))


def _told(result: Result, count: float, what: str = "puzzles") -> str:
    parts = [f"{count:,.0f} {what}"] if count else []
    if result.step >= 0:
        parts.append(f"step {result.step:,}")
    steps = at(result.content, "arch", "halt_max_steps")
    if type(steps) is int and "searchers" not in result.content:
        parts.append(many(steps, "ACT step"))
    return ", ".join(parts)


def _of_training(run: Run) -> Headline | None:
    curve, counted = run.curves.get("eval/exact_accuracy"), run.curves.get("eval/count")
    if curve is None or curve.last is None:
        return None
    step, value = curve.last
    count = int(counted.last[1]) if counted and counted.last else 0
    estimate = share_of(value, count) or Estimate(value, None, None)
    puzzles = f"{count:,} puzzles, " if count else ""
    return Headline("exact accuracy", estimate, f"{puzzles}in the run, step {step:,}")


# Tables of evaluations


def evaluations_html(run: Run) -> str:
    """Return the tables of all evaluations of a run."""
    parts = [
        _figures_table(run.results),
        _evaluators_table(run.results),
        _chains_table(run.results),
        _searchers_table(run.results),
        _last_table(run),
    ]
    told = '<p class="intro">In small print: 95 % confidence intervals.</p>'
    found = [part for part in parts if part]
    return told + "".join(found) if found else ""


def _figures_table(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        halts = (("", result.content), (", at the halt", at(result.content, "at_halt")))
        for where, content in halts:
            for set_name, of_set in items(at(content, "sets")):
                metrics = at(of_set, "metrics")
                shares = [share(estimate_of(at(metrics, name))) for name in _SHARES]
                others = [number(at(metrics, name, "value")) for name in ("steps", "lm_loss")]
                rows.append(
                    [
                        words(f"{result.name}{where}"),
                        words(set_name),
                        figure(number(at(of_set, "count")), ",.0f"),
                        *shares,
                        *map(figure, others),
                    ]
                )
    header = ["evaluation", "set", "puzzles", "exact", "cells", "Q right", "ACT steps", "loss"]
    return table(header, rows[:_MAX_ROWS], sortable=True) if rows else ""


def _evaluators_table(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        for name, found in items(at(result.content, "evaluators")):
            for metric, value in items(at(found, "metrics")):
                known = number(value)
                if known is None:
                    continue
                estimate = estimate_of(at(found, "details", metric))
                is_share = 0 <= known <= 1 and not metric.startswith("unmatched")
                cell = share(estimate or Estimate(known, None, None)) if is_share else figure(known)
                rows.append([words(result.name), words(f"{name}: {metric}"), cell])
    return table(["evaluation", "measured", "value"], rows[:_MAX_ROWS]) if rows else ""


def _chains_table(results: Sequence[Result]) -> str:
    rows = [
        [
            words(result.name),
            *(figure(number(at(one, name)), ",.0f") for name in ("depth", "breadth")),
            words(at(one, "select")),
            *(share(estimate_of(at(one, name))) for name in ("single", "selected", "oracle")),
            figure(number(at(one, "seconds")), ".3g"),
        ]
        for result in results
        for one in listed(at(result.content, "chains"))
    ]
    header = ["thinking longer", "depth", "breadth", "select", "first chain", "selected"]
    header += ["any chain", "seconds"]
    return table(header, rows[:_MAX_ROWS], sortable=True) if rows else ""


def _searchers_table(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        for one in listed(at(result.content, "searchers")):
            calls = listed(at(one, "calls")) + [None] * 3
            rows.append(
                [
                    words(result.name),
                    words(at(one, "searcher")),
                    figure(number(at(one, "num_puzzles")), ",.0f"),
                    *(share(estimate_of(at(one, n))) for n in ("solved", "wrong", "abstained")),
                    *(figure(number(value), ",.0f") for value in calls[:3]),
                    figure(number(at(one, "seconds")), ".3g"),
                ]
            )
    header = ["search", "searcher", "puzzles", "solved", "wrong", "no answer", "calls", "median"]
    return table([*header, "95 %", "seconds"], rows[:_MAX_ROWS]) if rows else ""


def _last_table(run: Run) -> str:
    """Return the last figures of the evaluations in the course of the run."""
    rows = []
    for name, curve in run.curves.items():
        if name.startswith("eval/") and curve.last:
            step, value = curve.last
            cell = figure(value, ".5g")
            rows.append([words(name.removeprefix("eval/")), cell, figure(float(step), ",.0f")])
    if not rows:
        return ""
    inner = table(["figure", "last value", "step"], rows)
    return f"<details><summary>Evaluations in the course of the run</summary>{inner}</details>"


def warnings_html(runs: Sequence[Run]) -> str:
    """Return every warning of the diagnosis at its step, and what was not finite."""
    several, rows = len(runs) > 1, []
    for run in runs:
        told = [(step, words) for step, words in run.warnings]
        for name, curve in run.curves.items():
            if curve.not_finite is not None:
                told.append((curve.not_finite, f"{name} is not finite"))
        for step, sentence in sorted(told)[:_MAX_ROWS]:
            cells = [figure(float(step), ",.0f"), Cell(text(sentence, 500), kind="words")]
            rows.append([words(run.name), *cells] if several else cells)
    header = ["run"] * several + ["step", "what the diagnosis said"]
    return table(header, rows[: 2 * _MAX_ROWS], sortable=several) if rows else ""


# Settings


def settings_html(run: Run) -> str:
    """Return all settings, by section, closed until they are asked for."""
    if not run.settings:
        return ""
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, value in run.settings.items():
        section, _, rest = key.partition(".")
        groups.setdefault(section if rest else "run", []).append((key, value))
    parts = []
    for section, pairs in groups.items():
        rows = "".join(
            f'<tr><th scope="row">{text(key)}</th><td>{text(value)}</td></tr>'
            for key, value in pairs
        )
        count = f"{len(pairs)} setting{'s' * (len(pairs) > 1)}"
        parts.append(
            f"<details><summary>{text(section)} ({count})</summary>"
            f'<div class="scroll"><table class="settings"><tbody>{rows}</tbody></table></div>'
            "</details>"
        )
    return "".join(parts)


def notes_html(runs: Sequence[Run]) -> str:
    """Return what could not be read."""
    several = len(runs) > 1
    notes = [f"{run.name}: {note}" if several else note for run in runs for note in run.notes]
    if not notes:
        return ""
    return f"<ul>{''.join(f'<li>{text(note)}</li>' for note in notes[:_MAX_ROWS])}</ul>"


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings that are not the same in all runs, with their values in the order of the
    runs; what a sweep gave them comes first, and places are left out.
    """
    keys = dict.fromkeys(key for run in runs for key in (*run.swept, *run.settings))
    found = {}
    for key in keys:
        values = [run.swept.get(key, run.settings.get(key, "–")) for run in runs]
        if len(set(values)) > 1 and key not in PLACES:
            found[key] = values
    return found


def parameters_of(run: Run) -> str:
    """Return how many parameters the model has, "" where nothing tells."""
    for result in run.results:
        count = number(at(result.content, "num_parameters"))
        if count is not None:
            return f"{count:,.0f} parameters"
    return ""
