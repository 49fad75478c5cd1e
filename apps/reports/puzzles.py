"""Figures of what an evaluation knows of single puzzles."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
from apps.reports.reading import Records, Result
from apps.reports.values import at, estimate_of, items, listed, number, number_in
from evaluation.metrics import Estimate, wilson
from runtime.text import shown

_TENTHS = 10
_FEWEST = 10  # Puzzles of a group, below which a share says little.
_DIFFICULTIES = {
    "rating": ("Rating", "how hard the data set says a puzzle is"),
    "clues": ("Clues", "cells that are given: the fewer, the harder"),
    "path_length": ("Length of the path", "moves from start to goal"),
    "grid_cells": ("Size of the grid", "cells of the right answer"),
}
# Columns that say whether an answer is right, with what they are called.
_RIGHT = (
    ("solved", "solved by search"),
    ("exact_accuracy", "right"),
    ("at_halt_exact_accuracy", "right at the halt"),
    ("at_once", "right at once"),
)
_RIGHT_AFTER = re.compile(r"right_after_([1-9][0-9]{0,5})")
_TOKENS: dict[Any, list[str]] = {
    "sudoku": ["pad", "empty", *map(str, range(1, 100))],
    "maze": ["pad", "wall", "free", "start", "goal", "path"],
    "arc": ["pad", "border", *(f"colour {colour}" for colour in range(10))],
}


def puzzle_figures(result: Result, depths: Sequence[Result]) -> list[Figure]:
    """Return what the puzzles of an evaluation show; `depths` are evaluations of the same weights
    at several depths.
    """
    records, figures = result.records, []
    if records is not None:
        figures += [steps_figure({"": result}, depths), halts_figure(records)]
        figures += difficulty_figures({"": result})
    elif depths:
        figures.append(steps_figure({}, depths))
    figures += [reliability_figure(result), *confusion_figures(result.answers)]
    return [figure for figure in figures if figure is not None]


def steps_figure(results: Mapping[str, Result], depths: Sequence[Result] = ()) -> Figure | None:
    """Return the exact accuracy after each ACT step, of evaluations by label, and of a single one
    that of its easier and harder puzzles.
    """
    data: list[dict[str, Any]] = []
    asked: list[tuple[dict[str, Any], Asked]] = []
    for place, (label, result) in enumerate(results.items()):
        records = result.records
        if records is None or "right_after_1" not in records:
            continue
        rows, name = np.isfinite(records["right_after_1"]), plain(label) or "all puzzles"
        data.append(_after_each_step(records, rows, name, place))
        asked += [(data[-1], _asked(result, "", int(rows.sum())))] if not label else []
        if len(results) == 1:
            data += _after_each_step_by_difficulty(records)
    for one in depths:
        found = _at_depths(one, len(data))
        data += [trace for trace, _ in found]
        asked += found
    _tell_apart(asked)
    if len({step for trace in data for step in trace["x"]}) < 2:
        return None
    layout = {
        "xaxis": {"title": {"text": "ACT steps"}, "rangemode": "tozero"},
        "yaxis": share_axis(),
    }
    caption = "Share of the puzzles whose answer is right when it is read after so many steps."
    return Figure("Accuracy over ACT steps", caption, data, layout)


Asked = tuple[str, str, str]  # What puzzles an evaluation was of: their data, set and number.


def _asked(result: Result, set_name: str, count: float) -> Asked:
    folders = (shown(folder, 200) for folder in listed(at(result.content, "data"))[:2])
    data = " and ".join("/".join(folder.split("/")[-2:]) for folder in folders)
    return data, f"set {set_name}" * bool(set_name), f"{count:,.0f} puzzles" * bool(count)


def _tell_apart(asked: Sequence[tuple[dict[str, Any], Asked]]) -> None:
    """Add to the names of curves what their puzzles differ in."""
    differs = [
        len(set(parts) - {""}) > 1 for parts in zip(*(what for _, what in asked), strict=True)
    ]
    for trace, what in asked:
        told = [part for part, is_told in zip(what, differs, strict=True) if is_told and part]
        trace["name"] = ", ".join([trace["name"], *map(plain, told)])


def _after_each_step(
    records: Records, rows: np.ndarray, name: str, place: int, *, dash: str = "solid"
) -> dict[str, Any]:
    named = map(_RIGHT_AFTER.fullmatch, records.columns)
    steps = sorted((int(name[1]), name[0]) for name in named if name)
    shares = [_share(records[column][rows]) for _, column in steps]
    trace = {
        "x": [step for step, _ in steps],
        "y": [short(share and share.value) for share in shares],
        "mode": "lines+markers",
        "name": name,
        "line": {"color": f"@{place % NUM_COLOURS}", "width": 2, "dash": dash},
        "marker": {"size": 6, "color": f"@{place % NUM_COLOURS}"},
        "hovertemplate": "%{y:.1%}",
    }
    return trace | ({"error_y": error_bars(shares, place % NUM_COLOURS)} if dash == "solid" else {})


def _after_each_step_by_difficulty(records: Records) -> list[dict[str, Any]]:
    """Return the easier and the harder third, by the first measure of difficulty."""
    name = next(iter(_difficulties(records)), None)
    if name is None:
        return []
    values = records[name]
    low, high = np.nanquantile(values, [1 / 3, 2 / 3])
    if low == high:
        return []
    words = _DIFFICULTIES[name][0].lower()
    thirds = [(values <= low, f"{words} ≤ {low:.4g}"), (values >= high, f"{words} ≥ {high:.4g}")]
    return [
        _after_each_step(records, rows, text, place, dash="dash")
        for place, (rows, text) in enumerate(thirds, 1)
    ]


def _at_depths(result: Result, place: int) -> list[tuple[dict[str, Any], Asked]]:
    """Return what an evaluation at several depths found, a trace for each set, breadth and choice,
    and what each was asked.
    """
    lines: dict[tuple[float, str, Asked], list[tuple[float, Estimate]]] = {}
    for one in listed(at(result.content, "chains")):
        depth, breadth = number(at(one, "depth")), number(at(one, "breadth"))
        estimate = estimate_of(at(one, "selected"))
        if depth is not None and breadth is not None and estimate is not None:
            asked = _asked(
                result, shown(at(one, "set_name") or ""), number(at(one, "num_puzzles")) or 0
            )
            key = breadth, shown(at(one, "select")), asked
            lines.setdefault(key, []).append((depth, estimate))
    found = []
    for (breadth, select, asked), points in list(lines.items())[:MAX_GROUPS]:
        several = f", {breadth:g} chains, select={select}" if breadth != 1 else ""
        points.sort(key=lambda point: point[0])
        colour = (place + len(found)) % NUM_COLOURS
        trace = {
            "x": [depth for depth, _ in points],
            "y": [short(estimate.value) for _, estimate in points],
            "mode": "lines+markers",
            "name": plain(f"with depth{several}"),
            "line": {"color": f"@{colour}", "width": 2, "dash": "dot"},
            "marker": {"size": 7, "symbol": "diamond", "color": f"@{colour}"},
            "error_y": error_bars([estimate for _, estimate in points], colour),
            "hovertemplate": "%{y:.1%}",
        }
        found.append((trace, asked))
    return found


def halts_figure(records: Records) -> Figure | None:
    """Return at which ACT step puzzles halt by themselves, and whether they are right there."""
    names = ("at_halt_steps", "at_halt_exact_accuracy")
    if not all(name in records for name in names):
        names = ("steps", "exact_accuracy")
    if not all(name in records for name in names):
        return None
    steps, right = (records[name] for name in names)
    known = np.isfinite(steps) & np.isfinite(right)
    steps, right = np.rint(steps[known]), right[known] > 0
    values = np.unique(steps)
    if not 1 < len(values) <= 1024:
        return None
    data = [
        {
            "type": "bar",
            "x": values.tolist(),
            "y": [int((steps[rows] == value).sum()) for value in values],
            "name": name,
            "marker": {"color": colour},
            "hovertemplate": "%{y:,} puzzles",
        }
        for name, colour, rows in (("right", "@2", right), ("wrong", "@bad", ~right))
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "ACT steps at the halt"}}}
    caption = "Puzzles by the step at which the model would stop by itself."
    return Figure("Halting", caption, data, layout | {"yaxis": {"title": {"text": "puzzles"}}})


def _difficulties(records: Records) -> list[str]:
    # The clues of a maze are its walls: there the path is what counts.
    sized = "path_length" in records or "grid_cells" in records
    names = [name for name in _DIFFICULTIES if name in records and not (sized and name == "clues")]
    return [n for n in names if np.nanmin(records[n]) < np.nanmax(records[n])]


def difficulty_figures(results: Mapping[str, Result]) -> list[Figure]:
    """Return the share of right answers among puzzles of like difficulty, of evaluations by label,
    a figure for each measure of difficulty.
    """
    known = {label: one.records for label, one in results.items() if one.records is not None}
    names = dict.fromkeys(name for records in known.values() for name in _difficulties(records))
    figures = []
    for name in names:
        title, words = _DIFFICULTIES[name]
        data: list[dict[str, Any]] = []
        for label, records in known.items():
            if name in records:
                data += _over_difficulty(records, name, label, len(data))
        layout = {
            "xaxis": {"title": {"text": title.lower()}},
            "yaxis": share_axis(),
            "hovermode": "closest",
        }
        if data:
            heading = f"Accuracy over difficulty: {title.lower()}"
            figures.append(Figure(heading, f"{title}: {words}.", data, layout))
    return figures


def _over_difficulty(
    records: Records, name: str, label: str, number_before: int
) -> list[dict[str, Any]]:
    """Return what is known of an evaluation; of one among several, with a label, the answers that
    count alone.
    """
    shown = [(column, words) for column, words in _RIGHT if column in records]
    groups = _groups(records[name])
    data = []
    for column, words in shown[: 1 if label else None]:
        colour = (number_before + len(data)) % NUM_COLOURS
        shares = [_share(records[column][rows]) for rows, _, _ in groups]
        data.append(
            {
                "x": [short(middle) for _, middle, _ in groups],
                "y": [short(share and share.value) for share in shares],
                "mode": "lines+markers",
                "name": plain(label) or words,
                "line": {"color": f"@{colour}", "width": 2},
                "marker": {"size": 8, "color": f"@{colour}"},
                "error_y": error_bars(shares, colour),
                "customdata": [[told, int(rows.sum())] for rows, _, told in groups],
                "hovertemplate": "%{y:.1%} of %{customdata[1]:,} (%{customdata[0]})",
            }
        )
    return data


def _groups(values: np.ndarray) -> list[tuple[np.ndarray, float, str]]:
    """Return rows of like value, bool [rows], with their mean and in words; about equally many in
    each where there are many values.
    """
    known = values[np.isfinite(values)]
    different, counts = np.unique(known, return_counts=True)
    enough = max(_FEWEST, len(known) / MAX_GROUPS) if len(different) > MAX_GROUPS else _FEWEST
    groups, first, total, left = [], 0, 0, len(known)
    for place, count in enumerate(counts.tolist()):
        total += count
        left -= count
        if total >= enough and (left >= enough or left == 0) or left == 0:
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
    """Return how often Q and the confidence are right when they say that they are."""
    data: list[dict[str, Any]] = []
    records = result.records
    if records is not None and "q_halt" in records and "exact_accuracy" in records:
        known = np.isfinite(records["q_halt"]) & np.isfinite(records["exact_accuracy"])
        q, right = records["q_halt"][known], records["exact_accuracy"][known] > 0
        tenths = np.clip((q * _TENTHS).astype(int), 0, _TENTHS - 1)
        bins = [tenths == tenth for tenth in range(_TENTHS)]
        means = [float(q[rows].mean()) if rows.any() else None for rows in bins]
        counts = [(int(rows.sum()), int(right[rows].sum())) for rows in bins]
        data.append(_reliability_trace("Q: the whole answer", means, counts, 0))
    for of_set in _of_sets(result.answers):
        parts = [at(of_set, "confidence", name) for name in ("mean", "count", "right")]
        if all(isinstance(part, list) and len(part) == _TENTHS for part in parts):
            means, counted, right = (list(map(number, part)) for part in parts)
            counts = [(int(n or 0), int(r or 0)) for n, r in zip(counted, right, strict=True)]
            data.append(_reliability_trace("confidence: a cell", means, counts, 1))
    data = [trace for trace in data if trace["x"]]
    if not data:
        return None
    ideal = {"x": [0, 1], "y": [0, 1], "mode": "lines", "name": "as it should be"}
    ideal |= {"line": {"color": "@muted", "dash": "dash", "width": 1}, "hoverinfo": "skip"}
    layout = {
        "xaxis": {"title": {"text": "said"}, "tickformat": ".0%", "range": [-0.03, 1.03]},
        "yaxis": {"title": {"text": "true"}, "tickformat": ".0%", "range": [-0.03, 1.03]},
        "hovermode": "closest",
    }
    caption = (
        "Reliability: of the answers that the model believes in so much, the share that is right, "
        "in tenths. Above the dashed line it is too modest, below it too sure."
    )
    return Figure("Calibration", caption, [ideal, *data], layout)


def _reliability_trace(
    name: str, means: Sequence[float | None], counts: Sequence[tuple[int, int]], colour: int
) -> dict[str, Any]:
    points = [
        (mean, wilson(right, count), count)
        for mean, (count, right) in zip(means, counts, strict=True)
        if mean is not None and 0 <= right <= count and 0 < count < 2**53
    ]
    total = sum(count for _, _, count in points)
    return {
        "x": [short(mean) for mean, _, _ in points],
        "y": [short(share.value) for _, share, _ in points],
        "mode": "lines+markers",
        "name": name,
        "line": {"color": f"@{colour}", "width": 2},
        "marker": {
            "color": f"@{colour}",
            "size": [round(6 + 14 * math.sqrt(count / total), 1) for _, _, count in points],
        },
        "error_y": error_bars([share for _, share, _ in points], colour),
        "text": [f"{count:,}" for _, _, count in points],
        "hovertemplate": "said %{x:.1%}, true %{y:.1%}<br>%{text} answers",
    }


def _of_sets(answers: Mapping[str, Any] | None) -> list[Any]:
    sets = at(answers, "sets")
    return [of_set for _, of_set in items(sets)[:MAX_GROUPS]]


def confusion_figures(answers: Mapping[str, Any] | None) -> list[Figure]:
    """Return for each set which tokens are taken for which others."""
    figures, sets = [], items(at(answers, "sets"))
    for name, of_set in sets[:4]:
        counts = _square(at(of_set, "confusion"))
        if counts is None or counts.sum() == np.trace(counts):
            continue
        used = np.flatnonzero(counts.sum(0) + counts.sum(1))
        counts = counts[np.ix_(used, used)]
        names = _TOKENS.get(shown(at(answers, "kind")), [])
        labels = [names[t] if t < len(names) else f"token {t}" for t in used.tolist()]
        of_label = counts.sum(axis=1, keepdims=True)
        shares = counts / np.maximum(of_label, 1)
        right = np.trace(counts) / counts.sum()
        wrong = shares.copy()
        np.fill_diagonal(wrong, np.nan)
        cells = [[short(value) for value in row] for row in wrong.tolist()]
        texts = [
            [f"{n:,} of {total:,}" for n in row]
            for row, total in zip(counts.tolist(), of_label[:, 0].tolist(), strict=True)
        ]
        trace = {
            "type": "heatmap",
            "z": cells,
            "x": labels,
            "y": labels,
            "text": texts,
            "colorscale": "@wrong",
            "zmin": 0,
            "colorbar": {"tickformat": ".2~%", "thickness": 12, "outlinewidth": 0},
            "hovertemplate": "%{y} answered by %{x}: %{text} (%{z:.3~%})<extra></extra>",
            "hoverongaps": False,
            "xgap": 1,
            "ygap": 1,
        }
        category = {"type": "category", "showgrid": False, "zeroline": False}
        layout = {
            "xaxis": category | {"title": {"text": "answer"}},
            "yaxis": category | {"title": {"text": "label"}, "autorange": "reversed"},
            "hovermode": "closest",
        }
        several = f" of set {shown(name)}" if len(sets) > 1 else ""
        caption = (
            f"{right:.2%} of the labelled cells{several} are right, which is the diagonal and left "
            "out; the colours are shares of each label's cells that were answered otherwise."
        )
        figures.append(Figure("Confusion of tokens", caption, [trace], layout))
    return figures


def _square(rows: Any) -> np.ndarray | None:
    """Return a table of counts, int64 [V, V]; None where it is none."""
    try:
        counts = np.array(rows, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or len(counts) > 256:
        return None
    usable = (counts >= 0).all() and (counts < 2**53 / max(1, counts.size)).all()
    return counts.astype(np.int64) if usable else None


def search_figure(result: Result) -> Figure | None:
    """Return the share of puzzles that a search has solved with so much work."""
    data = []
    for one in listed(at(result.content, "searchers")):
        points = sorted(
            (calls, share)
            for key, value in items(at(one, "solved_within"))
            if (calls := number_in(key)) and (share := number(value)) is not None
        )
        if points and len(data) < NUM_COLOURS:
            data.append(
                {
                    "x": [calls for calls, _ in points],
                    "y": [short(share) for _, share in points],
                    "mode": "lines+markers",
                    "name": plain(shown(at(one, "searcher"), 100)),
                    "line": {"color": f"@{len(data)}", "width": 2},
                    "marker": {"size": 6, "color": f"@{len(data)}"},
                    "hovertemplate": "%{y:.1%}",
                }
            )
    if not data:
        return None
    axis = log_axis(data, "x", title={"text": "calls"})
    layout = {"xaxis": axis, "yaxis": share_axis()}
    caption = "Share of the puzzles solved with at most so many rows through the model."
    return Figure("Solved within so many calls", caption, data, layout)
