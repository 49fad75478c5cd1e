"""Figures of runs: curves over the steps of one or of several, and what a sweep tried."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from textwrap import wrap
from typing import Any, NamedTuple

from apps.reports.figure import MAX_GROUPS, NUM_COLOURS, Figure, line, plain, scaled, short, titled
from apps.reports.reading import Run
from apps.reports.thinning import MAX_BINS, Points
from evaluation.metrics import Estimate
from evaluation.values import number_in, share_of

_MAX_LETTERS = 18  # Of a text at an axis.
_LETTER = 0.0078  # Width of one, as a share of a figure over the whole width of the page.
_HOVER = "%{y:.4~g}"


class _Plan(NamedTuple):
    """A figure of the curves whose names match and stand in no figure before; `scale` as `scaled`
    has it.
    """

    title: str
    scale: str
    pattern: str
    caption: str


_PLANS = [
    _Plan(*plan)
    for plan in (
        (
            "Exact accuracy",
            "shares",
            "(train|eval)/exact_accuracy",
            "Whole answers that are right.",
        ),
        ("Losses", "log", "(train|eval)/[^/]*_loss", "In nats, on a logarithmic scale."),
        ("Cells", "shares", "(train|eval)/accuracy", "Labelled cells that are right."),
        ("Steps to the halt", "zero", "(train|eval)/steps", "ACT steps that a puzzle took."),
        (
            "Q and halting",
            "shares",
            "(train|eval)/q_halt_accuracy|train/halt_accuracy|diagnose/(halts|rows_right|q_auc)",
            "How often Q is right, how many rows it would halt, how many are right, and how often "
            "it ranks a right row above a wrong one (AUC; 0.5 is chance).",
        ),
        ("Learning rates", "zero", "train/lr(/.*)?", "Of each group of parameters."),
        ("Gradient norms", "log", "train/grad_norm/.*", "Of each group, before clipping."),
        ("Learned weights of the losses", "", "diagnose/weight/.*", "Factors in the sum."),
        (
            "Gradients of the losses",
            "log",
            "diagnose/gradient/.*",
            "Norm of the gradient of each loss, with its weight, at the trunk's answer.",
        ),
        (
            "Predictions",
            "shares",
            "diagnose/(entropy|top_token_share|top_token_label_share|cells_right)",
            "How spread the predictions are (entropy, as a share of the largest), how much of them "
            "the most frequent token makes up, and how much of the labels.",
        ),
        ("Token logits", "", "diagnose/logits_.*", "Smallest, largest, and standard deviation."),
        ("Heads", "shares", "train/.*|eval/[^/]*", "What auxiliary heads get right."),
        (
            "Evaluators and sets",
            "",
            "eval/(?!.*(/count|_predictions)$).*",
            "What is measured of this kind of puzzle, and of single sets.",
        ),
    )
]
_UNDRAWN = {"train/count", "eval/count"}


def training_figures(run: Run) -> list[Figure]:
    """Return what is known of a run's steps, the most important first; none without curves."""
    left, figures = [name for name in run.curves if name not in _UNDRAWN], []
    if any(name.startswith("train/lr/") for name in left):
        left = [name for name in left if name != "train/lr"]
    for plan in _PLANS:
        found = [name for name in left if re.fullmatch(plan.pattern, name)]
        left = [name for name in left if name not in found]
        if any(len(run.curves[name].points().steps) > 1 for name in found):
            figures.append(_curves_figure(run, plan, found))
    return figures


def _curves_figure(run: Run, plan: _Plan, names: Sequence[str]) -> Figure:
    data, numbers = [], {}
    for name in names:
        # A curve of training and its evaluation have the same colour.
        family = name.partition("/")[2] if not name.startswith("diagnose/") else name
        colour = numbers.setdefault(family, len(numbers)) % NUM_COLOURS
        data += _curve_traces(run, name, f"@{colour}", log=plan.scale == "log")
    layout: dict[str, Any] = {"xaxis": titled("step"), "yaxis": scaled(plan.scale, data)}
    if plan in _PLANS[:2] and run.warnings:
        data.append(_warnings_trace(run.warnings))
        hidden = {"visible": False, "fixedrange": True}
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], **hidden}
    return Figure(plan.title, plan.caption, data, layout)


def _curve_traces(run: Run, name: str, colour: str, *, log: bool) -> list[dict[str, Any]]:
    points, label = run.curves[name].points(), plain(_label(name))
    steps, of_label = [round(step, 1) for step in points.steps], {"legendgroup": label}
    if name.startswith("eval/"):
        is_share = name == "eval/exact_accuracy"
        errors = _of_evaluations(run, points.means) if is_share else None
        look = {"size": 7, "dash": "dot", "errors": errors}
        return [line(label, steps, points.means, colour, _HOVER, **look) | of_label]
    curve = line(label, steps, points.means, colour, _HOVER, size=0) | of_label
    if points.is_exact:
        return [curve]
    curve["customdata"] = list(zip(map(short, points.lows), map(short, points.highs), strict=True))
    curve["hovertemplate"] += " (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})"
    band = {**_around(points, steps, log=log), "mode": "none", "fill": "toself", **of_label}
    band |= {"fillcolor": f"{colour}~", "hoverinfo": "skip", "showlegend": False}
    return [band, curve]


def _around(points: Points, steps: Sequence[float], *, log: bool) -> dict[str, Any]:
    """Return the outline of a band between the quartiles: a closed one for each stretch of bins
    without a gap. On a logarithmic scale there is no place for 0.
    """
    outlines: list[list[tuple[float, Any, Any]]] = [[]]
    for step, low, high in zip(steps, points.first_quartiles, points.third_quartiles, strict=True):
        if low is not None and (low > 0 or not log):
            outlines[-1].append((step, short(low), short(high)))
        elif outlines[-1]:
            outlines.append([])
    xs, ys = list[float | None](), list[float | None]()
    for stretch in filter(None, outlines):
        there, low, high = map(list, zip(*stretch, strict=True))
        xs += [None] * bool(xs) + there + there[::-1]
        ys += [None] * bool(ys) + high + low[::-1]
    return {"x": xs, "y": ys}


def _label(name: str) -> str:
    kind, _, rest = name.partition("/")
    rest = re.sub("^(lr|grad_norm|gradient|weight)/", "", rest)
    words = rest.removesuffix("_loss").replace("_", " ")
    return f"{words}, evaluated" if kind == "eval" else words


def _of_evaluations(run: Run, shares: Sequence[float | None]) -> list[Estimate | None]:
    counted = run.curves.get("eval/count")
    count = int(counted.last[1]) if counted and counted.last else 0
    return [share_of(share, count) for share in shares]


def _warnings_trace(warnings: Sequence[tuple[int, str]]) -> dict[str, Any]:
    return {
        "x": [step for step, _ in warnings],
        "y": [0.97] * len(warnings),
        "yaxis": "y2",
        "mode": "markers",
        "name": "warnings",
        "marker": {"symbol": "triangle-down", "size": 12, "color": "@bad"},
        "text": ["<br>".join(wrap(plain(text), 60)) for _, text in warnings],
        "hovertemplate": "%{text}<extra></extra>",
    }


# Several runs


COMPARED = (
    ("Exact accuracy of the evaluations", "eval/exact_accuracy", "shares"),
    ("Exact accuracy in training", "train/exact_accuracy", "shares"),
    ("Loss of the tokens", "train/lm_loss", "log"),
    ("Loss of the tokens, evaluations", "eval/lm_loss", "log"),
    ("Cells right in training", "train/accuracy", "shares"),
    ("Steps to the halt", "train/steps", ""),
    ("Loss of Q", "train/q_halt_loss", "log"),
    ("Q accuracy in training", "train/q_halt_accuracy", "shares"),
    ("Learning rate", "train/lr", ""),
)


def compared_figures(
    runs: Mapping[str, Run], colours: Mapping[str, str], max_points: int
) -> list[Figure]:
    """Return the curves of several runs, by label, over each other: the means alone, with at most
    so many points in all figures together.
    """
    limit = max(20, min(MAX_BINS, max_points // (len(runs) * len(COMPARED))))
    figures = []
    for title, name, scale in COMPARED:
        known = {label: run.curves[name] for label, run in runs.items() if name in run.curves}
        drawn = {label: curve.points(limit) for label, curve in known.items() if curve.last}
        if not any(len(points.steps) > 1 for points in drawn.values()):
            continue
        size = 6 if name.startswith("eval/") else 0
        data = [
            line(plain(label), [*map(round, p.steps)], p.means, colours[label], _HOVER, size=size)
            for label, p in drawn.items()
        ]
        layout: dict[str, Any] = {"xaxis": titled("step"), "yaxis": scaled(scale, data)}
        layout["hovermode"] = "x unified" if len(drawn) <= MAX_GROUPS else "closest"
        layout["showlegend"] = False  # One key stands for all of them.
        figures.append(Figure(title, "", data, layout))
    return figures


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


Ticks = list[tuple[float, str]]


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
    heights, score_ticks = _on_scale(scores)
    axes = [*map(_on_axis, swept.values()), (heights, score_ticks)]
    # The text of an axis lies in a band that no line enters.
    letter = _LETTER * len(swept)
    most = max(4, min(_MAX_LETTERS, int(0.6 / letter)))
    texts = [text for _, ticks in axes for _, text in ticks]
    band = letter * min(most, max(map(len, texts), default=0))
    data = []
    for run in sorted(range(len(scores)), key=lambda run: scores[run]):  # The best are drawn last.
        told = [f"{key} = {values[run]}" for key, values in swept.items()]
        words = [names[run], f"{title} {scores[run]:.4g}", *told]
        own = [short(places[run]) for places, _ in axes]
        data.append(_line_of_run(own, band, heights[run], "<br>".join(map(plain, words))))
    caption = (
        f"A line for each run, the stronger the higher its {title}. Drag a box over a stretch of "
        "an axis to see the runs that pass through it alone; double-click to see all again."
    )
    last_parts = [key.rpartition(".")[2] for key in swept]
    heads = last_parts if len(set(last_parts)) == len(last_parts) else list(swept)
    notes = [_note(i + band / 2, 1.05, head, yshift=14) for i, head in enumerate([*heads, title])]
    notes += [
        _note(i + band / 2, height, text, most)
        for i, (_, ticks) in enumerate(axes)
        for height, text in ticks
    ]
    layout = _axes_layout(len(axes), band) | {"annotations": notes}
    return Figure(f"Settings beside the {title}", caption, data, layout, selects=True)


def _line_of_run(
    heights: Sequence[float | None], band: float, share: float, words: str
) -> dict[str, Any]:
    """Return a run's height at each axis: both edges of the axis's band, with lines between bands
    alone; its middle is there to be hit.
    """
    xs = [[axis, None, axis + band / 2, None, axis + band] for axis in range(len(heights))]
    ys = [[height, None, height, None, height] for height in heights]
    sizes = [0, 0, 0, 0, *[5, 5, 0, 0, 0] * (len(heights) - 1), 0]
    colour = f"@score {share:.2f}"
    return {
        "x": list(chain(*xs)),
        "y": list(chain(*ys)),
        "mode": "lines+markers",
        "line": {"color": colour, "width": 1.5 + share},
        "marker": {"color": colour, "size": sizes, "line": {"width": 0}},
        "text": words,
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }


def _axes_layout(num_axes: int, band: float) -> dict[str, Any]:
    rail = {"type": "rect", "y0": -0.05, "y1": 1.05, "layer": "below"}
    rail |= {"line": {"color": "@muted", "width": 1}}
    hidden = {"visible": False, "fixedrange": True}
    return {
        "xaxis": {**hidden, "range": [-0.1, num_axes - 1 + band + 0.1]},
        "yaxis": {**hidden, "range": [-0.08, 1.16]},
        "shapes": [rail | {"x0": axis, "x1": axis + band} for axis in range(num_axes)],
        "hovermode": "closest",
        "margin": {"l": 20, "r": 20, "t": 20, "b": 10},
    }


def _note(
    x: float, height: float, text: str, most: int = _MAX_LETTERS, *, yshift: int = 0
) -> dict[str, Any]:
    short_text = text if len(text) <= most else f"{text[: most - 1]}…"
    font = {"size": 12, "color": "@text"} if yshift else {"size": 10.5, "color": "@muted"}
    place = {"x": x, "y": height, "yshift": yshift, "xanchor": "center", "showarrow": False}
    return {**place, "text": plain(short_text), "font": font}


def _on_axis(values: Sequence[str]) -> tuple[list[float], Ticks]:
    """Return where the values of a setting stand between 0 and 1, and what is written there: few
    of them evenly apart, in their order.
    """
    known = [value for text in values if (value := number_in(text)) is not None]
    different = sorted(set(values), key=lambda text: (number_in(text) or 0.0, text))
    if len(known) == len(values) and len(different) > MAX_GROUPS:
        return _on_scale(known)
    heights = {text: place / max(1, len(different) - 1) for place, text in enumerate(different)}
    ticks = [(height, text) for text, height in heights.items()]
    return [heights[value] for value in values], ticks if len(ticks) <= 2 * MAX_GROUPS else []


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
