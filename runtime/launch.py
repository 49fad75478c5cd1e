"""What a launcher tells a process, and how a process that is one of several leaves. Imports no
torch.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from runtime.errors import EXIT_PREEMPTED, EXIT_RANK, Preempted
from runtime.text import shown

_MAX_MESSAGE = 10_000

# Where `scripts/launch.py` wants to find the exit codes of its ranks: torchrun drops them.
EXIT_CODES_FOLDER = "RANK_EXIT_CODES_FOLDER"


def launched() -> bool:
    """Whether a launcher made this process one of several (or the only one of them)."""
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


def say(message: str) -> None:
    """Tell people in one line on standard error what went wrong; nothing if there is no message."""
    # Names from a stranger's files may hold what steers a terminal.
    line = shown(" ".join(message.split("\n")), _MAX_MESSAGE)
    if line:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {line}\n")


@contextmanager
def stop_at_once() -> Iterator[None]:
    """Let SIGTERM end the block at once, as Preempted: before training begins there is nothing to
    save, and behind it everything is saved. In between the trainer heeds signals.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if isinstance(sys.exception(), Preempted):
            return  # It has heeded one signal, and is closing what was open.
        said = "asked to stop while it was not training; the same command goes on"
        raise Preempted("" if env_rank() else said)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def enter() -> None:
    """Note that this rank begins, for whoever wants its exit code."""
    if folder := os.environ.get(EXIT_CODES_FOLDER):
        path = _exit_code_file(Path(folder))
        path.parent.mkdir(exist_ok=True)
        path.touch()


def leave(code: int) -> NoReturn:
    """End the process. Among ranks at once: the threads of a process group can bring the
    interpreter down while it clears up, and a run that succeeded would count as one that failed.
    """
    if not launched():
        sys.exit(code)
    if folder := os.environ.get(EXIT_CODES_FOLDER):
        _exit_code_file(Path(folder)).write_text(str(code))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def common_exit_code(folder: Path) -> int | None:
    """Return the exit code with which the ranks of this machine left at their last attempt; None
    when they left with several, or without.

    Ranks that were killed do not count, nor do those that left because another was gone: torchrun
    ends the others when one has left, by the signal that a scheduler sends, so that a rank that
    failed before training began leaves others preempted. Once it has begun, a single
    EXIT_PREEMPTED tells that all have saved.

    Args:
        folder: what the ranks were given as EXIT_CODES_FOLDER.
    """
    attempts = sorted(folder.iterdir(), key=lambda attempt: int(attempt.name))
    said = {path.read_text() for path in attempts[-1].iterdir()} if attempts else set()
    codes = {int(code) for code in said if code}
    causes = codes - {EXIT_RANK, EXIT_PREEMPTED} or codes - {EXIT_RANK} or codes
    return causes.pop() if len(causes) == 1 else None


def _exit_code_file(folder: Path) -> Path:
    return folder / os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") / f"rank_{env_rank()}"
