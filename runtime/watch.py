"""Find the rank that blocks the others. Each rank reports its progress in a store; a rank that has
waited too long names the rank it waits for, and ends.

The main thread only sets attributes. The exchange thread writes this rank's progress to the store
and reads the others'. The judge thread decides whether a wait is too long; it never uses the store,
because the rank that keeps the store may be hanging. Imports no torch.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

End = Callable[[str], object]  # Ends the process with a message; called from a thread.
_BEAT_SECONDS = 0.5
# The number of timeouts to wait for a rank that has announced a long part.
PATIENCE = 3.0


class Entry(NamedTuple):
    """A rank's report in the store."""

    beat: int = 0  # counts up while the process is alive
    entered: int = 0  # number of collectives entered so far
    marks: int = 0  # number of calls of `Watch.mark` so far
    inside: bool = False  # whether the rank waits in a collective
    name: str = ""  # name of the last collective
    place: str = "starting"  # place in the run
    long: bool = True  # whether the current part may take long
    farewell: str = ""  # why the rank has left

    @property
    def progress(self) -> tuple[int, int, bool]:
        """The values that change when the rank makes progress."""
        return self.entered, self.marks, self.inside


class _Seen(NamedTuple):
    """The latest entry of a rank, and the times when its beat and its progress last changed."""

    entry: Entry
    beat_at: float
    moved_at: float


class Watch:
    """The time limit on the waits of one rank, and the context manager for each wait.

    Args:
        store: a connection to torch's store for this Watch alone; one rank has called `prepare`.
        keeper: the name of the store's process, for messages; "": rank 0.
        timeout: seconds until a wait ends.
    Attributes:
        hosts: the host of each rank, for messages; empty until they are known.
    """

    def __init__(
        self, rank: int, world_size: int, store: Any, *, keeper: str, timeout: float, end: End
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self.hosts: Sequence[str] = ()
        self._others = [other for other in range(world_size) if other != rank]
        self._store, self._keeper, self._end = store, keeper, end
        self._beat_seconds = min(_BEAT_SECONDS, timeout / 10)
        # Less often than writing, because each rank reads the entries of all.
        self._read_seconds = max(self._beat_seconds, timeout / 60)
        self._entered = self._marks = 0
        self._name, self._farewell = "", ""
        self._place, self._long = Entry().place, Entry().long
        self._waiting_since: float | None = None
        self._seen: dict[int, _Seen] = {}
        self._asking_since: float | None = None
        self._store_lost = False
        self._read_now, self._stopping = threading.Event(), threading.Event()
        self._farewell_written = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"watch-{target.__name__}", daemon=True)
            for target in (self._exchange, self._judge)
        ]

    @staticmethod
    def prepare(store: Any, world_size: int) -> None:
        """Write a first entry for every rank, in case a rank dies before it writes its own."""
        for rank in range(world_size):
            store.set(_key(rank), json.dumps(Entry()))

    def mark(self, place: str, *, long: bool) -> None:
        """Report progress, see `Ranks.mark`."""
        self._place, self._long = place, long
        self._marks += 1

    def collective(self, name: str) -> "Watch":
        """Return the context for the next collective; all ranks enter them in the same order. To
        wait for results of earlier collectives, use the Watch itself as the context.
        """
        self._entered += 1
        self._name = name
        return self

    def __enter__(self) -> None:
        self._waiting_since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._waiting_since = None

    def start(self) -> None:
        """Write this rank's first entry and start watching."""
        self._write(0)
        for thread in self._threads:
            thread.start()

    def stop(self, farewell: str = "") -> None:
        """Stop watching, and tell the others within 2 s, if possible, why this rank leaves."""
        self._farewell = farewell
        self._stopping.set()
        self._threads[0].join(timeout=2.0)

    def name(self, *ranks: int) -> str:
        """Return "rank 2, 3", with their hosts if the run has several."""
        if len(set(self.hosts)) < 2:
            return f"rank {_listed(ranks)}"
        by_host = groupby(ranks, self.hosts.__getitem__)
        return " and ".join(f"rank {_listed(mine)} on {host}" for host, mine in by_host)

    def explain(self, fault: str) -> str:
        """Return a message that names the rank that made a collective fail with the backend's
        `fault`. Takes about a second, to observe the other ranks.
        """
        began = time.monotonic()
        self._seen = {}
        self._read_now.set()
        where = f"in {self._name}, {self._place} ({fault})"
        while time.monotonic() - began < 4 * self._beat_seconds + 1.0:
            time.sleep(self._beat_seconds / 4)
            seen, now = dict(self._seen), time.monotonic()
            if farewell := _first_farewell(seen):
                return farewell
            if self._is_store_silent(now, 2 * self._beat_seconds):
                return f"{self._silent_keeper()} does not answer any more, {where}"
            if silent := _silent(seen, now - 2.5 * self._beat_seconds):
                return f"{self.name(*silent)} has died, {where}"
        return f"a rank has left, {where}"

    # The exchange thread

    def _exchange(self) -> None:
        beat, next_read = 0, 0.0
        try:
            while not self._stopping.wait(self._beat_seconds):
                beat += 1
                self._asking_since = time.monotonic()
                self._write(beat)
                due = self._waiting_since is not None and time.monotonic() >= next_read
                if due or self._read_now.is_set():
                    next_read = time.monotonic() + self._read_seconds
                    self._read()
                self._asking_since = None
            if self._farewell:
                self._write(beat + 1)
                self._farewell_written.set()
        except RuntimeError:
            # The process with the store has ended. If that is an error, collectives fail too.
            self._store_lost = True

    def _write(self, beat: int) -> None:
        progress = (self._entered, self._marks, self._waiting_since is not None)
        entry = Entry(beat, *progress, self._name, self._place, self._long, self._farewell)
        self._store.set(_key(self.rank), json.dumps(entry))

    def _read(self) -> None:
        values = self._store.multi_get([_key(rank) for rank in self._others])
        now = time.monotonic()
        for rank, value in zip(self._others, values, strict=True):
            entry = Entry(*json.loads(value))
            before, beat_at, moved_at = self._seen.get(rank, _Seen(entry, now, now))
            if entry.beat != before.beat:
                beat_at = now
            if entry.progress != before.progress:
                moved_at = now
            self._seen[rank] = _Seen(entry, beat_at, moved_at)

    # The judge thread

    def _judge(self) -> None:
        now = awake_since = time.monotonic()
        while not self._stopping.wait(self._beat_seconds):
            before, now = now, time.monotonic()
            if now - before > 10 * self._beat_seconds:
                # This process was stopped, and perhaps all were: count anew from now.
                awake_since, self._seen = now, {}
            since = self._waiting_since
            if since is None:
                continue
            message = self._verdict(max(since, awake_since), now)
            if message is not None and self._waiting_since == since:
                self._farewell = message
                self._stopping.set()
                self._farewell_written.wait(1.0)
                self._end(message)

    def _verdict(self, since: float, now: float) -> str | None:
        """Return the message for a wait that is too long, or None if it is not yet."""
        if now - since < self.timeout:
            return None
        seen = dict(self._seen)
        if farewell := _first_farewell(seen):
            return farewell
        blame = self._blame(seen, since, now)
        waited = f"has waited {now - since:.0f} s, in {self._name}, {self._place}"
        return None if blame is None else f"{blame}; {self.name(self.rank)} {waited}"

    def _blame(self, seen: Mapping[int, _Seen], since: float, now: float) -> str | None:
        if self._is_store_silent(now, self.timeout / 2):
            return f"{self._silent_keeper()} does not answer"
        if silent := _silent(seen, now - self.timeout / 2):
            reason = "its process is stopped, gone or out of reach"
            return f"{self.name(*silent)} does not answer: {reason}"
        behind = {r: s for r, s in seen.items() if s.entry.entered < self._entered}
        last = min((s.entry.entered for s in behind.values()), default=0)
        for rank, (entry, _, moved_at) in sorted(behind.items()):
            patience = self.timeout * (PATIENCE if entry.long else 1.0)
            if entry.entered == last and now - max(since, moved_at) >= patience:
                where = "is still in" if entry.inside else "has made no progress since"
                return f"{self.name(rank)} {where} {entry.name or 'its start'}, {entry.place}"
        if not behind and now - since >= self.timeout * PATIENCE:
            return "all ranks are there and nothing happens: the network or a device is stuck"
        return None

    def _silent_keeper(self) -> str:
        if not self._keeper or len(set(self.hosts)) < 2:
            return self._keeper or self.name(0)
        here = self.hosts[self.rank]
        away = [rank for rank in self._others if self.hosts[rank] != here]
        return f"{self._keeper} (and behind it {self.name(*away)})"

    def _is_store_silent(self, now: float, limit: float) -> bool:
        asking_since = self._asking_since
        return self._store_lost or (asking_since is not None and now - asking_since > limit)


def _first_farewell(seen: Mapping[int, _Seen]) -> str | None:
    return next((s.entry.farewell for s in seen.values() if s.entry.farewell), None)


def _silent(seen: Mapping[int, _Seen], since: float) -> list[int]:
    """Return the ranks without a sign of life since a time."""
    return sorted(rank for rank, one in seen.items() if one.beat_at < since)


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _key(rank: int) -> str:
    return f"watch/{rank}"
