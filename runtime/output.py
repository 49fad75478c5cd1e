"""Standard output and error that never end a run, even if the disk is full or the reader gone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Output:
    """A text stream that drops text it cannot write, with one warning on standard error. A `stream`
    of None was closed before the process started: all its text is dropped.
    """

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self._name, self._fails = name, stream is None
        self._stream = stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def write(self, text: str) -> int:
        with self._dropping_errors():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _dropping_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._fails:
                self._fails = True
                # No warning if the reader left, like `head` after ten lines.
                if not isinstance(error, BrokenPipeError) and self is not sys.stderr:
                    reason = error.strerror or error
                    sys.stderr.write(f"warning: {self._name} cannot be written: {reason}\n")


def guard_output() -> None:
    """Make standard output and standard error drop text that they cannot write."""
    # Otherwise the next opened file would take the number of a closed stream, and receive its text.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for attribute, name in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, attribute)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # For letters missing in its encoding.
        if not isinstance(stream, Output):
            setattr(sys, attribute, Output(stream, name))
