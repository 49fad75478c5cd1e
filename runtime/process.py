"""How a process stops, reports an error and exits under a launcher. Imports no torch."""

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

# Names the folder in which `scripts/launch.py` collects the exit codes that torchrun loses.
EXIT_CODES_FOLDER = "RANK_EXIT_CODES_FOLDER"
ENDS_WITH = "RUN_ENDS_WITH_PROCESS"
"""Environment variable: number of the process that started this one, which ends with it."""


def end_with_parent() -> None:
    """Send this process SIGTERM, so that it saves and ends, when the sweep that started it dies."""
    parent = os.environ.get(ENDS_WITH)
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
    """Return whether a launcher made this process a rank (perhaps the only one)."""
    return "RANK" in os.environ


def env_rank() -> int:
    """Return this process's rank as the launcher set it."""
    return int(os.environ.get("RANK", "0"))


def env_local_rank() -> int:
    """Return this process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def env_world_size() -> int:
    """Return the number of ranks as the launcher set it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def env_max_restarts() -> int:
    """Return how often torchrun would start this run again."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))


def print_error(message: str) -> None:
    """Print a message for people as one line on standard error; an empty one prints nothing."""
    # Names from other people's files may contain control characters of a terminal.
    if line := shown(message.replace("\n", " "), _MAX_MESSAGE):
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {line}\n")


@contextmanager
def preempt_on_sigterm() -> Iterator[None]:
    """Raise Preempted in the block as soon as SIGTERM arrives: before and after training, when
    there is nothing to save. During training the trainer has its own handler.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if isinstance(sys.exception(), Preempted):
            return  # A second signal, while the first one is being handled.
        message = "asked to stop while it was not training; the same command resumes the run"
        raise Preempted("" if env_rank() else message)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_waits() -> Iterator[None]:
    """Let SIGTERM wait for the end of the block, which an exception must not leave."""
    # Not by a mask: the kernel would give the signal to another thread, and Python to this one.
    arrived: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if arrived:
            signal.raise_signal(signal.SIGTERM)


def note_start() -> None:
    """Create this rank's empty file for `common_exit_code`, where the launcher wants one."""
    if folder := os.environ.get(EXIT_CODES_FOLDER):
        path = _exit_code_file(Path(folder))
        path.parent.mkdir(exist_ok=True)
        path.touch()


def leave(code: int) -> NoReturn:
    """End the process with an exit code. A rank skips Python's clean-up: threads of a process
    group can crash it, and a run that succeeded would count as failed.
    """
    if not launched():
        sys.exit(code)
    if folder := os.environ.get(EXIT_CODES_FOLDER):
        _exit_code_file(Path(folder)).write_text(str(code))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def common_exit_code(folder: Path) -> int | None:
    """Return the one exit code that explains how the ranks of this machine ended their last
    attempt; None when several explain it or no rank wrote one.

    EXIT_RANK (another rank was gone) and EXIT_PREEMPTED are consequences where there is another
    code: when one rank fails, torchrun stops the others with the signal that a scheduler sends.
    EXIT_PREEMPTED wins over EXIT_RANK: a single rank that says so has saved with all others, if
    training had begun.
    """
    attempts = sorted(folder.iterdir(), key=lambda attempt: int(attempt.name))
    texts = {path.read_text() for path in attempts[-1].iterdir()} if attempts else set()
    codes = {int(text) for text in texts if text}
    causes = codes - {EXIT_RANK, EXIT_PREEMPTED} or codes - {EXIT_RANK} or codes
    return causes.pop() if len(causes) == 1 else None


def _exit_code_file(folder: Path) -> Path:
    return folder / os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") / f"rank_{env_rank()}"
