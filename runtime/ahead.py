"""An iterator that runs ahead of its user, in a thread. Imports no torch."""

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], number: int) -> Generator[T, None, None]:
    """Yield `items`, of which a thread takes up to `number` in advance (0: no thread).

    The order stays, and an error of `items` is raised where its item would come. When the iterator
    is used up or closed (`contextlib.closing`), the thread has ended: it finishes the item that it
    is at, and takes no more.
    """
    if number == 0:
        yield from items
        return
    room, stopping = threading.Semaphore(number), threading.Event()
    taken: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def take() -> None:
        error = None
        while error is None:
            room.acquire()
            if stopping.is_set():
                return
            try:
                taken.put((next(items), None))
            except BaseException as found:  # StopIteration is one of them.
                error = found
        taken.put((None, error))

    thread = threading.Thread(target=take, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = taken.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            room.release()
            yield item
    finally:
        stopping.set()
        room.release()
        thread.join()
