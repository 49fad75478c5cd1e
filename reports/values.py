"""Values of JSON that others have written: what is not of the wanted kind counts as missing."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from evaluation.metrics import Estimate, wilson

MAX_VALUES = 3_000_000
"""Values of JSON that are read: each takes up to about 100 bytes of memory."""


def num_values(content: bytes) -> int:
    """Return how many values a text of JSON has at most, without reading it."""
    return 1 + sum(map(content.count, (b",", b"[", b"{")))


def parsed(content: bytes, most: int = MAX_VALUES) -> Any:
    """Return what a text of JSON says.

    Raises:
        ValueError: it is not JSON.
        OSError: it has more than `most` values.
        RecursionError: it is nested too deep.
    """
    if num_values(content) > most:
        raise OSError(f"holds more than {most:,} values")
    return json.loads(content)


def number(value: Any) -> float | None:
    """Return a finite number of JSON as such; None for anything else."""
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def number_in(text: str) -> float | None:
    """Return the finite number that a text is; None where it is none."""
    with suppress(ValueError):
        return number(float(text))
    return None


def at(value: Any, *path: str | int) -> Any:
    """Return what stands at a path of nested JSON; None where there is nothing."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def listed(value: Any) -> list[Any]:
    """Return a list of JSON as such; an empty one for anything else."""
    return value if isinstance(value, list) else []


def items(value: Any) -> list[tuple[str, Any]]:
    """Return the items of an object of JSON; none of anything else."""
    return list(value.items()) if isinstance(value, Mapping) else []


def estimate_of(value: Any) -> Estimate | None:
    """Return a figure of an evaluation's JSON with its interval, None where it has no value."""
    found = number(at(value, "value"))
    if found is None:
        return None
    return Estimate(found, number(at(value, "low")), number(at(value, "high")))


def share_of(share: float | None, count: int) -> Estimate | None:
    """Return a share of so many puzzles with its interval; None where it is none."""
    if share is None or not 0 <= share <= 1 or not 0 < count < 2**53:
        return None
    return wilson(round(share * count), count)
