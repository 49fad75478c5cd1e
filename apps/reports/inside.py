"""The section of a report on what the probes of an evaluation measured."""

from collections.abc import Sequence
from typing import Any

from apps.reports.figure import Figure, line, plain, short, titled
from apps.reports.html import Cell, figure, intro, table, text, words
from apps.reports.page import Page
from apps.reports.reading import Run
from apps.reports.values import square
from evaluation.values import at, estimate_of, items, listed, number

_GROUPS = {"right": ("right answers", "@2"), "wrong": ("wrong answers", "@bad")}
_DASHES = ("", "dot", "dash", "dashdot")
_MAX_PATHS = 16
_MAX_CELLS = 1024


def inside_html(run: Run, page: Page) -> str:
    """Return the section of the newest evaluation with probes; "" if there is none."""
    for result in run.results:
        for name, found in items(at(result.content, "inside"))[:1]:
            of = f"From {text(result.name)}, set {text(name)}"
            hint = f"{of}: docs/inside.md explains the probes."
            return intro(hint) + _table(found) + page.draw(_figures(found))
    return ""


def _table(found: Any) -> str:
    puzzles = at(found, "puzzles")
    counted = [figure(number(at(puzzles, group)), ",.0f") for group in _GROUPS]
    rows = [[words("puzzles"), *counted]]
    for probe, columns in items(found):
        for name, of_group in items(columns) if probe != "puzzles" else ():
            cells = [_cell(at(of_group, group)) for group in _GROUPS]
            if any(cell.html != "–" for cell in cells):
                rows.append([words(f"{probe}: {name}"), *cells])
    return table(["measure", *(name for name, _ in _GROUPS.values())], rows)


def _cell(value: Any) -> Cell:
    if (estimate := estimate_of(value)) is not None:
        return figure(estimate.value)
    counts = [(word, number(count)) for word, count in items(value)]
    shown = [f"{count:,.0f} {text(word)}" for word, count in counts if count is not None]
    is_words = shown and number(at(value, "count")) is None
    return Cell(", ".join(shown) if is_words else "–")


def _figures(found: Any) -> list[Figure]:
    residual = _curves(at(found, "residual"), ["residual"])
    reading = at(found, "readout")
    names = [name for name, _ in items(reading) if name.endswith("_cells")]
    latents = _curves(reading, names)
    figures = [
        Figure(
            "Change of the state in each step",
            "Relative to the state's norm. It falls towards 0 at a fixed point.",
            residual,
            {"xaxis": titled("ACT step"), "yaxis": {"type": "log", "nticks": 6}},
        ),
        Figure(
            "What each latent would answer",
            "Share of right cells if the head for tokens reads this latent.",
            latents,
            {"xaxis": titled("ACT step"), "yaxis": {"tickformat": ".0%"}},
        ),
        _paths(found),
        _influence(found),
    ]
    return [one for one in figures if one.data]


def _curves(columns: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a curve for each column and group; residuals begin at step 2."""
    data = []
    for dash, name in zip(_DASHES, names, strict=False):
        first = 2 if name == "residual" else 1
        for group, (said, colour) in _GROUPS.items():
            values = [number(value) for value in listed(at(columns, name, group))]
            latent = "" if name == "residual" else f"{plain(name.removesuffix('_cells'))}, "
            steps = list(range(first, first + len(values)))
            if values:
                data.append(line(f"{latent}{said}", steps, values, colour, "%{y:.3g}", dash=dash))
    return data


def _paths(found: Any) -> Figure:
    ends, data = listed(at(found, "path", "path", "right")), []
    for number_of, path in enumerate(listed(at(found, "path", "path", "paths"))[:_MAX_PATHS]):
        points = [(number(at(place, 0)), number(at(place, 1))) for place in listed(path)]
        said, colour = _GROUPS["right" if at(ends, number_of) is True else "wrong"]
        xs, ys = zip(*points, strict=True) if points else ((), ())
        name = f"puzzle {number_of + 1}, {said.removesuffix('s')}"
        trace = line(
            name, xs, ys, colour, "step %{customdata}<extra>%{fullData.name}</extra>", size=5
        )
        data.append({**trace, "customdata": [*range(1, len(points) + 1)], "showlegend": False})
    share = number(at(found, "path", "in_plane", "right", "value"))
    share = share if share is not None else number(at(found, "path", "in_plane", "wrong", "value"))
    part = "" if share is None else f" It shows {share:.0%} of their variance."
    axes = {"xaxis": titled("first component"), "yaxis": titled("second component")}
    caption = f"The states after each step in the plane of their two principal components.{part}"
    return Figure("The way to the answer", caption, data, {**axes, "hovermode": "closest"})


def _influence(found: Any) -> Figure:
    mean = at(found, "influence", "influence", "mean")
    rows = [list(map(number, row)) for row in mean] if square(mean, _MAX_CELLS) is not None else []
    z = [[short(value) for value in row] for row in rows]
    most = max((value for row in rows for value in row if value is not None), default=0.0)
    trace = {"type": "heatmap", "z": z, "colorscale": "@wrong", "zmin": 0, "zmax": short(most)}
    trace |= {"colorbar": {"thickness": 12, "outlinewidth": 0}}
    trace |= {"hovertemplate": "cell %{x} changes cell %{y}: %{z:.3f}<extra></extra>"}
    axes = {
        "xaxis": titled("cell whose state is changed"),
        "yaxis": titled("cell whose answer changes", autorange="reversed"),
    }
    caption = (
        "Change of a cell's probabilities one step later (half the sum of their changes), mean "
        "over the first puzzles. Cells are counted from 0, row by row."
    )
    return Figure("Who listens to whom", caption, [trace] if rows else [], axes)
