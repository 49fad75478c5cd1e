"""Bars with the time left, for people who wait at a terminal."""

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

_DELAY_SECONDS = 1.0


def bar(
    items: Iterable[Any] | None,
    what: str,
    unit: str,
    *,
    total: int | None = None,
    show: bool = True,
) -> tqdm:
    """Return `items` with a bar on standard error that is gone at the end; without items, a bar
    that `update` moves on.

    It is shown where that is a terminal, there is something to wait for, and it takes more than a
    second.

    Args:
        what: what is being done.
        unit: of what, in the plural.
        total: how many there will be; None: as many as `items` has.
        show: whether this process shows any.
    """
    return tqdm(
        items,
        what,
        total,
        unit=f" {unit}",
        disable=None if show and total != 0 else True,
        delay=_DELAY_SECONDS,
        dynamic_ncols=True,
        leave=False,
    )
