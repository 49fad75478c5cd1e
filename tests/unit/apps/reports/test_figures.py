"""The content of figures; plotly accepts all of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.reports.curves import colours_of, compared_figures, training_figures
from apps.reports.figure import Figure
from apps.reports.puzzles import confusion_figures, difficulty_figures, puzzle_figures, steps_figure
from apps.reports.reading import Records, Result, Run, read_run

Make = Callable[..., Path]


@pytest.fixture
def run(make_run_folder: Make) -> Run:
    return read_run(make_run_folder(steps=40, score=0.75))


def trace(figure: Figure, name: str) -> dict[str, Any]:
    (found,) = [one for one in figure.data if one.get("name") == name]
    return found


def test_many_runs_share_the_limit_of_points(make_run_folder: Make) -> None:
    run = read_run(make_run_folder(steps=2000))
    runs = {f"run {number}": run for number in range(100)}
    figures = compared_figures(runs, colours_of(list(runs)))
    assert sum(len(one["x"]) for figure in figures for one in figure.data) <= 60_000


# Single puzzles


def records_of(**columns: Any) -> Records:
    return Records({name: np.array(values, float) for name, values in columns.items()})


def test_curves_over_steps_name_their_puzzles(run: Run) -> None:
    chain = {"breadth": 1, "select": "q", "selected": {"value": 0.5}, "num_puzzles": 1000}
    chains = [chain | {"depth": steps, "set_name": "hard"} for steps in (16, 4)]
    chains += [one | {"breadth": 8} for one in chains]
    one, other = (Result("d", {"chains": chains, "data": [f"/x/{d}/test"]}) for d in ("<a>", "b"))

    def names(*longer: Result) -> list[str]:
        figure = steps_figure(run.results[0].records, longer)
        assert figure is not None
        assert figure.data[-1]["x"] == [4, 16]
        return [trace["name"] for trace in figure.data][1:]

    told = "set hard, 1,000 puzzles"
    several = "set hard, 8 chains, select=q, 1,000 puzzles"
    assert names(one) == [f"thinking longer, {told}", f"thinking longer, {several}"]
    assert names(one, other)[:2] == [
        *(f"thinking longer, &lt;a&gt;/test, {words}" for words in (told, several))
    ]


def test_columns_with_odd_names_are_no_steps(run: Run) -> None:
    odd = {
        "right_after_02": [1, 1],
        "right_after_\u0662": [1, 1],
        "right_after_" + "9" * 5000: [1, 1],
    }
    known = records_of(right_after_1=[1, 0], right_after_10=[1, 1], exact_accuracy=[1, 1], **odd)
    figure = steps_figure(known)
    assert figure is not None
    assert trace(figure, "2 puzzles")["x"] == [1, 10]
    # A single step makes no curve.
    assert steps_figure(records_of(right_after_1=[1, 0], exact_accuracy=[1, 0])) is None


def test_difficulty_is_grouped_into_large_enough_groups() -> None:
    clues = [20] * 30 + [21] * 2 + [22] * 40 + [23]
    records = records_of(clues=clues, exact_accuracy=[1] * 30 + [0] * 43)
    (figure,) = difficulty_figures(records)
    (points,) = figure.data
    assert points["y"] == [1.0, 0.0]
    assert points["customdata"] == [["20", 30], ["21 to 23", 43]]
    assert points["x"][0] == 20.0
    values = np.random.default_rng(0).exponential(size=5000)
    (figure,) = difficulty_figures(records_of(rating=values, exact_accuracy=values < 1))
    counts = [count for _, count in figure.data[0]["customdata"]]
    assert sum(counts) == 5000
    assert len(counts) <= 12
    assert min(counts) >= 5000 / 12


def test_a_maze_has_no_figure_over_clues() -> None:
    columns = {"clues": list(range(40)), "path_length": list(range(40))}
    records = records_of(exact_accuracy=[1] * 40, **columns)
    (figure,) = difficulty_figures(records)
    assert figure.title == "Accuracy over difficulty: length of the path"


def test_a_model_without_mistakes_has_no_confusion_figure() -> None:
    nothing_wrong = {"kind": "maze", "sets": {"all": {"confusion": [[0, 0], [0, 5]]}}}
    assert confusion_figures(nothing_wrong) == []


def test_plotly_accepts_every_figure(run: Run, make_run_folder: Make) -> None:
    plotly = pytest.importorskip("plotly.graph_objects")
    runs = {"a": run, "b": read_run(make_run_folder("b"))}
    figures = [*training_figures(run), *compared_figures(runs, colours_of(list(runs)))]
    figures += puzzle_figures(run.results[0], [])
    assert len(figures) > 15
    for figure in figures:
        text = json.dumps({"data": figure.data, "layout": figure.layout}, allow_nan=False)
        # The page's script replaces these names of colours.
        text = text.replace('"@wrong"', '"Viridis"')
        text = re.sub(r'"@(?:[0-9]|text|muted|card|bad)"', '"#123456"', text)
        assert '"@' not in text
        plotly.Figure(json.loads(text))
