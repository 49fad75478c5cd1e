"""Runs in the terminal: a line for each, and those that are followed."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from apps.reports.html import percent
from apps.reports.reading import find_runs
from apps.reports.status import Status, last_records, modified, read_status
from apps.reports.values import listed, number
from evaluation.headline import headline_of, measure_in_words
from runtime.text import duration, in_columns, shown
from training.tracking import METRICS_FILE, WARNINGS

_COLOURS = {"running": 36, "done": 32, "stopped": 33, "failed": 31, "new": 90}
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_MAX_SHOWN = 600  # Records that a curve of the terminal is made of.
_MAX_EVENTS = 8
_LEAST_NAME, _LEAST_FOLDER = 12, 16


@dataclass(frozen=True)
class Listed:
    """A run and where it stands."""

    folder: Path
    status: Status

    @property
    def name(self) -> str:
        return shown(self.folder.resolve().name, 60)

    def to_json(self) -> dict[str, Any]:
        """Return what is listed; null is what nothing tells."""
        names = ("state", "detail", "step", "total_steps", "score", "measure", "loss")
        status = {name: getattr(self.status, name) for name in names}
        times = {"seconds": self.status.seconds, "seconds_left": self.status.seconds_left}
        return {"run": self.folder.resolve().name, **status, **times, "folder": str(self.folder)}


def list_runs(folder: Path) -> list[Listed]:
    """Return all runs in a folder and below: those at work first, then by their last change."""
    runs = [Listed(run, read_status(run)) for run in find_runs(folder)]
    return sorted(runs, key=lambda one: (one.status.state != "running", -_changed(one.folder)))


def _changed(folder: Path) -> float:
    return max(modified(folder / METRICS_FILE), modified(folder))


def as_text(runs: Sequence[Listed], *, in_colour: bool, width: int | None = None) -> str:
    """Return a table with a line for each run, of at most `width` characters: folders and names
    that are too long lose their beginning, or their end.
    """
    header = ["state", "run", "step", "best score", "last loss", "time left", "folder"]
    rows = [
        [one.status.state, one.name, *_cells(one.status), shown(one.folder, 200)] for one in runs
    ]
    first, *lines = in_columns(_fitted([header, *rows], width)).split("\n")
    if in_colour:
        lines = [_coloured(line, row[0]) for line, row in zip(lines, rows, strict=True)]
    return "\n".join([first, *lines])


def _fitted(rows: list[list[str]], width: int | None) -> list[list[str]]:
    """Cut the folders, in the last column; where that is not enough, leave them out, since they end
    in the run's name, and cut the names.
    """
    if width is None:
        return rows
    if (room := _room(rows, -1, width)) >= _LEAST_FOLDER:
        return [[*row[:-1], shown(row[-1][::-1], room)[::-1]] for row in rows]
    rows = [row[:-1] for row in rows]
    room = max(_LEAST_NAME, _room(rows, 1, width))
    return [[row[0], shown(row[1], room), *row[2:]] for row in rows]


def _room(rows: Sequence[Sequence[str]], column: int, width: int) -> int:
    """Return what a column may take if a line is to have `width` characters."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return width - sum(widths) - 2 * (len(widths) - 1) + widths[column]


def _coloured(line: str, state: str) -> str:
    return f"\x1b[{_COLOURS[state]}m{state}\x1b[0m{line[len(state) :]}"


def _cells(status: Status) -> list[str]:
    steps = "-" if status.step is None else f"{status.step:,}"
    if status.step is not None and status.steps_ahead:
        steps += f" of {status.total_steps:,}"
    return [
        steps,
        "-" if status.score is None else f"{percent(status.score)}{_of_what(status.measure)}",
        "-" if status.loss is None else f"{status.loss:.4g}",
        "-" if status.seconds_left is None else duration(status.seconds_left),
    ]


def _of_what(measure: str | None) -> str:
    """Return what a score is, "" for the usual one."""
    usual = measure in (None, "eval/exact_accuracy")
    return "" if usual else f" ({measure_in_words(str(measure))})"


def frames(folder: Path, interval: float, width: int) -> Iterator[tuple[list[Listed], str]]:
    """Yield where a run stands and a screen that shows it, again and again, until it is done; its
    folder need not be there yet.
    """
    watched = _Watched()
    while True:
        one = Listed(folder, read_status(folder))
        yield [one], screen(one, watched.pace(one), width)
        if one.status.state == "done":
            return
        time.sleep(interval)


def frames_of_all(folder: Path, interval: float, width: int) -> Iterator[tuple[list[Listed], str]]:
    """Yield where the runs in a folder stand that are at work, or were when it was last looked, and
    a screen that shows them, again and again; where none is at work, it waits for the next one.
    """
    watched, alive, ended = _Watched(), set[Path](), list[Listed]()
    while True:
        runs = list_runs(folder)
        at_work = [one for one in runs if one.status.state == "running"]
        gone = [one for one in runs if one.folder in alive and one not in at_work]
        alive = {one.folder for one in at_work}
        ended = [one for one in [*gone, *ended] if one.folder not in alive][:_MAX_EVENTS]
        yield [*at_work, *gone], _screen_of_all(at_work, ended, watched, folder, width)
        time.sleep(interval)


class _Watched:
    """The steps at which runs were seen, from which their pace follows."""

    def __init__(self) -> None:
        self._seen: dict[Path, list[tuple[float, int]]] = {}

    def pace(self, one: Listed) -> float | None:
        """Note where a run stands; return steps a second, as they were watched."""
        seen = self._seen.get(one.folder, [])
        if one.status.step is not None:
            seen = [*seen, (time.monotonic(), one.status.step)][-_MAX_SHOWN:]
            self._seen[one.folder] = seen
        return _pace(seen)


def _screen_of_all(
    at_work: Sequence[Listed], ended: Sequence[Listed], watched: _Watched, folder: Path, width: int
) -> str:
    """Return one run at work in full, several in a table with a bar for each; below, those that
    have ended meanwhile.
    """
    paces = [watched.pace(one) for one in at_work]
    parts = []
    if not at_work:
        parts.append(f"no run is at work in {shown(folder, 200)}: waiting for the next one")
    elif len(at_work) == 1:
        parts.append(screen(at_work[0], paces[0], width))
    else:
        parts.append(as_text(at_work, in_colour=False, width=width))
        for one, pace in zip(at_work, paces, strict=True):
            parts.append("\n".join([one.name, *_progress(one.status, pace)]))
    if ended:
        parts.append(f"ended:\n{as_text(ended, in_colour=False, width=width)}")
    return "\n\n".join(parts)


def _pace(seen: Sequence[tuple[float, int]]) -> float | None:
    """Return steps a second, as they were watched."""
    if len(seen) < 2 or seen[-1][1] <= seen[0][1]:
        return None
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def screen(one: Listed, pace: float | None, width: int = 100) -> str:
    """Return what is known of a run, as lines of at most `width` characters; `pace` are steps a
    second, if they were watched.
    """
    status = one.status
    records = list(islice(last_records(one.folder / METRICS_FILE), _MAX_SHOWN))[::-1]
    _, score, loss, left = _cells(status)
    if pace and status.steps_ahead:
        left = duration(status.steps_ahead / pace)
    detail = f" ({shown(status.detail, 100)})" if status.detail else ""
    lines = [f"{one.name}: {status.state}{detail}", shown(one.folder, 200), ""]
    lines += _progress(status, pace)
    lines.append(f"time left {left}, last loss {loss}, best score {score}")
    for name, title in (("train/lm_loss", "loss"), ("train/exact_accuracy", "exact")):
        values = [value for r in records if (value := number(r.get(name))) is not None]
        if len(values) > 1:
            lines.append(f"{title:6}{_spark(values)}  {values[-1]:.4g}")
    lines += _events(records)[-_MAX_EVENTS:]
    return "\n".join(line if len(line) <= width else f"{line[: width - 3]}..." for line in lines)


def _progress(status: Status, pace: float | None) -> list[str]:
    """Return a bar and the step, as lines."""
    bar = []
    if status.total_steps and status.step is not None:
        bar = [_bar(min(1.0, status.step / status.total_steps))]
    return [*bar, f"step {_cells(status)[0]}" + (f", {pace:.3g} a second" if pace else "")]


def _events(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return evaluations and warnings, in their order."""
    lines = []
    for record in records:
        if (name := headline_of(record, "eval/")) is not None:
            value = number(record[name])
            found = "not finite" if value is None else percent(value)
            lines.append(f"evaluation at step {record['step']:,}: {measure_in_words(name)} {found}")
        lines += [f"warning: {shown(words, 160)}" for words in listed(record.get(WARNINGS))]
    return lines


def _bar(done: float) -> str:
    full = int(done * _WIDTH)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}] {100 * done:.0f} %"


def _spark(values: Sequence[float]) -> str:
    """Return values as a line of blocks, the means of equal stretches."""
    number_of = min(_WIDTH, len(values))
    ends = [len(values) * place // number_of for place in range(number_of + 1)]
    means = [
        sum(values[start:end]) / (end - start)
        for start, end in zip(ends[:-1], ends[1:], strict=True)
    ]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)
