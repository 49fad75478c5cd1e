"""Whom a rank that waits blames; ranks are played by entries in a store."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from runtime.watch import PATIENCE, Entry, Watch

TIMEOUT = 1.0
WORLD_SIZE = 3


class Memory:
    """A store; `blocked`, it does not answer."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.answering = threading.Event()
        self.answering.set()

    def set(self, key: str, value: str, /) -> None:
        self.answering.wait()
        self.values[key] = value

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        self.answering.wait()
        return [self.values[key].encode() for key in keys]


class Others:
    """Ranks 1 and 2: what they say, with hearts that beat unless they are in `dead`."""

    def __init__(self, store: Memory) -> None:
        self.entries = {rank: Entry(entered=1, place="step 5", long=False) for rank in (1, 2)}
        self.dead: set[int] = set()
        self._store, self._stopping = store, threading.Event()
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        beat = 0
        while not self._stopping.wait(TIMEOUT / 20):
            beat += 1
            for rank, entry in self.entries.items():
                if rank not in self.dead:
                    self._store.values[f"watch/{rank}"] = json.dumps(entry._replace(beat=beat))

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def store() -> Memory:
    store = Memory()
    Watch.prepare(store, WORLD_SIZE)
    return store


@pytest.fixture
def others(store: Memory) -> Iterator[Others]:
    others = Others(store)
    yield others
    others.end()


@pytest.fixture
def said() -> list[str]:
    """What rank 0 says at its end."""
    return []


@pytest.fixture
def watch(store: Memory, said: list[str]) -> Iterator[Watch]:
    watch = Watch(0, WORLD_SIZE, store, keeper="rank 9", timeout=TIMEOUT, end=said.append)
    watch.start()
    watch.mark("step 6", long=False)
    with watch.collective("broadcast"):
        pass
    yield watch
    store.answering.set()
    watch.stop()


def wait_in_vain(watch: Watch, said: list[str], timeouts: float) -> str:
    """Stay in a collective until somebody is blamed; "" when nobody is within so many timeouts."""
    deadline = time.monotonic() + timeouts * TIMEOUT
    with watch.collective("all_reduce"):
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
    return said[0] if said else ""


def late(others: Others, store: Memory) -> None:
    others.entries[1] = Entry(entered=2, inside=True, name="all_reduce", place="step 6", long=False)
    others.entries[2] = others.entries[2]._replace(name="broadcast")


def dead(others: Others, store: Memory) -> None:
    others.dead.add(2)


def silent(others: Others, store: Memory) -> None:
    store.answering.clear()


def told(others: Others, store: Memory) -> None:
    others.entries[1] = others.entries[1]._replace(farewell="rank 2 did it")


WAITED = r"; rank 0 has waited \d s, in all_reduce, step 6"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (late, f"rank 2 has made no progress since broadcast, step 5{WAITED}"),
        (dead, f"rank 2 does not answer: its process is stopped or gone{WAITED}"),
        (silent, f"rank 9 does not answer{WAITED}"),
        (told, "rank 2 did it"),
    ],
)
def test_the_rank_that_is_waited_for_is_named(
    watch: Watch,
    others: Others,
    store: Memory,
    said: list[str],
    fault: Callable[[Others, Memory], None],
    message: str,
) -> None:
    fault(others, store)
    assert re.fullmatch(message, wait_in_vain(watch, said, 10))


def test_a_rank_that_said_it_takes_long_is_waited_for(
    watch: Watch, others: Others, said: list[str]
) -> None:
    others.entries = {rank: entry._replace(long=True) for rank, entry in others.entries.items()}
    assert wait_in_vain(watch, said, 0.7 * PATIENCE) == ""
    # Not for ever.
    assert wait_in_vain(watch, said, 10 * PATIENCE).startswith("rank 1 has made no progress")


def test_a_rank_that_makes_progress_is_waited_for(
    watch: Watch, others: Others, said: list[str]
) -> None:
    deadline = time.monotonic() + 4 * TIMEOUT
    with watch.collective("all_reduce"):
        while time.monotonic() < deadline:
            for rank, entry in others.entries.items():
                others.entries[rank] = entry._replace(marks=entry.marks + 1)
            time.sleep(TIMEOUT / 10)
    assert said == []


def test_time_outside_of_waits_does_not_count(
    watch: Watch, others: Others, said: list[str]
) -> None:
    for _ in range(8):
        with watch.collective("all_reduce"):
            time.sleep(TIMEOUT / 4)
    assert said == []


def test_a_collective_that_failed_is_explained(watch: Watch, others: Others) -> None:
    def explained() -> str:
        with contextlib.suppress(RuntimeError), watch.collective("all_reduce"):
            raise RuntimeError
        return watch.explain("Connection closed")

    assert explained().startswith("a rank has left, in all_reduce")  # All are alive.
    others.dead.add(1)
    assert explained() == "rank 1 has died, in all_reduce, step 6 (Connection closed)"
    gone = "rank 1 has ended: ConfigError: no"
    others.entries[2] = others.entries[2]._replace(farewell=gone)
    assert explained() == gone


def test_a_rank_that_leaves_says_why(watch: Watch, store: Memory) -> None:
    watch.stop("rank 0 has ended: DatasetError: bad")
    assert Entry(*json.loads(store.values["watch/0"])).farewell.endswith("DatasetError: bad")
