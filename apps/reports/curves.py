"""Figures of runs: curves over the steps of one or of several, and what a sweep tried."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from textwrap import wrap
from typing import Any

from apps.reports.figure import (
    MAX_GROUPS,
    NUM_COLOURS,
    Figure,
    error_bars,
    log_axis,
    plain,
    share_axis,
    short,
)
from apps.reports.reading import Run
from apps.reports.thinning import MAX_BINS, Curve, Points
from apps.reports.values import number_in, share_of
from evaluation.metrics import Estimate

_MAX_LETTERS = 18  # Of a text at an axis.
_LETTER = 0.0078  # Width of one, as a share of a figure over the whole width of the page.


def training_figures(run: Run) -> list[Figure]:
    """Return what is known of a run's steps, the most important first; none without curves."""
    curves, seen = run.curves, set[str]()

    def named(prefix: str, *, ends: str = "") -> list[str]:
        return [n for n in curves if n.startswith(prefix) and n.endswith(ends) and n not in seen]

    figures = []

    def figure(title: str, caption: str, names: Iterable[str], **options: Any) -> None:
        found = [name for name in names if name in curves]
        seen.update(found)
        if any(len(curves[name].points().steps) > 1 for name in found):
            figures.append(_curves_figure(run, title, caption, found, **options))

    figure(
        "Exact accuracy",
        "Share of the puzzles whose whole answer is right.",
        ["train/exact_accuracy", "eval/exact_accuracy"],
        shares=True,
        told=True,
    )
    losses = [*named("train/", ends="_loss"), *named("eval/", ends="_loss")]
    losses = [name for name in losses if name.count("/") == 1]
    figure("Losses", "In nats, on a logarithmic scale.", losses, log=True, told=True)
    cells = ["train/accuracy", "eval/accuracy"]
    figure("Cells", "Share of the labelled cells that are right.", cells, shares=True)
    steps = ["train/steps", "eval/steps"]
    figure("Steps to the halt", "ACT steps that a puzzle took.", steps, from_zero=True)
    figure(
        "Q and halting",
        "How often Q is right, how many rows it would halt, how many are right, and how often it "
        "ranks a right row above a wrong one (AUC; 0.5 is chance).",
        [
            *("train/q_halt_accuracy", "eval/q_halt_accuracy", "train/halt_accuracy"),
            *("diagnose/halts", "diagnose/rows_right", "diagnose/q_auc"),
        ],
        shares=True,
    )
    rates = named("train/lr/") or ["train/lr"]
    seen.add("train/lr")
    figure("Learning rates", "Of each group of parameters.", rates, from_zero=True)
    norms = named("train/grad_norm/")
    figure("Gradient norms", "Of each group, before clipping.", norms, log=True)
    weights = named("diagnose/weight/")
    figure("Learned weights of the losses", "The factor of each loss in the sum.", weights)
    gradients = named("diagnose/gradient/")
    caption = "Norm of the gradient of each loss, with its weight, at the trunk's answer."
    figure("Gradients of the losses", caption, gradients, log=True)
    figure(
        "Predictions",
        "How spread the predictions are (entropy, as a share of the largest), how much of them the "
        "most frequent token makes up, and how much of the labels.",
        [
            *("diagnose/entropy", "diagnose/top_token_share", "diagnose/top_token_label_share"),
            "diagnose/cells_right",
        ],
        shares=True,
    )
    logits = ["diagnose/logits_min", "diagnose/logits_max", "diagnose/logits_std"]
    figure("Token logits", "Smallest, largest, and standard deviation.", logits)
    seen |= {"train/count", "eval/count", "diagnose/top_token", "diagnose/nonfinite"}
    heads = [*named("train/"), *(n for n in named("eval/") if n.count("/") == 1)]
    figure("Heads", "What auxiliary heads get right.", heads, shares=True)
    others = [name for name in named("eval/") if not name.endswith(("/count", "_predictions"))]
    caption = "What is measured of this kind of puzzle, and of single sets."
    figure("Evaluators and sets", caption, others)
    return figures


def _curves_figure(
    run: Run,
    title: str,
    caption: str,
    names: Sequence[str],
    *,
    shares: bool = False,
    log: bool = False,
    from_zero: bool = False,
    told: bool = False,
) -> Figure:
    data, numbers = [], {}
    for name in names:
        # A curve of training and its evaluation have the same colour.
        family = name.partition("/")[2] if not name.startswith("diagnose/") else name
        colour = numbers.setdefault(family, len(numbers)) % NUM_COLOURS
        data += _curve_traces(run, name, colour, log=log)
    layout: dict[str, Any] = {"xaxis": {"title": {"text": "step"}}, "yaxis": {}}
    if shares:
        layout["yaxis"] = share_axis()
    if log:
        layout["yaxis"] = log_axis(data, "y")
    if from_zero:
        layout["yaxis"]["rangemode"] = "tozero"
    if told and run.warnings:
        data.append(_warnings_trace(run.warnings))
        layout["yaxis2"] = {
            "overlaying": "y",
            "range": [0, 1],
            "visible": False,
            "fixedrange": True,
        }
    return Figure(title, caption, data, layout)


def _curve_traces(run: Run, name: str, colour: int, *, log: bool) -> list[dict[str, Any]]:
    points, label = run.curves[name].points(), plain(_label(name))
    steps, means = [round(step, 1) for step in points.steps], list(map(short, points.means))
    hover = {"hovertemplate": "%{y:.4~g}", "legendgroup": label, "name": label}
    line: dict[str, Any] = {"color": f"@{colour}", "width": 2}
    if name.startswith("eval/"):
        trace = {"x": steps, "y": means, "mode": "lines+markers", "line": line | {"dash": "dot"}}
        trace |= {"marker": {"size": 7, "color": f"@{colour}"}, **hover}
        if name == "eval/exact_accuracy":
            trace["error_y"] = error_bars(_of_evaluations(run, points.means), colour)
        return [trace]
    curve = {"x": steps, "y": means, "mode": "lines", "line": line, **hover}
    if points.is_exact:
        return [curve]
    curve["customdata"] = list(zip(map(short, points.lows), map(short, points.highs), strict=True))
    curve["hovertemplate"] += " (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})"
    band = {
        **_around(points, steps, log=log),
        "mode": "none",
        "fill": "toself",
        "fillcolor": f"@{colour}~",
        "hoverinfo": "skip",
        "legendgroup": label,
        "showlegend": False,
    }
    return [band, curve]


def _around(points: Points, steps: Sequence[float], *, log: bool) -> dict[str, Any]:
    """Return the outline of a band between the quartiles: a closed one for each stretch of bins
    without a gap. On a logarithmic scale there is no place for 0.
    """
    xs: list[float | None] = []
    ys: list[float | None] = []
    upper: list[tuple[float, float | None]] = []
    lower: list[tuple[float, float | None]] = []
    for step, low, high in zip(
        [*steps, 0], [*points.first_quartiles, None], [*points.third_quartiles, None], strict=True
    ):
        if low is not None and (low > 0 or not log):
            upper.append((step, short(high)))
            lower.append((step, short(low)))
        elif upper:
            outline = [*upper, *reversed(lower)]
            xs += [*(x for x, _ in outline), None]
            ys += [*(y for _, y in outline), None]
            upper, lower = [], []
    return {"x": xs[:-1], "y": ys[:-1]}


def _label(name: str) -> str:
    kind, _, rest = name.partition("/")
    for prefix in ("lr/", "grad_norm/", "gradient/", "weight/"):
        rest = rest.removeprefix(prefix)
    words = rest.removesuffix("_loss").replace("_", " ")
    return f"{words}, evaluated" if kind == "eval" else words


def _of_evaluations(run: Run, shares: Sequence[float | None]) -> list[Estimate | None]:
    counted = run.curves.get("eval/count")
    count = int(counted.last[1]) if counted and counted.last else 0
    return [share_of(share, count) for share in shares]


def _warnings_trace(warnings: Sequence[tuple[int, str]]) -> dict[str, Any]:
    words = ["<br>".join(wrap(plain(text), 60)) for _, text in warnings]
    return {
        "x": [step for step, _ in warnings],
        "y": [0.97] * len(warnings),
        "yaxis": "y2",
        "mode": "markers",
        "name": "warnings",
        "marker": {"symbol": "triangle-down", "size": 12, "color": "@bad"},
        "text": words,
        "hovertemplate": "%{text}<extra></extra>",
    }


# Several runs


COMPARED = (
    ("Exact accuracy of the evaluations", "eval/exact_accuracy", {"shares": True}),
    ("Exact accuracy in training", "train/exact_accuracy", {"shares": True}),
    ("Loss of the tokens", "train/lm_loss", {"log": True}),
    ("Loss of the tokens, evaluations", "eval/lm_loss", {"log": True}),
    ("Cells right in training", "train/accuracy", {"shares": True}),
    ("Steps to the halt", "train/steps", {}),
    ("Loss of Q", "train/q_halt_loss", {"log": True}),
    ("Q accuracy in training", "train/q_halt_accuracy", {"shares": True}),
    ("Learning rate", "train/lr", {}),
)


def compared_figures(
    runs: Mapping[str, Run], colours: Mapping[str, str], max_points: int
) -> list[Figure]:
    """Return the curves of several runs, by label, over each other: the means alone, with at most
    so many points in all figures together.
    """
    figures = []
    for title, name, options in COMPARED:
        drawn = {label: run.curves[name] for label, run in runs.items() if name in run.curves}
        drawn = {label: curve for label, curve in drawn.items() if curve.last}
        limit = max(20, min(MAX_BINS, max_points // (len(runs) * len(COMPARED))))
        if not any(len(curve.points(limit).steps) > 1 for curve in drawn.values()):
            continue
        mode = "lines+markers" if name.startswith("eval/") else "lines"
        data = [
            _one_of_several(curve, limit)
            | {"mode": mode, "name": plain(label)}
            | {"line": {"color": colours[label], "width": 1.8}}
            | {"marker": {"size": 6, "color": colours[label]}}
            for label, curve in drawn.items()
        ]
        layout: dict[str, Any] = {"xaxis": {"title": {"text": "step"}}, "yaxis": {}}
        if options.get("shares"):
            layout["yaxis"] = share_axis()
        if options.get("log"):
            layout["yaxis"] = log_axis(data, "y")
        layout["hovermode"] = "x unified" if len(drawn) <= MAX_GROUPS else "closest"
        layout["showlegend"] = False  # One key stands for all of them.
        figures.append(Figure(title, "", data, layout))
    return figures


def _one_of_several(curve: Curve, limit: int) -> dict[str, Any]:
    points = curve.points(limit)
    steps, means = [round(step) for step in points.steps], list(map(short, points.means))
    return {"x": steps, "y": means, "hovertemplate": "%{y:.4~g}"}


def colours_of(labels: Sequence[str], scores: Sequence[float | None]) -> dict[str, str]:
    """Return the colour of each run's curves: one of its own; of many runs the stronger the higher
    their score.
    """
    if len(labels) <= NUM_COLOURS:
        return {label: f"@{place}" for place, label in enumerate(labels)}
    known = [score for score in scores if score is not None]
    heights = dict(zip(known, _on_scale(known)[0], strict=True)) if known else {}
    shares = [0.0 if score is None else heights[score] for score in scores]
    return {label: f"@score {share:.2f}" for label, share in zip(labels, shares, strict=True)}


def parallel_coordinates(
    names: Sequence[str], swept: Mapping[str, Sequence[str]], scores: Sequence[float], title: str
) -> Figure:
    """Return what was swept beside what came of it, a line for each run.

    They are curves of plotly's, whose own kind for this compiles code in the browser, which the
    page's policy forbids.

    Args:
        names: of the runs.
        swept: of each setting its values, as text, in the order of the runs.
        scores: of the runs.
        title: what the score is.
    """
    places, ticks = [], []
    for values in swept.values():
        own_places, own_ticks = _on_axis(values)
        places.append(own_places)
        ticks.append(own_ticks)
    heights, score_ticks = _on_scale(scores)
    places.append(heights)
    ticks.append(score_ticks)
    # The text of an axis lies in a band that no line enters.
    letter = _LETTER * len(swept)
    most = max(4, min(_MAX_LETTERS, int(0.6 / letter)))
    band = letter * min(most, max(len(text) for own in ticks for _, text in own or [(0, "")]))
    sizes = [0, 0, 0, 0, *[5, 5, 0, 0, 0] * len(swept), 0]
    order = sorted(range(len(scores)), key=lambda run: scores[run])  # The best are drawn last.
    data = []
    for run in order:
        told = [f"{key} = {values[run]}" for key, values in swept.items()]
        words = [names[run], f"{title} {scores[run]:.4g}", *told]
        colour = f"@score {heights[run]:.2f}"
        # Both edges of each band, with lines between bands alone; its middle is there to be hit.
        own = [short(column[run]) for column in places]
        xs = [[axis, None, axis + band / 2, None, axis + band] for axis in range(len(places))]
        ys = [[height, None, height, None, height] for height in own]
        data.append(
            {
                "x": list(chain(*xs)),
                "y": list(chain(*ys)),
                "mode": "lines+markers",
                "line": {"color": colour, "width": 1.5 + heights[run]},
                "marker": {"color": colour, "size": sizes, "line": {"width": 0}},
                "text": "<br>".join(map(plain, words)),
                "hovertemplate": "%{text}<extra></extra>",
                "showlegend": False,
            }
        )
    last_parts = [key.rpartition(".")[2] for key in swept]
    heads = last_parts if len(set(last_parts)) == len(last_parts) else list(swept)
    middles = [axis + band / 2 for axis in range(len(places))]
    notes = [
        _note(middle, 1.05, key, _MAX_LETTERS, yshift=14)
        for middle, key in zip(middles, (*heads, title), strict=True)
    ]
    notes += [
        _note(middle, at, text, most)
        for middle, own in zip(middles, ticks, strict=True)
        for at, text in own
    ]
    rail = {"type": "rect", "y0": -0.05, "y1": 1.05, "layer": "below"}
    rail |= {"line": {"color": "@muted", "width": 1}}
    hidden = {"visible": False, "fixedrange": True}
    layout = {
        "xaxis": {**hidden, "range": [-0.1, len(swept) + band + 0.1]},
        "yaxis": {**hidden, "range": [-0.08, 1.16]},
        "annotations": notes,
        "shapes": [rail | {"x0": axis, "x1": axis + band} for axis in range(len(places))],
        "hovermode": "closest",
        "margin": {"l": 20, "r": 20, "t": 20, "b": 10},
    }
    caption = (
        f"A line for each run, the stronger the higher its {title}. Drag a box over a stretch of "
        "an axis to see the runs that pass through it alone; double-click to see all again."
    )
    return Figure(f"Settings beside the {title}", caption, data, layout, wide=True, selects=True)


def _note(x: float, height: float, text: str, most: int, *, yshift: int = 0) -> dict[str, Any]:
    short_text = text if len(text) <= most else f"{text[: most - 1]}…"
    font = {"size": 12, "color": "@text"} if yshift else {"size": 10.5, "color": "@muted"}
    place = {"x": x, "y": height, "yshift": yshift, "xanchor": "center", "showarrow": False}
    return {**place, "text": plain(short_text), "font": font}


Ticks = list[tuple[float, str]]


def _on_axis(values: Sequence[str]) -> tuple[list[float], Ticks]:
    """Return where the values of a setting stand between 0 and 1, and what is written there: few
    of them evenly apart, in their order.
    """
    numbers = [number_in(value) for value in values]
    known = [value for value in numbers if value is not None]
    different = sorted(set(values), key=lambda text: (number_in(text) or 0.0, text))
    if len(known) == len(values) and len(different) > MAX_GROUPS:
        return _on_scale(known)
    heights = {text: place / max(1, len(different) - 1) for place, text in enumerate(different)}
    shown = list(heights.items()) if len(heights) <= 2 * MAX_GROUPS else []
    return [heights[value] for value in values], [(height, text) for text, height in shown]


def _on_scale(values: Sequence[float]) -> tuple[list[float], Ticks]:
    """Return where numbers stand between the smallest (0) and the largest (1), by their logarithms
    where they range over more than a decade.
    """
    low, high = min(values), max(values)
    scale = math.log if 0 < 10 * low < high else lambda value: value
    start, width = scale(low), scale(high) - scale(low)
    if not (0 < width < math.inf):
        return [0.5] * len(values), [(0.5, f"{low:.4g}")]
    ends = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")]
    return [(scale(value) - start) / width for value in values], ends
