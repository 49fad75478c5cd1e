"""What figures show, and that plotly takes every one of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.reports.curves import colours_of, compared_figures, parallel_coordinates, training_figures
from apps.reports.figure import Figure, log_axis
from apps.reports.puzzles import (
    confusion_figures,
    difficulty_figures,
    halts_figure,
    puzzle_figures,
    reliability_figure,
    search_figure,
    steps_figure,
)
from apps.reports.reading import Records, Result, Run, read_run
from evaluation.metrics import wilson

Make = Callable[..., Path]


@pytest.fixture
def run(make_run_folder: Make) -> Run:
    return read_run(make_run_folder(steps=40, score=0.75))


def trace(figure: Figure, name: str) -> dict[str, Any]:
    (found,) = [one for one in figure.data if one.get("name") == name]
    return found


def by_title(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.title: figure for figure in figures}


def test_the_curves_of_a_run(run: Run) -> None:
    figures = by_title(training_figures(run))
    assert list(figures)[:2] == ["Exact accuracy", "Losses"]
    exact = figures["Exact accuracy"]
    assert trace(exact, "exact accuracy")["x"] == list(range(1, 41))
    evaluated = trace(exact, "exact accuracy, evaluated")
    assert (evaluated["x"], evaluated["y"]) == ([20, 40], [0.75, 0.75])
    # Of 20 puzzles, as the curve of counts says.
    low = wilson(15, 20).low
    assert low is not None
    assert evaluated["error_y"]["arrayminus"] == pytest.approx([0.75 - low] * 2, abs=1e-5)
    assert trace(exact, "warnings")["x"] == [20]
    assert "the logits are flat" in trace(exact, "warnings")["text"][0].replace("<br>", " ")
    assert figures["Losses"].layout["yaxis"]["type"] == "log"
    assert {one["name"] for one in figures["Losses"].data} >= {"lm", "q halt"}
    assert {"Gradient norms", "Learning rates", "Steps to the halt", "Cells"} <= figures.keys()
    # A single value is no curve.
    assert "Learned weights of the losses" not in figures


def test_long_curves_are_short_and_keep_their_extremes(run: Run) -> None:
    for step in range(41, 30_000):
        run.curves["train/lm_loss"].add(step, 1.0)
    run.curves["train/lm_loss"].add(20_000, 70.0)
    losses = by_title(training_figures(run))["Losses"]
    of_loss = [one for one in losses.data if one.get("legendgroup") == "lm"]
    assert sum(len(one["x"]) for one in of_loss) <= 1000
    band, curve = of_loss
    assert max(band["y"]) < 3  # Between the quartiles; the extremes are said where one points.
    assert max(high for _, high in curve["customdata"]) == 70.0
    # On a logarithmic scale a quartile of 0 leaves a gap in the band.
    for _ in range(1000):
        run.curves["train/lm_loss"].add(15_000, 0.0)
    losses = by_title(training_figures(run))["Losses"]
    band = next(one for one in losses.data if one["mode"] == "none")
    assert band["y"].count(None) == 1
    assert min(y for y in band["y"] if y is not None) > 0


def test_what_belongs_to_a_heading_is_drawn_once(run: Run) -> None:
    for name in ("train/confidence_accuracy", "eval/hard/exact_accuracy", "eval/sudoku/valid"):
        for step in (1, 2):
            run.curves.setdefault(name, type(run.curves["train/lr"])()).add(step, 0.5)
    figures = training_figures(run)
    names = [
        (figure.title, one["name"]) for figure in figures for one in figure.data if "name" in one
    ]
    assert len(names) == len(set(names))
    titles = by_title(figures)
    assert [one["name"] for one in titles["Heads"].data] == ["confidence accuracy"]
    assert len(titles["Evaluators and sets"].data) == 2


def test_several_runs_lie_over_each_other(make_run_folder: Make) -> None:
    runs = {name: read_run(make_run_folder(name)) for name in ("a", "<b>$x^2$</b>")}
    colours = colours_of(list(runs), [0.5, None])
    figures = by_title(compared_figures(runs, colours, 60_000))
    loss = figures["Loss of the tokens"]
    assert [one["name"] for one in loss.data] == ["a", "&lt;b&gt;$x^2$&lt;/b&gt;"]
    assert [one["line"]["color"] for one in loss.data] == ["@0", "@1"]


def test_points_are_shared_out_among_many_runs(make_run_folder: Make) -> None:
    run = read_run(make_run_folder(steps=2000))
    runs = {f"run {number}": run for number in range(100)}
    colours = colours_of(list(runs), [number / 100 for number in range(99)] + [None])
    assert (colours["run 0"], colours["run 98"], colours["run 99"]) == (
        *("@score 0.00", "@score 1.00"),
        "@score 0.00",
    )
    figures = compared_figures(runs, colours, 60_000)
    assert sum(len(one["x"]) for figure in figures for one in figure.data) <= 60_000


def test_parallel_coordinates_have_an_axis_for_each_setting() -> None:
    swept = {"lr": ["0.001", "0.01", "0.003"], "arch": ["trm", "<hrm>", "trm"]}
    figure = parallel_coordinates(["a", "<b>", "c"], swept, [0.5, 0.75, 0.6], "exact accuracy")
    assert figure.selects
    runs = {one["text"].partition("<br>")[0]: one for one in figure.data}
    assert list(runs) == ["a", "c", "&lt;b&gt;"]  # The best is drawn last.
    assert runs["a"]["y"][::5] == [0.0, 1.0, 0.0]
    assert runs["c"]["y"][::5] == [0.5, 1.0, 0.4]
    assert runs["&lt;b&gt;"]["y"][::5] == [1.0, 0.0, 1.0]
    assert runs["c"]["y"][:6] == [0.5, None, 0.5, None, 0.5, 1.0]
    assert runs["&lt;b&gt;"]["line"]["color"] == "@score 1.00"
    assert "arch = &lt;hrm&gt;" in runs["&lt;b&gt;"]["text"]
    bands = [(one["x0"], one["x1"]) for one in figure.layout["shapes"]]
    # The text of an axis lies in its band, and no line crosses a band.
    assert runs["a"]["x"][::5] == [0, 1, 2]
    assert runs["a"]["x"][4::5] == [end for _, end in bands]
    notes = [(int(one["x"]), one["text"]) for one in figure.layout["annotations"]]
    assert all(
        bands[int(x)][0] < x < bands[int(x)][1]
        for x in (one["x"] for one in figure.layout["annotations"])
    )
    assert notes[:3] == [(0, "lr"), (1, "arch"), (2, "exact accuracy")]
    assert set(notes[3:]) == {
        *((0, "0.001"), (0, "0.003"), (0, "0.01")),
        *((1, "&lt;hrm&gt;"), (1, "trm"), (2, "0.5"), (2, "0.75")),
    }


def test_many_values_of_a_setting_stand_where_they_belong() -> None:
    names = [str(number) for number in range(21)]
    swept = {"lr": [str(10.0**-number) for number in range(21)], "x": names}
    figure = parallel_coordinates(names, swept, [0.5] * 21, "score")
    middle = next(one for one in figure.data if one["text"].startswith("10<br>"))
    # By its logarithm, as itself, and where all are the same.
    assert middle["y"][::5] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.03, None, 0.4, 0.0], ["0.02", "0.05", "0.1", "0.2", "0.5"]),
        ([1e-4, 1.0], ["0.001", "0.01", "0.1"]),
        ([1e-30, 1.0], ["1e-30", "1e-26", "1e-22"]),
        ([1e-308, 1e308], ["1e-300", "1e-223"]),
        ([None, 0.0], ["1", "2", "5"]),
    ],
    ids=["a decade", "decades", "very many decades", "all numbers", "nothing"],
)
def test_logarithmic_axes_have_labels_at_even_distances(
    values: list[Any], shown: list[str]
) -> None:
    axis = log_axis([{"y": values}], "y")
    labels = axis["ticktext"]
    first = labels.index(shown[0])
    assert labels[first : first + len(shown)] == shown
    assert [float(label) for label in labels] == pytest.approx(axis["tickvals"])
    logs = np.log10(axis["tickvals"])
    assert np.diff(logs).max() < 1.5 * np.diff(logs).min()


# Single puzzles


def records_of(**columns: Any) -> Records:
    return Records({name: np.array(values, float) for name, values in columns.items()})


def test_accuracy_over_steps_and_depths(run: Run) -> None:
    share = {"value": 0.6, "low": 0.5, "high": 0.7}
    chains = [
        {"depth": depth, "breadth": breadth, "select": "q", "selected": share}
        | {"set_name": "all", "num_puzzles": 20}
        for depth in (16, 4)
        for breadth in (1, 8)
    ]
    figure = steps_figure({"": run.results[0]}, [Result("d", {"chains": chains})])
    assert figure is not None
    assert trace(figure, "all puzzles")["x"] == [1, 2, 3, 4]
    assert trace(figure, "all puzzles")["y"] == [0.0, 0.4, 0.75, 0.75]
    assert trace(figure, "with depth")["x"] == [4, 16]
    assert trace(figure, "with depth, 8 chains, select=q")["y"] == [0.6, 0.6]
    # Ratings go from 0 to 19, and the first 15 puzzles are right.
    assert trace(figure, "rating ≤ 6.333")["y"][-1] == 1.0
    assert trace(figure, "rating ≥ 12.67")["y"][-1] == round(2 / 7, 5)


def test_curves_over_depth_say_what_could_be_confused(run: Run) -> None:
    def at_depths(data: str, count: int, set_name: str = "all") -> Result:
        chain = {"breadth": 1, "select": "q", "selected": {"value": 0.5}, "num_puzzles": count}
        chains = [chain | {"depth": depth, "set_name": set_name} for depth in (4, 16)]
        return Result("d", {"chains": chains, "data": [f"/x/{data}/test"]})

    def names(*depths: Result) -> list[str]:
        figure = steps_figure({}, depths)
        assert figure is not None
        return [one["name"] for one in figure.data]

    assert names(at_depths("<a>", 20)) == ["with depth"]
    assert names(at_depths("<a>", 20), at_depths("b", 20)) == [
        *("with depth, &lt;a&gt;/test", "with depth, b/test")
    ]
    assert names(at_depths("a", 20), at_depths("a", 1000, "hard")) == [
        *("with depth, set all, 20 puzzles", "with depth, set hard, 1,000 puzzles")
    ]
    figure = steps_figure({"": run.results[0]}, [at_depths("a", 7)])
    assert figure is not None
    first, last = figure.data[0]["name"], figure.data[-1]["name"]
    assert (first[:11], first[-12:], last[-11:]) == ("all puzzles", ", 20 puzzles", ", 7 puzzles")


def test_columns_of_odd_names_are_no_steps(run: Run) -> None:
    odd = {
        "right_after_02": [1, 1],
        "right_after_\u0662": [1, 1],
        "right_after_" + "9" * 5000: [1, 1],
    }
    known = records_of(right_after_1=[1, 0], right_after_10=[1, 1], exact_accuracy=[1, 1], **odd)
    figure = steps_figure({"": Result("r", {}, known)})
    assert figure is not None
    assert trace(figure, "all puzzles")["x"] == [1, 10]


def test_a_single_step_is_no_curve(run: Run) -> None:
    result = Result("r", {}, records_of(right_after_1=[1, 0], exact_accuracy=[1, 0]))
    assert steps_figure({"": result}) is None


def test_halting_steps_are_counted() -> None:
    records = records_of(at_halt_steps=[1, 2, 2, np.nan], at_halt_exact_accuracy=[1, 0, 1, np.nan])
    figure = halts_figure(records)
    assert figure is not None
    assert trace(figure, "right")["y"] == [1, 1]
    assert trace(figure, "wrong")["y"] == [0, 1]
    assert halts_figure(records_of(steps=[4, 4], exact_accuracy=[1, 0])) is None


def test_difficulty_is_put_into_groups_that_are_large_enough() -> None:
    clues = [20] * 30 + [21] * 2 + [22] * 40 + [23]
    records = records_of(clues=clues, exact_accuracy=[1] * 30 + [0] * 43)
    (figure,) = difficulty_figures({"": Result("r", {}, records)})
    (points,) = figure.data
    assert points["y"] == [1.0, 0.0]
    assert points["customdata"] == [["20", 30], ["21 to 23", 43]]
    assert points["x"][0] == 20.0
    values = np.random.default_rng(0).exponential(size=5000)
    (figure,) = difficulty_figures(
        {"": Result("r", {}, records_of(rating=values, exact_accuracy=values < 1))}
    )
    counts = [count for _, count in figure.data[0]["customdata"]]
    assert sum(counts) == 5000
    assert len(counts) <= 12
    assert min(counts) >= 5000 / 12


def test_the_walls_of_a_maze_are_no_clues() -> None:
    columns = {"clues": list(range(40)), "path_length": list(range(40))}
    records = records_of(exact_accuracy=[1] * 40, **columns)
    assert [f.title for f in difficulty_figures({"": Result("r", {}, records)})] == [
        "Accuracy over difficulty: length of the path"
    ]


def test_calibration_of_q_and_of_the_confidence(run: Run) -> None:
    figure = reliability_figure(run.results[0])
    assert figure is not None
    q = trace(figure, "Q: the whole answer")
    assert (q["x"], q["y"]) == ([0.2, 0.9], [0.0, 1.0])
    confidence = trace(figure, "confidence: a cell")
    assert (confidence["x"], confidence["y"]) == ([0.85, 0.95], [0.8, round(140 / 150, 5)])


def test_confusions_leave_out_what_is_right(run: Run) -> None:
    (figure,) = confusion_figures(run.results[0].answers)
    (heat,) = figure.data
    assert (heat["x"], heat["y"]) == (["1", "2"], ["1", "2"])
    assert heat["z"] == [[None, 0.1], [0.0, None]]
    assert heat["text"][0][1] == "10 of 100"
    assert "95.00%" in figure.caption
    nothing_wrong = {"kind": "maze", "sets": {"all": {"confusion": [[0, 0], [0, 5]]}}}
    assert confusion_figures(nothing_wrong) == []


def test_what_a_search_solves_within_a_budget() -> None:
    searcher = {"searcher": "model", "solved_within": {"16": 0.5, "2": 0.25, "x": 1, "4": "nan"}}
    figure = search_figure(Result("s", {"searchers": [searcher]}))
    assert figure is not None
    assert (figure.data[0]["x"], figure.data[0]["y"]) == ([2, 16], [0.25, 0.5])


def test_plotly_takes_every_figure(run: Run, make_run_folder: Make) -> None:
    plotly = pytest.importorskip("plotly.graph_objects")
    runs = {"a": run, "b": read_run(make_run_folder("b"))}
    colours = colours_of(list(runs), [0.5, 0.75])
    figures = [*training_figures(run), *compared_figures(runs, colours, 60_000)]
    figures += puzzle_figures(run.results[0], [])
    figures.append(parallel_coordinates(["a", "b"], {"lr": ["1", "2"]}, [0.1, 0.2], "s"))
    assert len(figures) > 15
    for figure in figures:
        text = json.dumps(figure.to_json(), allow_nan=False)
        # Names of colours are the page's own.
        text = text.replace('"@wrong"', '"Viridis"')
        text = re.sub(r'"@(?:[0-9]~?|score [01]\.\d\d|text|muted|card|bad)"', '"#123456"', text)
        assert '"@' not in text
        plotly.Figure(json.loads(text))
