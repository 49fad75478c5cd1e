"""An iterator that runs ahead: the same items and errors in the same places, and no thread left."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from runtime.ahead import ahead
from runtime.errors import DatasetError, Preempted


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ahead"]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_items_come_in_their_order(number: int) -> None:
    assert list(ahead(iter(range(100)), number)) == list(range(100))
    assert list(ahead(iter(()), number)) == []
    assert threads() == []


def failing(error: BaseException) -> Iterator[int]:
    yield from range(3)
    raise error


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("error", [DatasetError("row 7"), MemoryError("all"), Preempted("now")])
def test_an_error_is_raised_where_its_item_would_come(number: int, error: BaseException) -> None:
    items = ahead(failing(error), number)
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(type(error)) as raised:
        next(items)
    assert raised.value is error
    assert threads() == []


def test_it_takes_no_more_than_the_number_in_advance() -> None:
    begun = []
    fourth = threading.Event()

    def items() -> Iterator[int]:
        for number in range(10):
            begun.append(number)
            if number == 3:
                fourth.set()
            yield number

    with closing(ahead(items(), 2)) as taken:
        assert [next(taken), next(taken)] == [0, 1]
        assert fourth.wait(30)
        # Two were used and two wait: for a fifth there is no room, however long one looks on.
        assert not threading.Event().wait(0.1)
        assert begun == [0, 1, 2, 3]
    assert threads() == []


def test_whoever_stops_ends_the_thread() -> None:
    used = []

    def items() -> Iterator[int]:
        while True:
            used.append(threading.current_thread().name)
            yield 0

    with closing(ahead(items(), 2)) as taken:
        next(taken)
        assert threads() == ["ahead"]
    assert threads() == []
    assert set(used) == {"ahead"}
