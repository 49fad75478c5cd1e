"""Handlers of the signals that ask a run to stop."""

import math
import signal
import time
from types import FrameType
from typing import Any

_SAME_SIGNAL_SECONDS = 2.0


class StopSignals:
    """A context in which SIGTERM and Ctrl-C set `requested`: the run saves after its step and ends.

    A second Ctrl-C interrupts at once. One that arrives within two seconds counts as the first:
    the terminal sends it to all processes, and torchrun passes it on once more.
    """

    def __init__(self) -> None:
        self.requested = False
        self._first_asked = math.inf
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and now - self._first_asked > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt
        self._first_asked = min(self._first_asked, now)
        self.requested = True
