"""Grids on a page: one puzzle step by step, wrong answers, and the votes for ARC tasks."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apps.reports.boards import FAINT, draw_cells, panel_of, with_unique_tokens
from apps.reports.html import Cell, details, figure, intro, percent, table, text, words
from apps.reports.reading import Run, read_without_links
from apps.reports.values import parsed
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_SIDE, TEST_PUZZLES_NAME
from dataset.kinds import KINDS
from dataset.kinds.arc import ARC
from dataset.kinds.base import BoardLook, plain_colours
from evaluation.values import at, items, listed, number

_CELL = 20  # Pixels of a cell before the page scales the grid.
_MAX_SIDE = 64
_MAX_RESULTS = 12
_MAX_FAILURES = 8
_MAX_ORIGINALS = 64 * 2**20
_MAX_INPUTS = 500
_MAX_BALLOTS = 9
_MAX_STEPS = 8
_FAILURE_ORDERS = {
    "surest": "Wrong answers, the surest first",
    "most_wrong": "Other wrong answers, those with the most wrong cells first",
}


class _Answer(NamedTuple):
    """An answer to a puzzle: tokens as int64 [h, w], and its wrong and given cells as bool [h, w].
    `given` is None on boards that do not show it.
    """

    look: BoardLook
    question: np.ndarray
    answer: np.ndarray
    solution: np.ndarray
    wrong: np.ndarray
    given: np.ndarray | None


def grid_of(tokens: Any, *, rows: bool = False) -> np.ndarray | None:
    """Return a list of tokens as a square grid, or with `rows` a list of rows as a grid, int64
    [h, w]. None if it is no grid.
    """
    try:
        cells = np.array(tokens, np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    side = math.isqrt(cells.size)
    if not rows and cells.ndim == 1 and side * side == cells.size:
        cells = cells.reshape(side, side)
    return (
        cells
        if cells.ndim == 2 and 1 <= min(cells.shape) <= max(cells.shape) <= _MAX_SIDE
        else None
    )


def look_of(kind: Any, size: int) -> BoardLook:
    """Return the look of the kind with this name; for an unknown kind a colour for each token."""
    if isinstance(kind, str) and kind in KINDS:
        return KINDS.load(kind).board(size)
    return plain_colours(256)


def svg(look: BoardLook, grid: np.ndarray, label: str, share: float = 1.0, **cells: Any) -> str:
    """Return a grid of tokens [h, w] as SVG. `cells` are fields of Panel, `label` is escaped HTML,
    `share` is the part of the page's place that the grid fills, 0 to 1.
    """
    picture = draw_cells(look, panel_of(grid, **cells), _CELL)
    if look.cells != "written":
        picture.frame(0, 0, picture.width, picture.height, 1, FAINT)
    narrow = "" if share == 1 else f' style="width:{100 * share:.0f}%"'
    return picture.svg(f' class="grid" aria-label="{label}"{narrow}')


def _answer_of(kind: Any, inputs: Any, answer: Any, labels: Any) -> _Answer | None:
    """Return an answer ready to draw; None unless all three are grids of one size."""
    found = [grid for tokens in (inputs, answer, labels) if (grid := grid_of(tokens)) is not None]
    if len(found) < 3 or len({grid.shape for grid in found}) > 1:
        return None
    question, answer, labels = found
    look, known = look_of(kind, len(question)), labels >= 0
    if look.canvas:  # Outside of the right grid nothing counts.
        question = _cropped(question, question > 0)
        answer, labels = (_cropped(np.where(known, g, 0), known) for g in (answer, labels))
        known = labels > 0
    wrong = known & (answer != labels)
    given = known & (question == labels) if look.cells == "written" else None
    if not look.canvas:
        answer = with_unique_tokens(look, question, answer)
    return _Answer(look, question, answer, labels, wrong, given)


def _cropped(grid: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Cut off the last rows and columns of a canvas [h, w] without used cells, bool [h, w]."""
    height, width = (int(np.flatnonzero(used.any(axis))[-1:].sum()) + 1 for axis in (1, 0))
    return grid[:height, :width]


def _board(caption: str, look: BoardLook, pictures: Sequence[tuple[str, str]], kind: str) -> str:
    """Return pictures side by side, given as (caption, SVG)."""
    inner = "".join(f"<figure>{svg}<figcaption>{n}</figcaption></figure>" for n, svg in pictures)
    caption = f'<p class="caption">{caption}</p>' if caption else ""
    return f'<div class="board {kind}">{caption}<div class="row {look.cells}">{inner}</div></div>'


# One puzzle, step by step


def solving_html(run: Run) -> str:
    """Return the answers to one puzzle step by step, from the first records that have them."""
    for result in run.results:
        kind, sets = at(result.answers, "kind"), items(at(result.answers, "sets"))
        for name, of_set in sets:
            one = at(of_set, "solving")
            if steps := _steps(kind, one):
                index, where = number(at(one, "index")) or 0, f"set {text(name)}, "
                puzzle = f"{where if len(sets) > 1 else ''}puzzle {index:,.0f}"
                return intro(
                    f"From {text(result.name)}: {puzzle}, the solved puzzle that took the most ACT "
                    "steps. Wrong cells are marked."
                ) + _board("", *steps, "steps")
    return ""


def _steps(kind: Any, one: Any) -> tuple[BoardLook, list[tuple[str, str]]] | None:
    pictures, look = list[tuple[str, str]](), None
    for step, tokens in zip(listed(at(one, "steps")), listed(at(one, "answers")), strict=False):
        found = _answer_of(kind, at(one, "inputs"), tokens, at(one, "labels"))
        if found is None or (step := number(step)) is None:
            return None
        look, question, answer, _, wrong, given = found
        if not pictures:
            pictures.append(("the puzzle", svg(look, question, "puzzle", given=given)))
        label = f"step {step:,.0f}: {f'{wrong.sum():,} wrong' if wrong.any() else 'solved'}"
        pictures.append((label, svg(look, answer, label, given=given, marked=wrong)))
    return (look, pictures[: _MAX_STEPS + 1]) if look else None


# Wrong answers


def failures_html(run: Run, detail: float) -> str:
    """Return wrong answers; lower `detail`, from 1 to 0, for fewer of them."""
    parts = []
    for result in run.results[:_MAX_RESULTS]:
        for set_name, of_set in items(at(result.answers, "sets"))[:4]:
            for order, title in _FAILURE_ORDERS.items():
                found = listed(at(of_set, "failures", order))[: round(12 * detail)]
                boards = [_failure(at(result.answers, "kind"), one) for one in found]
                if any(boards):
                    where = f"{text(result.name)}, set {text(set_name)}"
                    parts.append(
                        f"<h3>{title}</h3><p class='caption'>{where}</p>"
                        f'<div class="boards">{"".join(boards)}</div>'
                    )
    if not parts:
        return ""
    orders = (
        "Wrong answers: first those that the model was surest of (by Q), then others, those with "
        "the most wrong cells first. Wrong cells are marked."
    )
    return intro(orders) + "".join(parts[:_MAX_FAILURES])


def _failure(kind: Any, failure: Any) -> str:
    found = _answer_of(kind, *(at(failure, name) for name in ("inputs", "answer", "labels")))
    if found is None:
        return ""
    look, question, answer, solution, wrong, given = found
    known = solution > 0 if look.canvas else solution >= 0
    index = number(at(failure, "index"))
    caption = [f"puzzle {index:,.0f}"] if index is not None else []
    caption.append(f"{int(wrong.sum()):,} of {int(known.sum()):,} cells wrong")
    if (q := number(at(failure, "q_halt"))) is not None:
        caption.append(f"Q {percent(q)}")
    pictures = [
        ("answer", svg(look, answer, "answer", given=given, marked=wrong)),
        ("solution", svg(look, solution, "solution", given=given)),
    ]
    if look.cells != "written":  # A written answer shows the clues in bold.
        pictures.insert(0, ("puzzle", svg(look, question, "puzzle")))
    return _board(", ".join(caption), look, pictures, "")


# ARC

Inputs = list[tuple[str, int, Any]]  # Name of a task, index of a test input, its votes.


def votes_html(run: Run, detail: float) -> str:
    """Return the votes for ARC tasks, preferably from an evaluation after the run. Lower `detail`,
    from 1 to 0, for fewer grids.
    """
    where, tasks = run.votes[0] if run.votes else ("", {})
    inputs = [
        (name, place, one)
        for name, of_task in items(tasks)[:2000]
        for place, one in enumerate(listed(of_task))
        if isinstance(one, Mapping)
    ]
    if not inputs:
        return ""
    known = sum(at(one, "known") is True for _, _, one in inputs)
    places = [(number(at(one, "solved_at")), place) for place, (_, _, one) in enumerate(inputs)]
    solved = sum(place == 1 for place, _ in places)
    heading = (
        f"<h3>{text(where)}</h3><p class='caption'>{len(inputs):,} test inputs; the right answer "
        f"is known for {known:,} and in first place for {solved:,}.</p>"
    )
    originals = _originals(run, where)
    # First the nearly solved tasks, then the solved ones, then the others.
    order = sorted(places, key=lambda one: (one[0] is None, one[0] == 1))
    boards = "".join(
        ballot(*inputs[place], originals) for _, place in order[: round(_MAX_BALLOTS * detail)]
    )
    return f'{heading}{_votes_table(inputs)}<div class="boards">{boards}</div>'


def _votes_table(inputs: Inputs) -> str:
    rows = []
    for name, place, one in inputs[:_MAX_INPUTS]:
        solved = number(at(one, "solved_at"))
        verdict = "not among the answers" if at(one, "known") is True else "not known"
        place_of_right = figure(solved, ",.0f") if solved is not None else Cell(verdict, 1e9, "n")
        counts = [place + 1.0, number(at(one, "votes")), number(at(one, "num_grids"))]
        rows.append([words(name), *(figure(n, ",.0f") for n in counts), place_of_right])
    header = ["task", "test input", "votes", "different answers", "place of the right answer"]
    which = "All" if len(inputs) <= _MAX_INPUTS else f"The first {_MAX_INPUTS}"
    return details(f"{which} test inputs", table(header, rows, sortable=True))


def _originals(run: Run, where: str) -> Any:
    """Return the tasks of the data set that the votes are for, None if it is not there."""
    folder = where.rpartition("/")[0]
    beside = [one for one in run.results if one.name.rpartition("/")[0] == folder]
    folders = [data for one in beside for data in listed(at(one.content, "data"))]
    named = [Path(data).parent for data in folders if isinstance(data, str)]
    for data in named or [Path(run.settings.get("data_path", ""))]:
        with suppress(OSError, ValueError, RecursionError):
            return parsed(read_without_links(data / TEST_PUZZLES_NAME, _MAX_ORIGINALS))
    return None


def ballot(name: str, place: int, one: Any, originals: Any) -> str:
    """Return the first answers to a test input, with the input and the right answer if known.

    Args:
        place: of the test input in its task.
        one: its entry in `evaluation.evaluators.arc.task_details`. A grid may have a `label`, which
            begins with a digit.
        originals: the tasks by name, as in their files.
    """
    pair = at(originals, name, "test", place)
    right = grid_of(at(pair, "output"), rows=True)
    shown = [("test input", grid_of(at(pair, "input"), rows=True)), ("right answer", right)]
    total = number(at(one, "votes")) or 0
    for voted in listed(at(one, "grids"))[:3]:
        grid, votes = grid_of(at(voted, "grid"), rows=True), number(at(voted, "votes"))
        if grid is not None and votes is not None:
            q = number(at(voted, "mean_q"))
            label = f"{votes:,.0f} of {total:,.0f} votes"
            label += f", Q {percent(q)}" if q is not None else ""
            label = text(at(voted, "label") or label)
            is_right = right is not None and np.array_equal(right, grid)
            shown.append((f"{label}, right" if is_right else label, grid))
    found = [(label, grid) for label, grid in shown if grid is not None]
    if not found:
        return ""
    look, largest = ARC.board(ARC_SIDE), max(max(grid.shape) for _, grid in found)
    pictures = []
    for label, grid in found:
        is_comparable = right is not None and right.shape == grid.shape and label[0].isdigit()
        marked, share = right != grid if is_comparable else None, max(0.3, grid.shape[1] / largest)
        tokens = grid + ARC_FIRST_COLOUR_TOKEN
        pictures.append((label, svg(look, tokens, label, share, marked=marked)))
    solved = number(at(one, "solved_at"))
    verdict = (
        "right answer not voted for" if solved is None else f"right answer at place {solved:g}"
    )
    if at(one, "known") is not True:
        verdict = "right answer not known"
    caption = f"<strong>{text(name)}</strong>, test input {place + 1}: {verdict}"
    return _board(caption, look, pictures, "ballot")
