"""Figures of runs: curves over the steps of one or of several, and what a sweep tried."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from evaluation.metrics import Estimate
from reports.figure import MAX_GROUPS, NUM_COLOURS, Figure, error_bars, plain, share_axis, short
from reports.reading import Run
from reports.thinning import MAX_BINS, Curve
from reports.values import number_in, share_of


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
    figure("Steps to the halt", "ACT steps that a puzzle took.", steps)
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
    figure("Learning rates", "Of each group of parameters.", rates)
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
        layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
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
    lows, highs = (
        [(step, short(value)) for step, value in zip(steps, ends, strict=True) if value is not None]
        for ends in (points.lows, points.highs)
    )
    if log:  # What is not above 0 has no place there.
        lows = [(step, value) for step, value in lows if value and value > 0]
        highs = [(step, value) for step, value in highs if value and value > 0]
    around = [*highs, *reversed(lows)]
    band = {
        "x": [step for step, _ in around],
        "y": [value for _, value in around],
        "mode": "none",
        "fill": "toself",
        "fillcolor": f"@{colour}~",
        "hoverinfo": "skip",
        "legendgroup": label,
        "showlegend": False,
    }
    return [band, curve]


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


def compared_figures(runs: Mapping[str, Run], max_points: int) -> list[Figure]:
    """Return the curves of several runs, by label, over each other: the means alone."""
    figures = []
    for title, name, options in COMPARED:
        drawn = {label: run for label, run in runs.items() if name in run.curves}
        drawn = {label: run for label, run in drawn.items() if run.curves[name].last}
        if not any(len(run.curves[name].points().steps) > 1 for run in drawn.values()):
            continue
        limit = max(20, min(MAX_BINS, max_points // (len(drawn) * len(COMPARED))))
        data = [
            _one_of_several(run.curves[name], label, list(runs).index(label), limit, name)
            for label, run in drawn.items()
        ]
        layout: dict[str, Any] = {"xaxis": {"title": {"text": "step"}}, "yaxis": {}}
        if options.get("shares"):
            layout["yaxis"] = share_axis()
        if options.get("log"):
            layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
        layout["hovermode"] = "x unified" if len(drawn) <= MAX_GROUPS else "closest"
        layout["showlegend"] = len(drawn) <= 2 * NUM_COLOURS
        figures.append(Figure(title, "", data, layout))
    return figures


def _one_of_several(curve: Curve, label: str, place: int, limit: int, name: str) -> dict[str, Any]:
    points = curve.points(limit)
    dashes = ("solid", "dash", "dot", "dashdot")
    line = {"color": f"@{place % NUM_COLOURS}", "width": 1.8}
    return {
        "x": [round(step) for step in points.steps],
        "y": list(map(short, points.means)),
        "mode": "lines+markers" if name.startswith("eval/") else "lines",
        "line": line | {"dash": dashes[place // NUM_COLOURS % len(dashes)]},
        "marker": {"size": 6, "color": f"@{place % NUM_COLOURS}"},
        "name": plain(label),
        "hovertemplate": f"%{{y:.4~g}}<extra>{plain(label).replace('%', '&#37;')}</extra>",
    }


def parallel_coordinates(
    swept: Mapping[str, Sequence[str]], scores: Sequence[float], title: str
) -> Figure:
    """Return what was swept beside what came of it, a line for each run.

    Args:
        swept: of each setting its values, as text, in the order of the runs.
        scores: of the runs.
        title: what the score is.
    """
    dimensions = []
    for name, values in swept.items():
        label = plain(name)
        numbers = [number_in(value) for value in values]
        known = [value for value in numbers if value is not None]
        if len(known) == len(values) and len(set(known)) > MAX_GROUPS:
            dimensions.append({"label": label, "values": known})
        else:  # Few values stand apart evenly, in their order.
            order = sorted(set(values), key=lambda text: (number_in(text) or 0.0, text))
            texts = [plain(text if len(text) <= 24 else f"{text[:23]}…") for text in order]
            places = [order.index(value) for value in values]
            ticks = {"tickvals": list(range(len(order))), "ticktext": texts}
            dimensions.append({"label": label, "values": places} | ticks)
    dimensions.append({"label": plain(title), "values": list(map(short, scores))})
    line = {"color": list(map(short, scores)), "colorscale": "@scale", "showscale": False}
    trace = {"type": "parcoords", "dimensions": dimensions, "line": line, "labelangle": 0}
    caption = (
        "A line for each run, yellow where the score is best. Drag along an axis to keep the runs "
        "in that stretch, click it to let them all in again, drag a name to move its axis."
    )
    return Figure("What was swept", caption, [trace], {"margin": {"l": 60, "r": 60, "t": 60}}, True)
