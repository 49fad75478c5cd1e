"""Output to people, which never ends a run: its disk may be full, its reader gone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Output:
    """A text stream that drops what cannot be written, and says so once on standard error.

    Args:
        stream: None: closed before the process started; all is dropped.
    """

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self._name, self._fails = name, stream is None
        self._stream = stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def write(self, text: str) -> int:
        with self._lossy():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._lossy():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _lossy(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._fails:
                self._fails = True
                told = f"{self._name} cannot be written: {error.strerror or error}"
                # A reader that went away, such as `head`, has seen enough.
                if not isinstance(error, BrokenPipeError) and self is not sys.stderr:
                    sys.stderr.write(f"warning: {told}\n")


def guard_output() -> None:
    """Let standard output and standard error drop what cannot be written."""
    # Otherwise the next file that is opened takes the number of a closed one, and its lines.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for attribute, name in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, attribute)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # For letters that its encoding lacks.
        if not isinstance(stream, Output):
            setattr(sys, attribute, Output(stream, name))
