"""The write of a checkpoint in a thread: its end, its errors, and the memory for it."""

import threading
from collections.abc import Callable

import pytest
import torch

from runtime.errors import CheckpointError, NonFiniteError
from runtime.ranks import Ranks
from training.checkpoint import background
from training.checkpoint.background import BackgroundWrite


@pytest.fixture
def writing() -> BackgroundWrite:
    return BackgroundWrite(Ranks("cpu"))


def failing(error: BaseException) -> Callable[[], None]:
    def write() -> None:
        raise error

    return write


def test_training_goes_on_until_it_waits_for_the_write(writing: BackgroundWrite) -> None:
    may_end, done = threading.Event(), []

    def write() -> None:
        may_end.wait(30.0)
        done.append(3)

    writing.start(3, write, wait=False)
    writing.finish(wait=False)
    assert (writing.step, done) == (3, [])
    may_end.set()
    writing.finish()
    assert (writing.step, done) == (None, [3])
    writing.finish()
    writing.start(4, write, wait=True)
    assert (writing.step, len(done)) == (None, 2)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CheckpointError("step_3: no room"), CheckpointError),
        (NonFiniteError("step 3: no number"), NonFiniteError),
        (OSError("no room"), CheckpointError),
        (KeyError("a bug"), KeyError),
    ],
)
def test_an_error_is_raised_as_without_a_thread(
    writing: BackgroundWrite, wait: bool, error: Exception, raised: type[Exception]
) -> None:
    with pytest.raises(raised, match=str(error)):  # noqa: PT012
        writing.start(3, failing(error), wait=wait)
        writing.finish()
    with pytest.raises(ZeroDivisionError), writing:
        raise ZeroDivisionError


@pytest.mark.parametrize("end", [None, NonFiniteError("step 5: the loss"), KeyboardInterrupt()])
def test_a_block_does_not_end_before_the_write(
    writing: BackgroundWrite, end: BaseException | None
) -> None:
    entered, ended = threading.Event(), []

    def write() -> None:
        entered.wait(30.0)
        ended.append(True)
        raise CheckpointError("step_3: no room")

    # What ends the run is told, not the failure of a save beside it.
    with pytest.raises(type(end) if end else CheckpointError), writing:  # noqa: PT012
        writing.start(3, write, wait=False)
        entered.set()
        if end:
            raise end
    assert ended == [True]


def test_a_tensor_that_is_not_finite_is_told_before_the_loss_that_follows(
    writing: BackgroundWrite,
) -> None:
    with pytest.raises(NonFiniteError, match="a tensor"), writing:  # noqa: PT012
        writing.start(3, failing(NonFiniteError("a tensor")), wait=False)
        raise NonFiniteError("a loss")


def test_a_copy_needs_room_for_itself_and_as_much_again(
    writing: BackgroundWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(background, "warn", told.append)
    monkeypatch.setattr(background, "host_memory_left", lambda: 2e9)
    assert writing.has_room(10**9)
    assert told == []
    assert not writing.has_room(10**9 + 1)
    assert not writing.has_room(3 * 10**9)
    assert len(told) == 1
    assert "2 GB of memory are left, a copy takes 1 GB" in told[0]


def test_the_memory_of_the_last_copies_is_room_for_the_next(
    writing: BackgroundWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "host_memory_left", lambda: 1e6)
    assert not writing.has_room(10**6)
    writing.copied({"model": {"weight": torch.zeros(250_000)}})
    assert writing.has_room(10**6)
