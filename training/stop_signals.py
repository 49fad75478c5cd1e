"""What asks a run to stop: signals, and the end of its time."""

import math
import signal
import time
from types import FrameType
from typing import Any

from runtime.schema import seconds_of

_SAME_SIGNAL_SECONDS = 2.0


class StopSignals:
    """A context in which SIGTERM, Ctrl-C and the end of `max_time` (a `Duration`) make `requested`
    true: the run saves after its step and ends.

    A second Ctrl-C interrupts at once. One that arrives within two seconds counts as the first:
    the terminal sends it to all processes, and torchrun passes it on once more.
    """

    def __init__(self, max_time: str | None = None) -> None:
        self._seconds = seconds_of(max_time) if max_time else math.inf
        self._first_asked = self._deadline = math.inf
        self._handlers: dict[int, Any] = {}

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def requested(self) -> bool:
        return self._first_asked < math.inf or self.out_of_time

    def __enter__(self) -> "StopSignals":
        self._deadline = time.monotonic() + self._seconds
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
