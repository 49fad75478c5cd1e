"""Who is missing when a rank waits: every rank tells the others how far it has come, and one that
has waited too long says for whom and ends.

Two threads beside the main one, which only writes plain attributes: the first carries what this
rank does to the store and what the others do from it, the second judges. The store may be kept by
the very rank that hangs, so the judge never asks it anything. Imports no torch.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol

_BEAT_SECONDS = 0.5
# How much longer others wait for a rank that has said that it will be long.
PATIENCE = 3.0


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str, /) -> None:
        """Keep a value."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return values, waiting for those that are not there yet."""
        ...


class Entry(NamedTuple):
    """What a rank tells of itself.

    Attributes:
        beat: counts up as long as the process lives. entered: collectives entered so far. marks:
            signs of progress given so far.
        inside: whether it waits in a collective, which is called `name`. place: where in the run
            it is. long: whether what it does may take long. farewell: why it has left.
    """

    beat: int = 0
    entered: int = 0
    marks: int = 0
    inside: bool = False
    name: str = ""
    place: str = "starting"
    long: bool = True
    farewell: str = ""


class _Seen(NamedTuple):
    """The latest entry of a rank, and since when its heart has not beaten and it has not moved."""

    entry: Entry
    beaten: float
    moved: float


class Watch:
    """Watches one rank's waits; used as the context of each of them.

    Args:
        store: `prepare`d by one rank; a connection that nobody else uses. keeper: who keeps it, in
            words.
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
        # Reading is dearer than telling: everyone's entries for everyone.
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
        """Give every rank an entry, so that one that dies before its first leaves no gap."""
        for rank in range(world_size):
            store.set(_key(rank), json.dumps(Entry()))

    # What the main thread says.

    def mark(self, place: str, *, long: bool) -> None:
        """Say where in the run this rank is; each call is a sign of progress.

        Args:
            long: what follows may take several times as long as anyone would wait otherwise.
        """
        self._place, self._long = place, long
        self._marks += 1

    def collective(self, name: str) -> "Watch":
        """Return the context of a collective, which all ranks enter in the same order."""
        self._entered += 1
        self._name = name
        return self

    def wait(self) -> "Watch":
        """Return the context of a wait for what the last collectives bring."""
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
        """Tell of this rank, once at least, and begin to watch."""
        self._tell(0)
        for thread in self._threads:
            thread.start()

    def stop(self, farewell: str = "") -> None:
        """Leave; the others learn why, if there is something to say and they can be told soon."""
        self._farewell = farewell
        self._stopping.set()
        self._threads[0].join(timeout=2.0)

    def explain(self, fault: str) -> str:
        """Return who is to blame for a collective that failed at once; takes about a second."""
        began = time.monotonic()
        self._seen = {}
        self._eager.set()
        while time.monotonic() - began < 4 * self._beat_seconds + 1.0:
            time.sleep(self._beat_seconds / 4)
            seen, now = dict(self._seen), time.monotonic()
            if told := [s.entry.farewell for s in seen.values() if s.entry.farewell]:
                return told[0]
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
                self._tell(beat)
                waiting = self._since is not None or self._eager.is_set()
                if waiting and (self._eager.is_set() or time.monotonic() >= next_read):
                    next_read = time.monotonic() + self._read_seconds
                    self._read()
                self._asking_since = None
            if self._farewell:
                self._tell(beat + 1)
                self._told.set()
        except RuntimeError:
            # Its keeper has ended; if that is a fault, the collectives say so too.
            self._store_lost = True

    def _tell(self, beat: int) -> None:
        entry = Entry(
            beat,
            self._entered,
            self._marks,
            self._since is not None,
            self._name,
            self._place,
            self._long,
            self._farewell,
        )
        self._store.set(_key(self.rank), json.dumps(entry))

    def _read(self) -> None:
        others = [rank for rank in range(self._world_size) if rank != self.rank]
        values = self._store.multi_get([_key(rank) for rank in others])
        now = time.monotonic()
        for rank, value in zip(others, values, strict=True):
            entry, before = Entry(*json.loads(value)), self._seen.get(rank)
            if before is None:
                before = _Seen(entry, now, now)
            old = before.entry
            moved = (entry.entered, entry.marks, entry.inside) != (
                old.entered,
                old.marks,
                old.inside,
            )
            self._seen[rank] = _Seen(
                entry,
                now if entry.beat != old.beat else before.beaten,
                now if moved else before.moved,
            )

    # The second thread

    def _judge(self) -> None:
        now = awake_since = time.monotonic()
        while not self._stopping.wait(self._beat_seconds):
            before, now = now, time.monotonic()
            if now - before > 10 * self._beat_seconds:
                # This process was stopped, and perhaps all were: nobody is late yet.
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
        """Say who has kept this rank waiting for too long, if anyone has."""
        if now - since < self.timeout:
            return None
        seen = dict(self._seen)
        if told := [s.entry.farewell for s in seen.values() if s.entry.farewell]:
            return told[0]
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
                where = "stays in" if entry.inside else "has not come on since"
                return f"rank {rank} {where} {entry.name or 'its start'}, {entry.place}"
        if not behind and now - since >= self.timeout * PATIENCE:
            return "all ranks are there and nothing happens: the network or a device is stuck"
        return None

    def _store_silence(self, now: float) -> float:
        asking_since = self._asking_since
        return 0.0 if asking_since is None else now - asking_since

    def _where(self) -> str:
        return f"in {self._name}, {self._place}"


def _key(rank: int) -> str:
    return f"watch/{rank}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, sorted(ranks)))}"
