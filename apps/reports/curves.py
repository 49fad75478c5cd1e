"""Figures with curves over the training steps, of one run or of several."""

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from apps.reports.figure import MAX_GROUPS, NUM_COLOURS, SCALES, Figure, line, plain, titled
from apps.reports.reading import Run
from apps.reports.thinning import MAX_BINS
from evaluation.metrics import Estimate
from evaluation.values import share_of

_HOVER = "%{y:.4~g}"
_MAX_POINTS = 60_000  # In all figures of a report of several runs.


class _Plan(NamedTuple):
    """A figure for the curves that match `pattern` and are in no earlier figure; see `SCALES`."""

    title: str
    scale: str
    pattern: str
    caption: str


_PLANS = (
    _Plan("Exact accuracy", "shares", "(train|eval)/exact_accuracy", "Answers without a mistake."),
    _Plan("Losses", "log", "(train|eval)/[^/]*_loss", "In nats, on a logarithmic scale."),
    _Plan("Cells", "shares", "(train|eval)/accuracy", "Share of labelled cells that are right."),
    _Plan("Steps to the halt", "zero", "(train|eval)/steps", "ACT steps that a puzzle took."),
    _Plan(
        "Q and halting",
        "shares",
        "(train|eval)/q_halt_accuracy|train/halt_accuracy|diagnose/(halts|rows_right|q_auc)",
        "How often Q is right, how many rows it would halt, and how many are right.",
    ),
    _Plan("Learning rates", "zero", "train/lr(/.*)?", "Of each group of parameters."),
    _Plan(
        "Gradient norms",
        "log",
        "train/grad_norm/.*|diagnose/gradient/.*",
        "Of each group, before clipping.",
    ),
    _Plan("Learned weights of the losses", "", "diagnose/weight/.*", "Factors in the sum."),
    _Plan(
        "Predictions",
        "shares",
        "diagnose/(entropy|top_token_share|top_token_label_share|cells_right)",
        "Share of the most frequent predicted token among predictions and among labels, and share "
        "of right cells.",
    ),
    _Plan("Token logits", "", "diagnose/logits_.*", "Smallest and largest."),
    _Plan("Heads", "shares", "train/.*|eval/[^/]*", "Share that the auxiliary heads get right."),
    _Plan(
        "Evaluators and sets",
        "",
        "eval/(?!.*(/count|_predictions)$).*",
        "Measures of this kind of puzzle and of single sets.",
    ),
)
_SPEED_PLANS = (
    _Plan("Examples per second", "zero", "speed/examples_per_second", "In training alone."),
    _Plan("Milliseconds per step", "log", "speed/.*_ms", "By part, on a logarithmic scale."),
    _Plan("Share of the device's peak", "zero", "speed/share_of_peak", "Operations per second."),
    _Plan("Memory", "zero", "memory/.*", "In GiB, of the first rank."),
)
_NOT_DRAWN = {"train/count", "eval/count"}


def training_figures(run: Run) -> list[Figure]:
    """Return the figures of a run's curves, the most important first."""
    left = [name for name in run.curves if name not in _NOT_DRAWN]
    if any(name.startswith("train/lr/") for name in left):
        left = [name for name in left if name != "train/lr"]
    return _figures_of(run, left, _PLANS)


def speed_figures(run: Run) -> list[Figure]:
    """Return the figures of a run's speed and memory."""
    return _figures_of(run, [*run.curves], _SPEED_PLANS)


def _figures_of(run: Run, left: list[str], plans: Sequence[_Plan]) -> list[Figure]:
    figures = []
    for plan in plans:
        found = [name for name in left if re.fullmatch(plan.pattern, name)]
        left = [name for name in left if name not in found]
        if any(len(run.curves[name].points()[0]) > 1 for name in found):
            figures.append(_curves_figure(run, plan, found))
    return figures


def _curves_figure(run: Run, plan: _Plan, names: Sequence[str]) -> Figure:
    data, numbers = [], {}
    for name in names:
        # A measure has the same colour in training and in evaluations.
        family = name.partition("/")[2] if not name.startswith("diagnose/") else name
        colour = numbers.setdefault(family, len(numbers)) % NUM_COLOURS
        data.append(_curve(run, name, f"@{colour}"))
    layout: dict[str, Any] = {"xaxis": titled("step"), "yaxis": SCALES[plan.scale]}
    if plan in _PLANS[:2] and run.warnings:
        data.append(_warnings_trace(run.warnings))
        hidden = {"visible": False, "fixedrange": True}
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], **hidden}
    return Figure(plan.title, plan.caption, data, layout)


def _curve(run: Run, name: str, colour: str) -> dict[str, Any]:
    steps, means = run.curves[name].points()
    steps, label = [round(step, 1) for step in steps], plain(_label(name))
    if not name.startswith("eval/"):
        return line(label, steps, means, colour, _HOVER, size=0)
    errors = _with_intervals(run, means) if name == "eval/exact_accuracy" else None
    return line(label, steps, means, colour, _HOVER, size=7, dash="dot", errors=errors)


def _label(name: str) -> str:
    kind, _, rest = name.partition("/")
    rest = re.sub("^(lr|grad_norm|weight)/", "", rest)
    words = re.sub("_(loss|ms|gib)$", "", rest).replace("_", " ")
    return f"{words}, evaluated" if kind == "eval" else words


def _with_intervals(run: Run, shares: Sequence[float | None]) -> list[Estimate | None]:
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
    ("Examples per second", "speed/examples_per_second", "zero"),
)


def compared_figures(runs: Mapping[str, Run], colours: Mapping[str, str]) -> list[Figure]:
    """Return figures that each draw one curve of all runs; `runs` and `colours` are by label."""
    limit = max(20, min(MAX_BINS, _MAX_POINTS // (len(runs) * len(COMPARED))))
    figures = []
    for title, name, scale in COMPARED:
        known = {label: run.curves[name] for label, run in runs.items() if name in run.curves}
        drawn = {label: curve.points(limit) for label, curve in known.items() if curve.last}
        if not any(len(steps) > 1 for steps, _ in drawn.values()):
            continue
        size = 6 if name.startswith("eval/") else 0
        data = [
            line(plain(label), [*map(round, steps)], means, colours[label], _HOVER, size=size)
            for label, (steps, means) in drawn.items()
        ]
        layout: dict[str, Any] = {"xaxis": titled("step"), "yaxis": SCALES[scale]}
        layout["hovermode"] = "x unified" if len(drawn) <= MAX_GROUPS else "closest"
        layout["showlegend"] = False  # The page has one legend for all figures.
        figures.append(Figure(title, "", data, layout))
    return figures


def colours_of(labels: Sequence[str]) -> dict[str, str]:
    """Return the colour of each run; more than ten runs share colours."""
    return {label: f"@{place % NUM_COLOURS}" for place, label in enumerate(labels)}
