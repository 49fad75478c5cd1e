"""Figures from an evaluation's records of single puzzles."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apps.reports.figure import MAX_GROUPS, NUM_COLOURS, SHARES, Figure, line, plain, short, titled
from apps.reports.reading import Records, Result
from apps.reports.values import square
from evaluation.metrics import Estimate, wilson
from evaluation.values import at, estimate_of, items, listed, number
from runtime.text import shown

_TENTHS = 10
_MIN_GROUP = 10  # Puzzles; a share of fewer says little.
_DIFFICULTIES = {
    "rating": ("Rating", "difficulty of a puzzle according to the data set"),
    "clues": ("Clues", "given cells; fewer clues usually make a puzzle harder"),
    "path_length": ("Length of the path", "moves from start to goal"),
    "grid_cells": ("Size of the grid", "cells of the right answer"),
}
# Columns that say whether an answer is right, with their names in the figures.
_RIGHT = {
    "solved": "solved by search",
    "valid": "valid",
    "exact_accuracy": "right",
    "at_halt_exact_accuracy": "right at the halt",
    "at_once": "right at once",
}
_RIGHT_AFTER = re.compile(r"right_after_([1-9][0-9]{0,5})")
_TOKENS: dict[Any, list[str]] = {
    "sudoku": ["pad", "empty", *map(str, range(1, 100))],
    "maze": ["pad", "wall", "free", "start", "goal", "path"],
    "arc": ["pad", "border", *(f"colour {colour}" for colour in range(10))],
}


def puzzle_figures(result: Result, longer: Sequence[Result]) -> list[Figure]:
    """Return the figures of an evaluation; `longer` are evaluations of the same weights that think
    longer.
    """
    figures = [steps_figure(result.records, longer)]
    figures += [] if result.records is None else difficulty_figures(result.records)
    figures += [reliability_figure(result), *confusion_figures(result.answers)]
    return [figure for figure in figures if figure is not None]


def steps_figure(records: Records | None, longer: Sequence[Result] = ()) -> Figure | None:
    """Return the exact accuracy after each ACT step, and in evaluations that think longer."""
    data: list[dict[str, Any]] = []
    if records is not None and "right_after_1" in records:
        named = map(_RIGHT_AFTER.fullmatch, records)
        steps = sorted((int(name[1]), name[0]) for name in named if name)
        shares = [_share(records[column]) for _, column in steps]
        name = f"{np.isfinite(records['right_after_1']).sum():,} puzzles"
        values = [share and share.value for share in shares]
        data.append(line(name, [step for step, _ in steps], values, "@0", errors=shares))
    for one in longer:
        data += _thinking_longer(one, len(data), says_data=len(longer) > 1)
    if len({step for trace in data for step in trace["x"]}) < 2:
        return None
    layout = {"xaxis": titled("ACT steps", rangemode="tozero"), "yaxis": SHARES}
    caption = "Share of puzzles with a right answer if it is read after this many steps."
    return Figure("Accuracy over ACT steps", caption, data, layout)


def _thinking_longer(result: Result, place: int, *, says_data: bool) -> list[dict[str, Any]]:
    """Return curves over the numbers of steps, for each set, number of chains and choice."""
    folders = (shown(folder, 200) for folder in listed(at(result.content, "data"))[:2])
    data = " and ".join("/".join(folder.split("/")[-2:]) for folder in folders)
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for one in listed(at(result.content, "chains")):
        steps, chains = number(at(one, "depth")), number(at(one, "breadth"))
        estimate, count = estimate_of(at(one, "selected")), number(at(one, "num_puzzles")) or 0
        if steps is not None and chains is not None and estimate is not None:
            parts = [data] * says_data + [f"set {shown(at(one, 'set_name'))}"]
            parts += [f"{chains:g} chains, select={shown(at(one, 'select'))}"] * (chains != 1)
            name = ", ".join(["thinking longer", *parts, f"{count:,.0f} puzzles"])
            lines.setdefault(name, []).append((steps, estimate))
    found = []
    for name, points in list(lines.items())[:MAX_GROUPS]:
        xs, estimates = zip(*sorted(points, key=lambda point: point[0]), strict=True)
        values, colour = [one.value for one in estimates], f"@{(place + len(found)) % NUM_COLOURS}"
        trace = line(plain(name), xs, values, colour, size=7, dash="dot", errors=estimates)
        trace["marker"]["symbol"] = "diamond"
        found.append(trace)
    return found


def difficulty_figures(records: Records) -> list[Figure]:
    """Return the share of right answers over difficulty, for each measure of difficulty."""
    # A maze's clues are its walls, so its path measures the difficulty.
    sized = "path_length" in records or "grid_cells" in records
    names = [name for name in _DIFFICULTIES if name in records and not (sized and name == "clues")]
    figures = []
    for name in (n for n in names if np.nanmin(records[n]) < np.nanmax(records[n])):
        title, meaning = _DIFFICULTIES[name]
        groups, data = _groups(records[name]), []
        for column in (column for column in _RIGHT if column in records):
            shares = [_share(records[column][rows]) for rows, _, _ in groups]
            trace = line(
                _RIGHT[column],
                [short(middle) for _, middle, _ in groups],
                [share and share.value for share in shares],
                f"@{len(data) % NUM_COLOURS}",
                "%{y:.1%} of %{customdata[1]:,} (%{customdata[0]})",
                size=8,
                errors=shares,
            )
            trace["customdata"] = [[words, int(rows.sum())] for rows, _, words in groups]
            data.append(trace)
        axes = {"xaxis": titled(title.lower()), "yaxis": SHARES, "hovermode": "closest"}
        if data:
            heading = f"Accuracy over difficulty: {title.lower()}"
            figures.append(Figure(heading, f"{title}: {meaning}.", data, axes))
    return figures


def _groups(values: np.ndarray) -> list[tuple[np.ndarray, float, str]]:
    """Return groups of rows with similar values as (bool [rows], mean value, range in words). If
    there are many different values, the groups are about equally large.
    """
    known = values[np.isfinite(values)]
    different, counts = np.unique(known, return_counts=True)
    enough = max(_MIN_GROUP, len(known) / MAX_GROUPS) if len(different) > MAX_GROUPS else _MIN_GROUP
    groups, first, total, left = [], 0, 0, len(known)
    for place, count in enumerate(counts.tolist()):
        total += count
        left -= count
        if total >= enough and left >= enough or left == 0:
            low, high = different[first], different[place]
            rows = (values >= low) & (values <= high)
            words = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            groups.append((rows, float(values[rows].mean()), words))
            first, total = place + 1, 0
    return groups


def _share(values: np.ndarray) -> Estimate | None:
    known = values[np.isfinite(values)]
    return wilson(int((known > 0).sum()), len(known)) if len(known) else None


def reliability_figure(result: Result) -> Figure | None:
    """Return the calibration of Q and of the confidence: share right over predicted probability."""
    data: list[dict[str, Any]] = []
    records = result.records
    if records is not None and "q_halt" in records and "exact_accuracy" in records:
        q, right = records["q_halt"], records.get("valid", records["exact_accuracy"])
        known = np.isfinite(q) & np.isfinite(right)
        q, right = q[known], right[known] > 0
        tenths = np.clip((q * _TENTHS).astype(int), 0, _TENTHS - 1)
        bins = [tenths == tenth for tenth in range(_TENTHS)]
        means = [float(q[rows].mean()) if rows.any() else None for rows in bins]
        counted, right = [rows.sum() for rows in bins], [right[rows].sum() for rows in bins]
        data.append(_reliability_trace("Q: whole answers", means, counted, right, "@0"))
    for _, of_set in items(at(result.answers, "sets"))[:MAX_GROUPS]:
        parts = [listed(at(of_set, "confidence", name)) for name in ("mean", "count", "right")]
        if {len(part) for part in parts} == {_TENTHS}:
            means, counted, right = (list(map(number, part)) for part in parts)
            data.append(_reliability_trace("confidence: cells", means, counted, right, "@1"))
    data = [trace for trace in data if trace["x"]]
    if not data:
        return None
    ideal = {"x": [0, 1], "y": [0, 1], "mode": "lines", "name": "perfect"}
    ideal |= {"line": {"color": "@muted", "dash": "dash", "width": 1}, "hoverinfo": "skip"}
    look = {"tickformat": ".0%", "range": [-0.03, 1.03]}
    axes = {"xaxis": titled("predicted", **look), "yaxis": titled("right", **look)}
    caption = (
        "Share of right answers over the probability that the model gives them, in tenths. Above "
        "the dashed line the model is too modest, below it too sure."
    )
    return Figure("Calibration", caption, [ideal, *data], {**axes, "hovermode": "closest"})


def _reliability_trace(
    name: str, means: Sequence[Any], counted: Sequence[Any], right: Sequence[Any], colour: str
) -> dict[str, Any]:
    points = [
        (mean, wilson(int(r or 0), int(n)), int(n))
        for mean, n, r in zip(means, counted, right, strict=True)
        if mean is not None and n and 0 <= int(r or 0) <= int(n) and 0 < int(n) < 2**53
    ]
    counts, shares = [count for _, _, count in points], [share for _, share, _ in points]
    hover = "predicted %{x:.1%}, right %{y:.1%}<br>%{text} answers"
    xs, ys = [short(mean) for mean, _, _ in points], [share.value for share in shares]
    trace = line(name, xs, ys, colour, hover, errors=shares)
    total = sum(counts)
    trace["marker"]["size"] = [round(6 + 14 * math.sqrt(n / total), 1) for n in counts]
    return trace | {"text": [f"{count:,}" for count in counts]}


def confusion_figures(answers: Mapping[str, Any] | None) -> list[Figure]:
    """Return a figure for each set: which tokens the model confuses."""
    sets = items(at(answers, "sets"))
    names = _TOKENS.get(shown(at(answers, "kind")), [])
    figures = []
    for name, of_set in sets[:4]:
        counts = _counts(at(of_set, "confusion"))
        if counts is None or counts.sum() == np.trace(counts):
            continue
        where = f" of set {shown(name)}" if len(sets) > 1 else ""
        caption = (
            f"{np.trace(counts) / counts.sum():.2%} of the labelled cells{where} are right (the "
            "diagonal, left out). Colours: the share of each label's cells with this wrong answer."
        )
        category = {"type": "category", "showgrid": False, "zeroline": False}
        axes = {
            "xaxis": titled("answer", **category),
            "yaxis": titled("label", **category, autorange="reversed"),
        }
        layout = {**axes, "hovermode": "closest"}
        figures.append(Figure("Confusion of tokens", caption, [_heatmap(counts, names)], layout))
    return figures


def _heatmap(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    used = np.flatnonzero(counts.sum(0) + counts.sum(1))
    counts = counts[np.ix_(used, used)]
    labels = [names[t] if t < len(names) else f"token {t}" for t in used.tolist()]
    totals = counts.sum(axis=1, keepdims=True)
    wrong = counts / np.maximum(totals, 1)
    np.fill_diagonal(wrong, np.nan)
    rows = zip(counts.tolist(), totals[:, 0].tolist(), strict=True)
    return {
        "type": "heatmap",
        "z": [[short(value) for value in row] for row in wrong.tolist()],
        "x": labels,
        "y": labels,
        "text": [[f"{n:,} of {total:,}" for n in row] for row, total in rows],
        "colorscale": "@wrong",
        "zmin": 0,
        "colorbar": {"tickformat": ".2~%", "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{y} answered by %{x}: %{text} (%{z:.3~%})<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }


def _counts(rows: Any) -> np.ndarray | None:
    """Return a table of counts as int64 [V, V], None if it is malformed."""
    counts = square(rows, 256)
    if counts is None or not ((counts >= 0) & (counts < 2**53 / max(1, counts.size))).all():
        return None
    return counts.astype(np.int64)
