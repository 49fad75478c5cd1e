"""How far something is, for people who wait: bars at a terminal, lines in a log."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tqdm import tqdm

from runtime.text import duration

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
) -> "tqdm | Lines":
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
    show &= total != 0
    if not sys.stderr.isatty():
        return Lines(items, what, unit, total, done, show=show)
    return tqdm(
        items,
        what,
        total,
        initial=done,
        unit=f" {unit}",
        disable=not show,
        delay=0 if leave else _DELAY_SECONDS,
        mininterval=0.5,
        dynamic_ncols=True,
        leave=leave,
    )


class Lines:
    """What `tqdm` is to a terminal, in plain lines: at most one a minute, each complete."""

    def __init__(
        self,
        items: Iterable[Any] | None,
        what: str,
        unit: str,
        total: int | None,
        done: int,
        *,
        show: bool,
    ) -> None:
        self._items, self._what, self._unit = items, what, unit
        self.n, self.total, self._first, self._show = done, total, done, show
        self._began = self._told = time.monotonic()
        self._figures: Mapping[str, str] = {}

    def update(self, number: int = 1) -> None:
        """Count what was done; write a line if the last one is a minute old."""
        self.n += number
        now = time.monotonic()
        if self._show and now - self._told >= _LINE_SECONDS:
            self._told = now
            sys.stderr.write(f"{self._line(now - self._began)}\n")
            sys.stderr.flush()

    def set_postfix(self, figures: Mapping[str, str], refresh: bool = True) -> None:
        """Add figures to the lines to come."""
        self._figures = figures

    def _line(self, seconds: float) -> str:
        """Return: training: 1,200 of 5,000 steps (24 %), about 12 min left, loss 1.2."""
        words = [f"{self.n:,} {self._unit}"]
        if self.total:
            share = 100 * self.n // self.total
            words = [f"{self.n:,} of {self.total:,} {self._unit} ({share} %)"]
            if self._first < self.n < self.total:
                left = seconds / (self.n - self._first) * (self.total - self.n)
                words.append(f"about {duration(left)} left")
        words += [f"{name} {value}" for name, value in self._figures.items()]
        return f"{self._what}: {', '.join(words)}"

    def __iter__(self) -> Iterator[Any]:
        for item in self._items or ():
            yield item
            self.update()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End, as bars do."""
