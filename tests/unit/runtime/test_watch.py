"""A waiting rank names the rank that blocks it. Entries in a store play the other ranks."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runtime.watch import Entry, Watch

TIMEOUT = 1.0
WORLD_SIZE = 3


class Others:
    """A store with ranks 1 and 2, which send signs of life unless they are in `dead`. `said` holds
    the message with which rank 0 ends. A store that is not `answering` blocks.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.answering, self._stopping = threading.Event(), threading.Event()
        self.answering.set()
        self.entries = {rank: Entry(entered=1, place="step 5", long=False) for rank in (1, 2)}
        self.dead: set[int] = set()
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def set(self, key: str, value: str, /) -> None:
        self.answering.wait()
        self.values[key] = value

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        self.answering.wait()
        return [self.values[key].encode() for key in keys]

    def change(self, rank: int, **changes: Any) -> None:
        self.entries[rank] = self.entries[rank]._replace(**changes)

    def _live(self) -> None:
        beat = 0
        while not self._stopping.wait(TIMEOUT / 20):
            beat += 1
            for rank, entry in self.entries.items():
                if rank not in self.dead:
                    self.values[f"watch/{rank}"] = json.dumps(entry._replace(beat=beat))

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def others() -> Iterator[Others]:
    others = Others()
    Watch.prepare(others, WORLD_SIZE)
    yield others
    others.end()


@pytest.fixture
def watch(others: Others) -> Iterator[Watch]:
    watch = Watch(0, WORLD_SIZE, others, keeper="rank 9", timeout=TIMEOUT, end=others.said.append)
    watch.start()
    watch.mark("step 6", long=False)
    with watch.collective("broadcast"):
        pass
    yield watch
    others.answering.set()
    watch.stop()


def wait_in_vain(watch: Watch, others: Others, timeouts: float) -> str:
    """Wait in a collective, and return the message that blames a rank; "": none came in time."""
    deadline = time.monotonic() + timeouts * TIMEOUT
    with watch.collective("all_reduce"):
        while not others.said and time.monotonic() < deadline:
            time.sleep(0.01)
    return "".join(others.said)


def late(others: Others) -> None:
    others.change(1, entered=2, inside=True, name="all_reduce", place="step 6")
    others.change(2, name="broadcast")


WAITED = r"; rank 0 has waited \d s, in all_reduce, step 6"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (late, f"rank 2 has made no progress since broadcast, step 5{WAITED}"),
        (
            lambda others: others.dead.add(2),
            f"rank 2 does not answer: its process is stopped, gone or out of reach{WAITED}",
        ),
        (lambda others: others.answering.clear(), f"rank 9 does not answer{WAITED}"),
        (lambda others: others.change(1, farewell="rank 2 did it"), "rank 2 did it"),
    ],
    ids=["late", "dead", "silent", "told"],
)
def test_the_blocking_rank_is_named(
    watch: Watch, others: Others, fault: Callable[[Others], None], message: str
) -> None:
    fault(others)
    assert re.fullmatch(message, wait_in_vain(watch, others, 10))


def test_hosts_are_named_if_there_are_several(watch: Watch, others: Others) -> None:
    watch.hosts = ["a", "a", "b"]
    others.dead.update((1, 2))
    said = wait_in_vain(watch, others, 10)
    assert said.startswith("rank 1 on a and rank 2 on b does not answer: its process is stopped")
    assert "; rank 0 on a has waited " in said


def test_a_silent_store_names_the_ranks_on_other_hosts(watch: Watch, others: Others) -> None:
    watch.hosts = ["a", "a", "b"]
    others.answering.clear()
    said = wait_in_vain(watch, others, 10)
    assert said.startswith("rank 9 (and behind it rank 2 on b) does not answer; rank 0 on a has")


def test_time_outside_waits_does_not_count(watch: Watch, others: Others) -> None:
    for _ in range(8):
        with watch.collective("all_reduce"):
            time.sleep(TIMEOUT / 4)
    assert others.said == []


def test_a_failed_collective_is_explained(watch: Watch, others: Others) -> None:
    def explained() -> str:
        with contextlib.suppress(RuntimeError), watch.collective("all_reduce"):
            raise RuntimeError
        return watch.explain("Connection closed")

    assert explained().startswith("a rank has left, in all_reduce")  # All ranks are alive.
    others.dead.add(1)
    assert explained() == "rank 1 has died, in all_reduce, step 6 (Connection closed)"
    others.change(2, farewell="rank 1 has ended: ConfigError: no")
    assert explained() == "rank 1 has ended: ConfigError: no"


def test_a_leaving_rank_gives_its_reason(watch: Watch, others: Others) -> None:
    watch.stop("rank 0 has ended: DatasetError: bad")
    assert Entry(*json.loads(others.values["watch/0"])).farewell.endswith("DatasetError: bad")
