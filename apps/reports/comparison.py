"""The report of several runs, or of a sweep: a table to sort, and their figures over each other."""

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
from apps.reports.tables import Headline, differing, headline, notes_html, warnings_html
from apps.sweeps.table import Row, lines_of, over_seeds
from runtime.text import duration, many, shown

_MAX_SETTINGS = 30


def page_of(runs: Sequence[Run], title: str) -> Page:
    """Return the page of several runs; `title` is text."""
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
    """Return short names that tell folders apart: the last part of each, or as much of the path as
    is needed.
    """
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        common = Path(os.path.commonpath(paths))
        names = [str(path.relative_to(common)) for path in paths]
    return [shown(name, 200) for name in names]


def _header(title: str, found: Sequence[tuple[Run, Headline | None]]) -> str:
    scored = [(run, best) for run, best in found if best is not None]
    tiles = []
    if len({best.name for _, best in scored}) == 1:  # Scores of other kinds are no better or worse.
        run, best = max(scored, key=lambda one: one[1].estimate.value)
        words_below = f"best of {many(len(scored), 'run')}: {run.name}; {best.words}"
        tiles.append(headline_tile(Headline(best.name, best.estimate, words_below)))
    counted = Counter(run.status.state for run, _ in found)
    told = ", ".join(f"{count} {name}" for name, count in counted.items())
    tiles.append(tile("runs", f"{len(found):,}", text(told)))
    seconds = [run.status.seconds for run, _ in found if run.status.seconds]
    if seconds:
        told = f"in {len(seconds):,} run{'s together' * (len(seconds) > 1)}"
        tiles.append(tile("training", duration(sum(seconds)), told))
    number_told = sum(len(run.warnings) for run, _ in found)
    tiles.append(warnings_tile(number_told, "that runs recorded of themselves"))
    return header(f"Report of {len(found):,} runs", title, "", tiles)


def _table(
    found: Sequence[tuple[Run, Headline | None]], settings: Mapping[str, Sequence[str]]
) -> str:
    """Return a row for each run, the best first, with the settings in which they differ."""
    keys = list(settings)[:_MAX_SETTINGS]
    rows = []
    what = list(dict.fromkeys(best.name for _, best in found if best is not None))
    for place, (run, best) in enumerate(found):
        status = run.status
        cells = [
            words(run.name),
            share(best.estimate if best else None),
            *([words(best.name if best else "")] if len(what) > 1 else []),
            Cell(state(status.state)),
            figure(None if status.step is None else float(status.step), ",.0f"),
            figure(status.loss),
            figure(float(len(run.warnings)), ",.0f"),
            *(_setting(settings[key][place]) for key in keys),
        ]
        rows.append((best.estimate.value if best else -1.0, cells))
    rows.sort(key=lambda row: -row[0])
    score = [text(what[0])] if len(what) == 1 else ["score", "of what"] if what else ["score"]
    names = ["run", *score, "state", "step", "last loss", "warnings", *map(text, keys)]
    left = len(settings) - len(keys)
    told = "Click a heading, or press Enter on it, to sort."
    if keys:
        told += " Of the settings those that differ have a column"
        told += f"; {left} more differ, too." if left else "."
    return intro(told) + table(names, [row for _, row in rows], sortable=True)


def seed_table(runs: Sequence[Run]) -> list[list[str]]:
    """Return the mean score of the runs that differ in `seed` alone, with its standard deviation
    and their number, the best first and the header before it. Runs at work, failed ones and those
    without a score are left out; the header alone stays where there are no others.
    """
    found = [
        (run, best)
        for run in runs
        if run.status.state in ("done", "stopped")
        if (best := headline(run)) is not None
    ]
    settings = differing([run for run, _ in found])
    names = list(dict.fromkeys(best.name for _, best in found))
    rows = []
    for place, (run, best) in enumerate(found):
        values = {key: settings[key][place] for key in _tried(runs, settings)}
        values |= {"measure": best.name} if len(names) > 1 else {}
        rows.append(Row(run.name, values, "finished", {"score": best.estimate.value}))
    metric = names[0] if len(names) == 1 else "score"
    return lines_of(over_seeds(rows, "score", minimize=False), metric)


def _tried(runs: Sequence[Run], settings: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which of the settings that differ are compared: of a sweep those that it gave."""
    swept = dict.fromkeys(key for run in runs for key in run.swept)
    return [key for key in (swept or settings) if key in settings]


def _seeds_html(runs: Sequence[Run]) -> str:
    """Return the table over seeds; nothing without several of them."""
    names, *rows = seed_table(runs)
    if not any(int(row[-1]) > 1 for row in rows):
        return ""
    cells = [[*map(words, row[:-3]), *map(_setting, row[-3:])] for row in rows]
    told = (
        "Runs that differ in nothing but their seed are one row: mean, standard deviation, seeds."
    )
    return intro(told) + table(list(map(text, names)), cells, sortable=True)


def _key(colours: Mapping[str, str]) -> str:
    """Return which colour is whose; many runs share the colours."""
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
