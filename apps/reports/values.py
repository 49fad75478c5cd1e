"""JSON that others have written, within limits; `evaluation.values` takes it apart."""

import json
from typing import Any

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
