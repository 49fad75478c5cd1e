"""Find the rank that the others wait for: every rank reports its progress in a store, and a rank
that has waited for too long says for whom, and ends.

The main thread only sets attributes. A first thread writes this rank's progress to the store and
reads that of the others; a second one decides whether the wait is too long. The rank that hangs may
be the one that keeps the store, so the second thread never uses it. Imports no torch.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol

_BEAT_SECONDS = 0.5
# The others wait so many timeouts for a rank that has said that the next part may take long.
PATIENCE = 3.0


class Store(Protocol):
    """The methods of torch's stores that are used here."""

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return values, and wait for those that are not set yet."""
        ...


class Entry(NamedTuple):
    """What a rank reports of itself.

    Attributes:
        beat: counts up as long as the process is alive.
        entered: number of collectives entered so far.
        marks: number of calls of `Watch.mark` so far.
        inside: whether it waits in a collective.
        name: of the last collective.
        place: where in the run it is.
        long: whether the present part may take long.
        farewell: why it has left.
    """

    beat: int = 0
    entered: int = 0
    marks: int = 0
    inside: bool = False
    name: str = ""
    place: str = "starting"
    long: bool = True
    farewell: str = ""

    @property
    def progress(self) -> tuple[int, int, bool]:
        """What changes when the rank does something."""
        return self.entered, self.marks, self.inside


class _Seen(NamedTuple):
    """The latest entry of a rank, the time when `beat` last changed, and the time when its progress
    last changed.
    """

    entry: Entry
    beaten: float
    moved: float


class Watch:
    """Watches the waits of one rank, and is the context manager of each of them.

    Args:
        rank: number of this process.
        world_size: how many there are.
        store: a connection that has no other user; one rank calls `prepare` on it first.
        keeper: who keeps the store, for messages.
        timeout: seconds after which a wait ends.
        end: ends the process with a message; called from a thread.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        *,
        keeper: str,
        timeout: float,
        end: Callable[[str], Any],
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self._world_size, self._store, self._keeper, self._end = world_size, store, keeper, end
        self._beat_seconds = min(_BEAT_SECONDS, timeout / 10)
        # Reading costs more than writing: each rank reads the entries of all.
        self._read_seconds = max(self._beat_seconds, timeout / 60)
        self._entered = self._marks = 0
        self._name, self._farewell = "", ""
        self._place, self._long = Entry().place, Entry().long
        self._since: float | None = None
        self._seen: dict[int, _Seen] = {}
        self._asking_since: float | None = None
        self._store_lost = False
        self._eager = threading.Event()
        self._stopping = threading.Event()
        self._told = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"watch-{target.__name__}", daemon=True)
            for target in (self._exchange, self._judge)
        ]

    @staticmethod
    def prepare(store: Store, world_size: int) -> None:
        """Give every rank a first entry, so that reading works if one dies before it writes one."""
        for rank in range(world_size):
            store.set(_key(rank), json.dumps(Entry()))

    # Called by the main thread

    def mark(self, place: str, *, long: bool) -> None:
        """Report progress.

        Args:
            place: where in the run this rank is.
            long: the next part may take long; the others wait PATIENCE timeouts for it.
        """
        self._place, self._long = place, long
        self._marks += 1

    def collective(self, name: str) -> "Watch":
        """Return the context for a collective; all ranks enter them in the same order."""
        self._entered += 1
        self._name = name
        return self

    def wait(self) -> "Watch":
        """Return the context for a wait for the result of earlier collectives."""
        return self

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._since = None

    def start(self) -> None:
        """Write this rank's first entry, and begin to watch."""
        self._write(0)
        for thread in self._threads:
            thread.start()

    def stop(self, farewell: str = "") -> None:
        """Stop watching, and tell the others why this rank leaves (if possible within 2 s).

        Args:
            farewell: the reason; empty when there is none.
        """
        self._farewell = farewell
        self._stopping.set()
        self._threads[0].join(timeout=2.0)

    def explain(self, fault: str) -> str:
        """Return a message that names the rank for which a collective has failed at once.

        Takes about a second: the other ranks are observed for so long.

        Args:
            fault: what the backend said, for the message.
        """
        began = time.monotonic()
        self._seen = {}
        self._eager.set()
        while time.monotonic() - began < 4 * self._beat_seconds + 1.0:
            time.sleep(self._beat_seconds / 4)
            seen, now = dict(self._seen), time.monotonic()
            if farewell := _first_farewell(seen):
                return farewell
            if self._store_lost or self._store_silence(now) > 2 * self._beat_seconds:
                return f"{self._keeper} does not answer any more, {self._where()} ({fault})"
            silent = [r for r, s in seen.items() if now - s.beaten > 2.5 * self._beat_seconds]
            if silent:
                return f"{_ranks(silent)} has died, {self._where()} ({fault})"
        return f"a rank has left, {self._where()} ({fault})"

    # The first thread

    def _exchange(self) -> None:
        beat, next_read = 0, 0.0
        try:
            while not self._stopping.wait(self._beat_seconds):
                beat += 1
                self._asking_since = time.monotonic()
                self._write(beat)
                waiting = self._since is not None or self._eager.is_set()
                if waiting and (self._eager.is_set() or time.monotonic() >= next_read):
                    next_read = time.monotonic() + self._read_seconds
                    self._read()
                self._asking_since = None
            if self._farewell:
                self._write(beat + 1)
                self._told.set()
        except RuntimeError:
            # The keeper of the store has ended. If that is an error, the collectives fail too.
            self._store_lost = True

    def _write(self, beat: int) -> None:
        progress = (self._entered, self._marks, self._since is not None)
        entry = Entry(beat, *progress, self._name, self._place, self._long, self._farewell)
        self._store.set(_key(self.rank), json.dumps(entry))

    def _read(self) -> None:
        others = [rank for rank in range(self._world_size) if rank != self.rank]
        values = self._store.multi_get([_key(rank) for rank in others])
        now = time.monotonic()
        for rank, value in zip(others, values, strict=True):
            entry, before = Entry(*json.loads(value)), self._seen.get(rank)
            if before is None:
                before = _Seen(entry, now, now)
            has_beaten = entry.beat != before.entry.beat
            has_moved = entry.progress != before.entry.progress
            self._seen[rank] = _Seen(
                entry, now if has_beaten else before.beaten, now if has_moved else before.moved
            )

    # The second thread

    def _judge(self) -> None:
        now = awake_since = time.monotonic()
        while not self._stopping.wait(self._beat_seconds):
            before, now = now, time.monotonic()
            if now - before > 10 * self._beat_seconds:
                # This process was stopped, and perhaps all were: start to count anew.
                awake_since, self._seen = now, {}
            since = self._since
            if since is None:
                continue
            message = self._verdict(max(since, awake_since), now)
            if message is not None and self._since == since:
                self._farewell = message
                self._stopping.set()
                self._told.wait(1.0)
                self._end(message)

    def _verdict(self, since: float, now: float) -> str | None:
        """Return the message of a wait that is too long; None while it is not."""
        if now - since < self.timeout:
            return None
        seen = dict(self._seen)
        if farewell := _first_farewell(seen):
            return farewell
        blame = self._blame(seen, since, now)
        if blame is None:
            return None
        return f"{blame}; rank {self.rank} has waited {now - since:.0f} s, {self._where()}"

    def _blame(self, seen: Mapping[int, _Seen], since: float, now: float) -> str | None:
        if self._store_lost or self._store_silence(now) > self.timeout / 2:
            return f"{self._keeper} does not answer"
        silent = [r for r, s in seen.items() if now - s.beaten > self.timeout / 2]
        if silent:
            return f"{_ranks(silent)} does not answer: its process is stopped or gone"
        behind = {r: s for r, s in seen.items() if s.entry.entered < self._entered}
        last = min((s.entry.entered for s in behind.values()), default=0)
        for rank, (entry, _, moved) in sorted(behind.items()):
            patience = self.timeout * (PATIENCE if entry.long else 1.0)
            if entry.entered == last and now - max(since, moved) >= patience:
                where = "is still in" if entry.inside else "has made no progress since"
                return f"rank {rank} {where} {entry.name or 'its start'}, {entry.place}"
        if not behind and now - since >= self.timeout * PATIENCE:
            return "all ranks are there and nothing happens: the network or a device is stuck"
        return None

    def _store_silence(self, now: float) -> float:
        asking_since = self._asking_since
        return 0.0 if asking_since is None else now - asking_since

    def _where(self) -> str:
        return f"in {self._name}, {self._place}"


def _first_farewell(seen: Mapping[int, _Seen]) -> str | None:
    return next((s.entry.farewell for s in seen.values() if s.entry.farewell), None)


def _key(rank: int) -> str:
    return f"watch/{rank}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, sorted(ranks)))}"
