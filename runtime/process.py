"""Stopping, reporting errors and exiting under a launcher. Imports no torch."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from runtime.errors import EXIT_PREEMPTED, EXIT_RANK, Preempted
from runtime.text import shown

_MAX_MESSAGE = 10_000
_PARENT_SECONDS = 1.0

# Environment variables.
EXIT_CODES_FOLDER = "RANK_EXIT_CODES_FOLDER"
"""The folder where `scripts/launch.py` collects the ranks' exit codes, which torchrun loses."""
PARENT_PID = "RUN_ENDS_WITH_PROCESS"
"""The number of the parent process. This process stops when the parent ends."""


def end_with_parent() -> None:
    """Send this process SIGTERM, so that it saves and ends, when the sweep that started it dies."""
    parent = os.environ.get(PARENT_PID)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(_PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def num_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def launched() -> bool:
    """Return whether a launcher started this process as a rank, perhaps the only one."""
    return "RANK" in os.environ


def env_rank() -> int:
    """Return this process's rank, as set by the launcher."""
    return int(os.environ.get("RANK", "0"))


def env_local_rank() -> int:
    """Return this process's rank on its machine, as set by the launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def env_world_size() -> int:
    """Return the number of ranks, as set by the launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def env_max_restarts() -> int:
    """Return the number of restarts that torchrun allows."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))


def print_error(message: str) -> None:
    """Print a message as one line on standard error; print nothing if it is empty."""
    # Names in other people's files may contain control characters.
    if line := shown(message.replace("\n", " "), _MAX_MESSAGE):
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {line}\n")


@contextmanager
def preempt_on_sigterm() -> Iterator[None]:
    """Raise Preempted in the block as soon as SIGTERM arrives. Used before and after training, with
    nothing to save; during training the trainer sets its own handler.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if isinstance(sys.exception(), Preempted):
            return  # The first signal is still being handled.
        message = "asked to stop while it was not training; the same command resumes the run"
        raise Preempted("" if env_rank() else message)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def delay_sigterm() -> Iterator[None]:
    """Handle SIGTERM only after the block, for code that no exception may interrupt."""
    # A signal mask would not help: another thread would receive the signal and hand it to this one.
    arrived: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if arrived:
            signal.raise_signal(signal.SIGTERM)


def note_start() -> None:
    """Create this rank's empty file for `common_exit_code`, if the launcher collects codes."""
    if folder := os.environ.get(EXIT_CODES_FOLDER):
        path = _exit_code_file(Path(folder))
        path.parent.mkdir(exist_ok=True)
        path.touch()


def note_code(code: int) -> None:
    """Write this rank's exit code for `common_exit_code`, if the launcher collects codes."""
    if folder := os.environ.get(EXIT_CODES_FOLDER):
        _exit_code_file(Path(folder)).write_text(str(code))


def leave(code: int) -> NoReturn:
    """End the process with an exit code. A rank skips Python's clean-up, because a process group's
    threads can crash in it, and a successful run would count as failed.
    """
    if not launched():
        sys.exit(code)
    note_code(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def common_exit_code(folder: Path) -> int | None:
    """Return the exit code that caused this machine's ranks to end their last attempt, or None if
    there are several causes or no code was written.

    Beside any other code, EXIT_RANK (another rank was gone) and EXIT_PREEMPTED are consequences:
    when one rank fails, torchrun stops the others with a scheduler's signal. EXIT_PREEMPTED wins
    over EXIT_RANK, because a preempted rank has saved with all others, if training had begun.
    """
    attempts = sorted(folder.iterdir(), key=lambda attempt: int(attempt.name))
    texts = {path.read_text() for path in attempts[-1].iterdir()} if attempts else set()
    codes = {int(text) for text in texts if text}
    causes = codes - {EXIT_RANK, EXIT_PREEMPTED} or codes - {EXIT_RANK} or codes
    return causes.pop() if len(causes) == 1 else None


def _exit_code_file(folder: Path) -> Path:
    return folder / os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") / f"rank_{env_rank()}"
