"""Tables and words of a report: what was found, by whom, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from apps.reports.html import Cell, figure, percent, share, table, text, words
from apps.reports.reading import Result, Run
from apps.reports.values import at, estimate_of, items, listed, number
from evaluation.headline import MEASURES, Score, headline_of, score_of, weight_of
from evaluation.metrics import Estimate
from runtime.text import many

_SHARES = ("exact_accuracy", "accuracy", "q_halt_accuracy")
_MAX_ROWS = 200
_IN_RUN = "in the run"
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
    """Return the figure that stands for a run, see `evaluation.headline.weight_of`; None where
    nothing was evaluated. What the run itself measured counts where no evaluation is its equal.
    """
    own = _test_folders(run)

    def weight(one: tuple[Result, Score]) -> tuple[float, ...]:
        of_whom, size, *rest = weight_of(one[0].content, one[1], own)
        return of_whom, size, one[0].name != _IN_RUN, *rest

    results = [*run.results, *_in_run(run, own)]
    scored = [(one, score) for one in results if (score := score_of(one.content)) is not None]
    if not scored:
        return None
    result, score = max(scored, key=weight)
    return Headline(MEASURES[score.name], score.estimate, _told(result, score))


def _test_folders(run: Run) -> list[str]:
    """Return the folders that a run is tested on; its settings are known as text."""
    named = (run.settings.get(key, "null") for key in ("data_paths_test", "data_paths"))
    several = next((value for value in named if value != "null"), None)
    one = run.settings.get("data_path", "null")
    if several is None:
        return [] if one == "null" else [one]
    return [folder.strip(" '\"") for folder in several.strip("[]").split(",")]


def _in_run(run: Run, own: Sequence[str]) -> list[Result]:
    """Return the last evaluation in the course of the run as `evaluate.py` would have written it,
    none where there was none.
    """
    known = {name: curve.last for name, curve in run.curves.items() if curve.last}
    name = headline_of(known, "eval/")
    if name is None:
        return []
    step, value = known[name]
    split, limit = (run.settings.get(f"eval_{key}", "null") for key in ("split", "max_examples"))
    split = "test" if split == "null" else split
    content = {
        "step": step,
        "data": [f"{folder}/{split}" for folder in own] or [split],
        "max_examples": None if limit == "null" else limit,
        "metrics": {"exact_accuracy": value, "count": known.get("eval/count", (0, 0))[1]},
    }
    if name == "eval/arc/pass@2":
        tasks = items(dict(run.votes).get(f"eval_step_{step}/arc_tasks.json"))
        scored = sum(any(at(one, "known") is True for one in listed(of)) for _, of in tasks)
        found = {"metrics": {"pass@2": value}, "details": {"num_scored_tasks": scored}}
        content["evaluators"] = {"arc": found}
    return [Result(_IN_RUN, content)]


def _told(result: Result, score: Score) -> str:
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
