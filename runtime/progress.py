"""Progress for people who wait: bars in a terminal, lines in a log."""

import sys
from collections.abc import Iterable, Mapping
from threading import RLock
from typing import Any

from tqdm import tqdm

from runtime.text import terminal_width

_DELAY_SECONDS = 1.0
_LINE_SECONDS = 60.0
_WITH_FIGURES = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_BAR_MAY_LOSE = 8  # Of the ten characters of a bar without a width.


class Bar(tqdm):
    """A bar without tqdm's own thread, and with a lock that does not choose how this process will
    start others.
    """

    monitor_interval = 0

    def show(self, figures: Mapping[str, str]) -> None:
        """Show figures from the next move on. On a terminal: as many as fit, from the first on."""
        width, shown = terminal_width(sys.stderr), list(figures.items())
        while True:
            self.set_postfix(dict(shown), refresh=False)
            line = self.format_meter(**{**self.format_dict, "ncols": None})
            if not shown or width is None or len(line) <= width + _BAR_MAY_LOSE:
                return
            shown.pop()


Bar.set_lock(RLock())


def bar(
    items: Iterable[Any] | None,
    what: str,
    unit: str,
    *,
    total: int | None = None,
    done: int = 0,
    show: bool = True,
    leave: bool = False,
) -> Bar:
    """Return `items` with a progress bar on standard error; if None, a bar to move by `update`.
    A terminal shows the bar after a second; a log gets a line a minute instead.

    Args:
        what: the name of the work.
        unit: the name of the items, in the plural.
        total: the number of items; None: len(items). A total of 0 shows nothing.
        done: the number of items that were done before.
        show: False: show nothing.
        leave: show the bar at once, and keep it at its end. It has figures, not a rate.
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    common = {"initial": done, "unit": f" {unit}", "disable": not show or total == 0}
    if sys.stderr.isatty():
        delay = 0 if leave else _DELAY_SECONDS
        form = {"delay": delay, "mininterval": 0.5, "dynamic_ncols": True, "leave": leave}
        return Bar(
            items, what, total, bar_format=_WITH_FIGURES if leave else None, **form, **common
        )
    left = " of {total:,}{unit} ({percentage:.0f} %), about {remaining} left"
    line = "{desc}: {n:,}" + (left if total else "{unit}") + "{postfix}"
    wait = {"delay": _LINE_SECONDS, "mininterval": _LINE_SECONDS, "miniters": 1}
    return _Lines(items, what, total, bar_format=line, **wait, **common)


class _Lines(Bar):
    """A progress bar that writes complete lines instead of moving."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write: training: 1,200 of 5,000 steps (24 %), about 12:03 left, loss=1.2."""
        self.total = self.total and max(self.total, self.n)  # Repeated jobs may exceed the total.
        sys.stderr.write(f"{self}\n")
        sys.stderr.flush()

    def clear(self, nolock: bool = False) -> None:
        """Do nothing: lines stay."""

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        """Write a line, unless tqdm only redraws the bar after other output (`nolock`)."""
        if not nolock:
            self.display()

    def close(self) -> None:
        """End without a line."""
        self.disable = True
