"""The report of one run."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from apps.reports import grids
from apps.reports.curves import training_figures
from apps.reports.html import (
    Cell,
    figure,
    interval,
    interval_bar,
    percent,
    table,
    text,
    tile,
    words,
)
from apps.reports.page import Page
from apps.reports.puzzles import puzzle_figures, search_figure
from apps.reports.reading import Result, Run, read_without_links
from apps.reports.tables import (
    Headline,
    evaluations_html,
    headline,
    notes_html,
    parameters_of,
    settings_html,
    warnings_html,
)
from apps.reports.values import at, items, listed, number, parsed
from dataset.format.layout import TEST_PUZZLES_NAME
from dataset.format.schema import ARC_SIDE
from dataset.kinds.arc import ARC
from dataset.kinds.board import BoardLook
from runtime.text import duration

_MAX_WITH_PUZZLES = 3
_MAX_FAILURES = 8
_MAX_ORIGINALS = 64 * 2**20
_MAX_INPUTS = 500
_MAX_BALLOTS = 9
_MAX_STEPS = 8
_FAILURE_ORDERS = {
    "surest": "Wrong answers, the surest first",
    "most_wrong": "Of the others those with the most wrong cells",
}


def page_of(run: Run, detail: float = 1.0) -> Page:
    """Return the page of a run; with less `detail`, from 1 to 0, fewer grids are shown."""
    page = Page(f"{run.name}: report")
    page.header = _header(run)
    page.add("solving", "A puzzle, step by step", _solving(run))
    page.add("curves", "Training", page.draw(training_figures(run)))
    told = warnings_html([run])
    intro = (
        '<p class="intro">What the run itself noticed while it trained, at its step; the first two '
        "figures mark these steps.</p>"
    )
    page.add("diagnosis", "Diagnosis", intro + told if told else "")
    page.add("evaluations", "Evaluations", evaluations_html(run))
    page.add("puzzles", "Puzzle by puzzle", _puzzles(run, page))
    page.add("failures", "The hardest failures", _failures(run, detail))
    page.add("votes", "ARC tasks and their votes", _votes(run, detail))
    page.add("settings", "Settings", settings_html(run) + _environment(run))
    page.add("notes", "What could not be read", notes_html([run]))
    return page


def _header(run: Run) -> str:
    status, best = run.status, headline(run)
    project = run.settings.get("project_name", "")
    lead = f'<span class="state {status.state}">{status.state}</span>'
    lead += f" {text(status.detail)}" if status.detail else ""
    lead += f" {_what(run)}"
    tiles = [headline_tile(best)] if best else []
    arch, parameters = run.settings.get("arch.name", "unknown"), parameters_of(run)
    tiles.append(tile("model", text(arch, 40), text(", ".join(_model(run, parameters)))))
    tiles.append(tile("training", *_training(run)))
    number_told = len(run.warnings)
    told = f"{number_told} warning{'s' * (number_told != 1)}" if number_told else "no warning"
    not_finite = any(curve.not_finite is not None for curve in run.curves.values())
    more = "values that are not finite" if not_finite else "that the run recorded of itself"
    if run.curves:
        tiles.append(tile("diagnosis", told, more))
    kicker = f"{text(project)} · run report" if project else "Run report"
    return (
        f'<p class="kicker">{kicker}</p><h1>{text(run.name)}</h1>'
        f'<p class="lead">{lead}</p><div class="tiles">{"".join(tiles)}</div>'
    )


def headline_tile(best: Headline) -> str:
    """Return the first tile: a share with its interval."""
    more = text(best.words)
    if best.estimate.low is not None and best.estimate.high is not None:
        more = f"95 %: {interval(best.estimate.low, best.estimate.high)} %<br>{more}"
    bar = interval_bar(best.estimate)
    return tile(text(best.name), percent(best.estimate.value), more, extra=bar, first=True)


def _what(run: Run) -> str:
    """Say what was trained on what."""
    settings = run.settings
    data = settings.get("data_paths", "null")
    data = settings.get("data_path", "null") if data == "null" else data
    if "arch.name" not in settings or data == "null":
        return ""
    return f"{text(settings['arch.name'])} trained on {text(data)}"


def _model(run: Run, parameters: str) -> list[str]:
    settings = run.settings
    parts = [parameters] if parameters else []
    for key, words_before, words_after in (
        ("arch.hidden_size", "width ", ""),
        ("arch.halt_max_steps", "", " ACT steps"),
        ("arch.forward_dtype", "", ""),
    ):
        if key in settings:
            value = settings[key]
            one = words_after.removesuffix("s") if str(value) == "1" else words_after
            parts.append(f"{words_before}{value}{one}")
    return parts


def _training(run: Run) -> tuple[str, str]:
    status = run.status
    if status.step is None:
        return "–", "no step was recorded"
    value = f"{status.step:,} steps"
    more = []
    if status.steps_ahead:
        more.append(f"of {status.total_steps:,}")
    if batch := run.settings.get("global_batch_size"):
        more.append(f"{text(batch)} puzzles each")
    if status.seconds:
        more.append(f"in {duration(status.seconds)}")
    if status.seconds_left is not None:
        more.append(f"about {duration(status.seconds_left)} left")
    return value, ", ".join(more)


def _environment(run: Run) -> str:
    newest = run.status.newest
    found = [(key, value) for key, value in items(newest.environment if newest else None)]
    known = [(key, value) for key, value in found if value is not None]
    if not known:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(key)}</th><td>{text(value)}</td></tr>' for key, value in known
    )
    return (
        "<details><summary>machine and versions, at the newest checkpoint</summary>"
        f'<div class="scroll"><table class="settings"><tbody>{rows}</tbody></table></div></details>'
    )


# A puzzle that is solved


def _solving(run: Run) -> str:
    """Return the answers to one puzzle after some ACT steps, from the first records with one."""
    for result in run.results:
        kind, sets = at(result.answers, "kind"), items(at(result.answers, "sets"))
        for name, of_set in sets:
            one = at(of_set, "solving")
            if boards := _steps(kind if isinstance(kind, str) else None, one):
                index, where = number(at(one, "index")) or 0, f"set {text(name)}, "
                told = f"{where if len(sets) > 1 else ''}puzzle {index:,.0f}"
                return (
                    f'<p class="intro">From {text(result.name)}: {told}, of the puzzles that are '
                    "solved the one that took the most ACT steps. Wrong cells are marked.</p>"
                    f'<div class="board steps">{_row(boards)}</div>'
                )
    return ""


def _steps(kind: str | None, one: Any) -> list[tuple[str, str]]:
    inputs, labels = (grids.square(at(one, name)) for name in ("inputs", "labels"))
    pairs = zip(listed(at(one, "steps")), listed(at(one, "answers")), strict=False)
    boards = []
    for step, tokens in list(pairs)[:_MAX_STEPS]:
        answer, step = grids.square(tokens), number(step)
        if step is None or (views := _viewed(kind, inputs, answer, labels)) is None:
            return []
        look, question, answer, _, wrong, given = views
        if not boards:
            boards.append(("the puzzle", grids.svg(look, question, label="puzzle", given=given)))
        told = f"step {step:,.0f}: {f'{wrong.sum():,} wrong' if wrong.any() else 'solved'}"
        boards.append((told, grids.svg(look, answer, label=told, given=given, wrong=wrong)))
    return boards


# Puzzle by puzzle


def _puzzles(run: Run, page: Page) -> str:
    depths = [result for result in run.results if listed(at(result.content, "chains"))]
    with_records = [r for r in run.results if r.records is not None or r.answers is not None]
    parts = []
    for place, result in enumerate(with_records[:_MAX_WITH_PUZZLES]):
        own = [one for one in depths if one.step == result.step] if place == 0 else []
        figures = [search_figure(result), *puzzle_figures(result, own)]
        html = page.draw([one for one in figures if one is not None])
        parts.append(f"<p class='intro'>From {text(result.name)}.</p>{html}" if html else "")
    if not with_records:
        figures = [search_figure(result) for result in run.results]
        if depths:
            figures += puzzle_figures(Result("", {}), depths[:1])
        parts.append(page.draw([one for one in figures if one is not None][:_MAX_WITH_PUZZLES]))
        if parts[0] or run.results:
            hint = "Evaluate with <code>save_records=true</code> to see more of single puzzles."
            parts.append(f"<p class='intro'>{hint}</p>")
    return "".join(parts)


def _failures(run: Run, detail: float) -> str:
    parts = []
    for result in run.results[: 4 * _MAX_WITH_PUZZLES]:
        kind = at(result.answers, "kind")
        kind = kind if isinstance(kind, str) else None
        for set_name, of_set in items(at(result.answers, "sets"))[:4]:
            for order, title in _FAILURE_ORDERS.items():
                found = listed(at(of_set, "failures", order))[: round(12 * detail)]
                boards = [_failure(kind, one, result) for one in found]
                if any(boards):
                    where = f"{text(result.name)}, set {text(set_name)}"
                    parts.append(
                        f"<h3>{title}</h3><p class='caption'>{where}</p>"
                        f'<div class="boards">{"".join(boards)}</div>'
                    )
        if len(parts) >= _MAX_FAILURES:
            break
    if not parts:
        return ""
    intro = (
        '<p class="intro">Wrong answers in two orders: those of which the model was surest (by Q), '
        "and of the others those with the most wrong cells. Wrong cells are marked.</p>"
    )
    return intro + "".join(parts[:_MAX_FAILURES])


def _failure(kind: str | None, failure: Any, result: Result) -> str:
    found = [grids.square(at(failure, name)) for name in ("inputs", "answer", "labels")]
    if (views := _viewed(kind, *found)) is None:
        return ""
    look, inputs, answer, labels, wrong, given = views
    known = labels > 0 if look.canvas else labels >= 0
    index = number(at(failure, "index"))
    told = [f"puzzle {index:,.0f}"] if index is not None else []
    told.append(f"{int(wrong.sum()):,} of {int(known.sum()):,} cells wrong")
    if (q := number(at(failure, "q_halt"))) is not None:
        told.append(f"Q {percent(q)}")
    boards = [
        ("answer", grids.svg(look, answer, label="answer", given=given, wrong=wrong)),
        ("solution", grids.svg(look, labels, label="solution", given=given)),
    ]
    if look.cells != "written":  # There the clues are bold in the answer.
        boards.insert(0, ("puzzle", grids.svg(look, inputs, label="puzzle")))
    return f'<div class="board"><p class="caption">{", ".join(told)}</p>{_row(boards)}</div>'


def _viewed(
    kind: str | None,
    inputs: np.ndarray | None,
    answer: np.ndarray | None,
    labels: np.ndarray | None,
) -> tuple[BoardLook, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Return how they look, the grids of question, answer and solution as they are drawn, which
    cells are wrong, and which are given, where that is shown; None where they are no grids of one
    size.
    """
    if inputs is None or answer is None or labels is None:
        return None
    if not inputs.shape == answer.shape == labels.shape:
        return None
    look = grids.look_of(kind, np.stack([inputs, answer, labels]))
    known = labels >= 0
    if look.canvas:  # Of what lies outside of the right grid nothing was asked.
        used = known
        inputs = grids.cropped(inputs, inputs > 0)
        answer, labels = (grids.cropped(np.where(used, g, 0), used) for g in (answer, labels))
        known = labels > 0
    wrong = known & (answer != labels)
    given = known & (inputs == labels) if look.cells == "written" else None
    once = [one.token for one in look.tokens if one.once]
    if once:  # Whatever is answered there, it stays where it is.
        answer = np.where(np.isin(inputs, once), inputs, answer)
    return look, inputs, answer, labels, wrong, given


def _row(boards: Sequence[tuple[str, str]]) -> str:
    """Return pictures side by side, each with its words."""
    inner = "".join(
        f"<figure>{picture}<figcaption>{name}</figcaption></figure>" for name, picture in boards
    )
    return f'<div class="row">{inner}</div>'


# ARC


def _votes(run: Run, detail: float) -> str:
    parts, by_inputs = [], _by_inputs(run)
    for wheres, inputs in by_inputs:
        where, *others = wheres
        solved = sum(at(one, "solved_at") == 1 for _, _, one in inputs)
        known = sum(at(one, "known") is True for _, _, one in inputs)
        also = f" The votes in {text(', '.join(others))} are on the same inputs." if others else ""
        parts.append(
            f"<h3>{text(where)}</h3><p class='caption'>{len(inputs):,} test inputs, {known:,} with "
            f"a known answer, {solved:,} of which have it in the first place.{also}</p>"
        )
        parts.append(_votes_table(inputs))
        originals = _originals(run, where)
        # What was nearly solved is seen first, then what was solved, then the rest.
        most = round(_MAX_BALLOTS * detail) // len(by_inputs)
        chosen = sorted(inputs, key=lambda item: _nearness(item[2]))[:most]
        boards = "".join(_ballot(*one, originals) for one in chosen)
        parts.append(f'<div class="boards">{boards}</div>' if boards else "")
    return "".join(parts)


Inputs = list[tuple[str, int, Any]]  # Of tasks: name, number of the test input, its votes.


def _by_inputs(run: Run) -> list[tuple[list[str], Inputs]]:
    """Return the votes once for the same test inputs, with all files that have votes on them: those
    of an evaluation after the run, if there are any. What is solved least comes first.
    """
    found: dict[tuple[tuple[str, int], ...], tuple[list[str], Inputs]] = {}
    for where, tasks in run.votes:
        inputs = [
            (name, place, one)
            for name, of_task in items(tasks)[:2000]
            for place, one in enumerate(listed(of_task))
            if isinstance(one, Mapping)
        ]
        if inputs:
            key = tuple((name, place) for name, place, _ in inputs)
            found.setdefault(key, ([], inputs))[0].append(where)
    return sorted(found.values(), key=lambda one: _share_solved(one[1]))


def _share_solved(inputs: Inputs) -> float:
    return sum(at(one, "solved_at") == 1 for _, _, one in inputs) / len(inputs)


def _nearness(one: Any) -> tuple[bool, bool]:
    place = number(at(one, "solved_at"))
    return place is None, place == 1


def _votes_table(inputs: Sequence[tuple[str, int, Any]]) -> str:
    rows = []
    for name, place, one in inputs[:_MAX_INPUTS]:
        solved = number(at(one, "solved_at"))
        verdict = "not among the answers" if at(one, "known") is True else "not known"
        rows.append(
            [
                words(name),
                figure(float(place + 1), ".0f"),
                figure(number(at(one, "votes")), ",.0f"),
                figure(number(at(one, "num_grids")), ",.0f"),
                Cell(verdict, 1e9, "n") if solved is None else figure(solved, ",.0f"),
            ]
        )
    header = ["task", "test input", "votes", "different answers", "place of the right answer"]
    inner = table(header, rows, sortable=True)
    which = "All" if len(inputs) <= _MAX_INPUTS else f"The first {_MAX_INPUTS}"
    return f"<details><summary>{which} test inputs</summary>{inner}</details>"


def _originals(run: Run, where: str) -> Any:
    """Return the tasks of the data set whose votes these are, if it is there; else None."""
    folder = where.rpartition("/")[0]
    beside = [one for one in run.results if one.name.rpartition("/")[0] == folder]
    folders = [data for one in beside for data in listed(at(one.content, "data"))]
    told = [Path(data).parent for data in folders if isinstance(data, str)]
    for data in told or [Path(run.settings.get("data_path", ""))]:
        with suppress(OSError, ValueError, RecursionError):
            return parsed(read_without_links(data / TEST_PUZZLES_NAME, _MAX_ORIGINALS))
    return None


def _ballot(name: str, place: int, one: Any, originals: Any) -> str:
    pair = at(originals, name, "test", place)
    right, found = grids.colour_grid(at(pair, "output")), []
    for part, words_below in (("input", "test input"), ("output", "right answer")):
        if (grid := grids.colour_grid(at(pair, part))) is not None:
            found.append((words_below, grid, None))
    total = number(at(one, "votes")) or 0
    for voted in listed(at(one, "grids"))[:3]:
        grid, votes = grids.colour_grid(at(voted, "grid")), number(at(voted, "votes"))
        if grid is None or votes is None:
            continue
        q = number(at(voted, "mean_q"))
        told = f"{votes:,.0f} of {total:,.0f} votes" + (
            f", Q {percent(q)}" if q is not None else ""
        )
        wrong = None
        if right is not None:
            told += ", right" if np.array_equal(right, grid) else ""
            wrong = right != grid if right.shape == grid.shape else None
        found.append((told, grid, wrong))
    if not found:
        return ""
    look = ARC.board(ARC_SIDE)
    largest = max(max(grid.shape) for _, grid, _ in found)
    pictures = [
        (told, grids.svg(look, grid, label=told, wrong=wrong, width_share=share))
        for told, grid, wrong in found
        if (share := max(0.3, grid.shape[1] / largest))
    ]
    solved = number(at(one, "solved_at"))
    verdict = (
        "right answer not voted for" if solved is None else f"right answer at place {solved:g}"
    )
    if at(one, "known") is not True:
        verdict = "right answer not known"
    caption = f"<strong>{text(name)}</strong>, test input {place + 1}: {verdict}"
    return f'<div class="board ballot"><p class="caption">{caption}</p>{_row(pictures)}</div>'
