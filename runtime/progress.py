"""How far something is, for people who wait: bars at a terminal, lines in a log."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

_DELAY_SECONDS = 1.0
_LINE_SECONDS = 60.0


def bar(
    items: Iterable[Any] | None,
    what: str,
    unit: str,
    *,
    total: int | None = None,
    done: int = 0,
    show: bool = True,
    leave: bool = False,
) -> tqdm:
    """Return `items` with a bar on standard error; without items, a bar that `update` moves on.
    Where that is no terminal, as in a scheduler's log, it gets a line a minute instead.

    It is shown where there is something to wait for, and it takes more than a second.

    Args:
        what: what is being done.
        unit: of what, in the plural.
        total: how many there will be; None: as many as `items` has.
        done: how many were done before.
        show: whether this process shows any.
        leave: whether the bar stays at its end.
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    told = {"initial": done, "unit": f" {unit}", "disable": not show or total == 0}
    if sys.stderr.isatty():
        delay = 0 if leave else _DELAY_SECONDS
        form = {"delay": delay, "mininterval": 0.5, "dynamic_ncols": True, "leave": leave}
        return tqdm(items, what, total, **form, **told)
    left = " of {total:,}{unit} ({percentage:.0f} %), about {remaining} left"
    line = "{desc}: {n:,}" + (left if total else "{unit}") + "{postfix}"
    wait = {"delay": _LINE_SECONDS, "mininterval": _LINE_SECONDS, "miniters": 1}
    return Lines(items, what, total, bar_format=line, **wait, **told)


class Lines(tqdm):
    """A bar in plain lines, each complete."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write: training: 1,200 of 5,000 steps (24 %), about 12:03 left, loss=1.2."""
        self.total = self.total and max(self.total, self.n)  # Jobs that are tried again count, too.
        sys.stderr.write(f"{self}\n")
        sys.stderr.flush()

    def clear(self, nolock: bool = False) -> None:
        """Do nothing: lines stay."""

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        """Write a line, but not because another one was printed, where tqdm asks with `nolock`."""
        if not nolock:
            self.display()

    def close(self) -> None:
        """End, without a line."""
        self.disable = True
