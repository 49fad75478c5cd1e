"""Text for people: tables, numbers, and untrusted values made safe to print."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO


def shown(value: object, limit: int = 60) -> str:
    """Return a value as one line of at most `limit` characters, with unprintable ones escaped."""
    text = _text(value, str)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(value: object) -> str:
    """Return a value as a Python literal, shortened and escaped by `shown`."""
    return shown(_text(value, repr))


def many(number: int, thing: str, things: str | None = None) -> str:
    """Return a number and its noun in singular or plural: 1 cell, 2 cells."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def duration(seconds: float) -> str:
    """Return a duration in words: 45 s, 6 min 10 s, 3 h 5 min, 4 days 2 h."""
    whole = round(min(seconds, 1e12))
    for unit, size, part, small in (
        ("days", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= (size if unit != "days" else 2 * size):
            rest = whole % size // small
            return f"{whole // size:,} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def short(value: float) -> str:
    """Return a number with three digits, or all digits before the point: 0.0123, 12.3, 1,234."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def run_named(text: str) -> Path:
    """Return the run in a command line's argument, which may be RUN or checkpoint=RUN."""
    return Path(text.removeprefix("checkpoint="))


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equal length as a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def figures(values: Mapping[str, float], width: int | None) -> str:
    """Return named figures on one line, or one a line if that is longer than `width`."""
    parts = [f"{name} {value:.4f}" for name, value in values.items()]
    line = ", ".join(parts)
    return line if width is None or len(line) <= width else "\n".join(["", *parts])


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of a terminal in characters, or None if the stream is no terminal."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def colours(stream: TextIO) -> bool:
    """Return whether a stream shows colours and drawn lines: it is a terminal that knows them, and
    NO_COLOR is not set.
    """
    knows = os.environ.get("TERM") != "dumb" and "utf" in (stream.encoding or "").lower()
    return stream.isatty() and knows and not os.environ.get("NO_COLOR")


def _text(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "a value nested very deeply"
