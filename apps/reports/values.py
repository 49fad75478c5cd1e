"""Parse untrusted JSON within limits; `evaluation.values` reads its parts."""

import json
from typing import Any

import numpy as np

MAX_VALUES = 3_000_000
"""Most values of JSON to parse: each takes up to about 100 bytes of memory."""


def num_values(content: bytes) -> int:
    """Return an upper bound of the number of values in JSON, without parsing it."""
    return 1 + sum(map(content.count, (b",", b"[", b"{")))


def parsed(content: bytes, most: int = MAX_VALUES) -> Any:
    """Parse JSON.

    Raises:
        ValueError: `content` is not JSON.
        OSError: it has more than `most` values.
        RecursionError: it is nested too deep.
    """
    if num_values(content) > most:
        raise OSError(f"holds more than {most:,} values")
    return json.loads(content)


def square(rows: Any, most: int) -> np.ndarray | None:
    """Return rows of numbers as float64 [n, n], with n at most `most`; None if they are no such."""
    try:
        found = np.array(rows, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.ndim == 2 and found.shape[0] == found.shape[1] <= most else None
