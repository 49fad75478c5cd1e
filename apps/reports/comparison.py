"""The report of several runs or of a sweep: a sortable table, and all curves in common figures."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from apps.reports.curves import colours_of, compared_figures
from apps.reports.figure import NUM_COLOURS
from apps.reports.html import Cell, figure, intro, share, state, table, text, tile, words
from apps.reports.page import Page
from apps.reports.reading import Run
from apps.reports.single import header, headline_tile, warnings_tile
from apps.reports.status import job_of
from apps.reports.tables import Headline, differing, headline, notes_html, warnings_html
from apps.sweeps.table import Row, lines_of, over_seeds
from evaluation.values import at
from runtime.text import duration, many, shown

_MAX_SETTINGS = 30


def page_of(runs: Sequence[Run], title: str) -> Page:
    """Return the page of several runs; `title` is not escaped."""
    labels = labels_of([run.folder for run in runs])
    for run, label in zip(runs, labels, strict=True):
        run.name = label
    found = [(run, headline(run)) for run in runs]
    page = Page(f"{title}: report", _header(title, found))
    page.add("runs", "All runs", _table(found, differing(runs)))
    page.add("seeds", "Means over seeds", _seeds_html(runs))
    colours = colours_of(labels)
    by_label = dict(zip(labels, runs, strict=True))
    drawn = page.draw(compared_figures(by_label, colours))
    page.add("curves", "Curves", _key(colours) + drawn if drawn else "")
    page.add("diagnosis", "Diagnosis", warnings_html(runs))
    page.add("notes", "What could not be read", notes_html(runs))
    return page


def labels_of(folders: Sequence[Path]) -> list[str]:
    """Return short unique names: the last part of each folder, or its path if parts repeat."""
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        common = Path(os.path.commonpath(paths))
        names = [str(path.relative_to(common)) for path in paths]
    return [shown(name, 200) for name in names]


def _header(title: str, found: Sequence[tuple[Run, Headline | None]]) -> str:
    scored = [(run, best) for run, best in found if best is not None]
    tiles = []
    if len({best.name for _, best in scored}) == 1:  # Other measures do not compare.
        run, best = max(scored, key=lambda one: one[1].estimate.value)
        words_below = f"best of {many(len(scored), 'run')}: {run.name}; {best.words}"
        tiles.append(headline_tile(Headline(best.name, best.estimate, words_below)))
    counted = Counter(run.status.state for run, _ in found)
    states = ", ".join(f"{count} {name}" for name, count in counted.items())
    tiles.append(tile("runs", f"{len(found):,}", text(states)))
    seconds = [run.status.seconds for run, _ in found if run.status.seconds]
    if seconds:
        summed = f"in {len(seconds):,} run{'s together' * (len(seconds) > 1)}"
        tiles.append(tile("training", duration(sum(seconds)), summed))
    num_warnings = sum(len(run.warnings) for run, _ in found)
    tiles.append(warnings_tile(num_warnings, "recorded by the runs"))
    return header(f"Report of {len(found):,} runs", title, "", tiles)


def _table(
    found: Sequence[tuple[Run, Headline | None]], settings: Mapping[str, Sequence[str]]
) -> str:
    """Return a table with a row for each run, the best first, and a column for each setting."""
    keys = list(settings)[:_MAX_SETTINGS]
    rows = []
    measures = list(dict.fromkeys(best.name for _, best in found if best is not None))
    for place, (run, best) in enumerate(found):
        status = run.status
        cells = [
            words(run.name),
            share(best.estimate if best else None),
            *([words(best.name if best else "")] if len(measures) > 1 else []),
            Cell(state(status.state)),
            figure(None if status.step is None else float(status.step), ",.0f"),
            figure(status.loss),
            figure(float(len(run.warnings)), ",.0f"),
            *(_setting(settings[key][place]) for key in keys),
        ]
        rows.append((best.estimate.value if best else -1.0, cells))
    rows.sort(key=lambda row: -row[0])
    score = ["score", "measure"] if len(measures) > 1 else [*map(text, measures)] or ["score"]
    names = ["run", *score, "state", "step", "last loss", "warnings", *map(text, keys)]
    left = len(settings) - len(keys)
    hint = "Click a heading, or press Enter on it, to sort."
    if keys:
        hint += " Each setting that differs has a column"
        hint += f"; {left} more settings differ." if left else "."
    return intro(hint) + table(names, [row for _, row in rows], sortable=True)


def seed_table(runs: Sequence[Run]) -> list[list[str]]:
    """Return the lines of a table, the header first: mean score, standard deviation and number of
    the runs that differ only in `seed`, the best first. Failed and unfinished runs and runs without
    a score are left out.
    """

    def is_over(run: Run) -> bool:
        job = at(job_of(run.folder), "state")
        is_finished = run.status.has_ended if job is None else job == "finished"
        return run.status.state in ("done", "stopped") and is_finished

    found = [(run, best) for run in runs if is_over(run) if (best := headline(run)) is not None]
    settings = differing([run for run, _ in found])
    compared = _compared([run for run, _ in found], settings)
    names = list(dict.fromkeys(best.name for _, best in found))
    rows = []
    for place, (run, best) in enumerate(found):
        values = {key: settings[key][place] for key in compared}
        values |= {"measure": best.name} if len(names) > 1 else {}
        rows.append(Row(run.name, values, "finished", {"score": best.estimate.value}))
    metric = names[0] if len(names) == 1 else "score"
    return lines_of(over_seeds(rows, "score", minimize=False), metric)


def _compared(runs: Sequence[Run], settings: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the settings to compare: those that a sweep varied if all runs are its jobs, or else
    all that differ.
    """
    swept = dict.fromkeys(key for run in runs for key in run.swept)
    folders = {run.folder.resolve().parent for run in runs}
    is_sweep = len(folders) == 1 and all(run.swept for run in runs)
    return [key for key in (swept if is_sweep else settings) if key in settings]


def _seeds_html(runs: Sequence[Run]) -> str:
    """Return the table over seeds; "" if no group has several seeds."""
    names, *rows = seed_table(runs)
    if not any(int(row[-1]) > 1 for row in rows):
        return ""
    cells = [[*map(words, row[:-3]), *map(_setting, row[-3:])] for row in rows]
    hint = "Each row combines the runs that differ only in their seed."
    return intro(hint) + table(list(map(text, names)), cells, sortable=True)


def _key(colours: Mapping[str, str]) -> str:
    """Return the legend of the runs' colours; with many runs only a hint, as they share colours."""
    if len(colours) > NUM_COLOURS:
        return intro("Point at a curve to read which run it is.")
    entries = "".join(
        f'<li><span class="swatch" data-colour="{colour}"></span>{text(label)}</li>'
        for label, colour in colours.items()
    )
    return f'<ul class="key">{entries}</ul>'


def _setting(value: str) -> Cell:
    cell = words(value)
    try:
        return Cell(cell.html, float(value), "n")
    except ValueError:
        return cell
