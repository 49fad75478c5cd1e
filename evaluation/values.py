"""Read values from JSON of unknown origin: a value of another type counts as missing."""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from evaluation.metrics import Estimate, wilson


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else."""
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def number_in(text: str) -> float | None:
    """Parse a finite number; return None for any other text."""
    with suppress(ValueError):
        return number(float(text))
    return None


def at(value: Any, *path: str | int) -> Any:
    """Return the value at a path of nested JSON; None if it is missing."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def listed(value: Any) -> list[Any]:
    """Return a list as it is; an empty list for anything else."""
    return value if isinstance(value, list) else []


def items(value: Any) -> list[tuple[str, Any]]:
    """Return the items of a JSON object; an empty list for anything else."""
    return list(value.items()) if isinstance(value, Mapping) else []


def estimate_of(value: Any) -> Estimate | None:
    """Parse a figure of an evaluation with its interval; return None if it has no value."""
    found = number(at(value, "value"))
    if found is None:
        return None
    return Estimate(found, number(at(value, "low")), number(at(value, "high")))


def share_of(share: float | None, count: int) -> Estimate | None:
    """Return a share of `count` puzzles with its interval; None if it is not a share."""
    if share is None or not 0 <= share <= 1 or not 0 < count < 2**53:
        return None
    return wilson(round(share * count), count)
