"""Errors that end a run, and their exit codes for launchers and schedulers."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_CONFIG = 2
EXIT_DATA = 3
EXIT_CHECKPOINT = 4
EXIT_NON_FINITE = 5
EXIT_LOCKED = 6
EXIT_RANK = 7
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130

# A folder without write permission is a mistake in the settings, not damage to the data.
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)


class ConfigError(ValueError):
    """A setting cannot be used; the message has its name, its value and the accepted values."""


class DatasetError(ValueError):
    """A data set is missing, damaged or contradicts itself; the message names the file."""


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged or does not fit, or a run's file cannot be written; the
    message names the file.
    """


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not finite. The model is not updated, and nothing is saved."""


class LockedError(RuntimeError):
    """Another run is using the folder; the message names the folder and the process."""


class RankError(RuntimeError):
    """Another rank is dead or silent; the message names the rank if known, collective and step."""


class Preempted(BaseException):
    """A signal asked the run to stop, and its state, if it had any yet, is saved. The message is
    empty on ranks that should print nothing. `except Exception` does not catch this error.
    """


@contextmanager
def disk_errors(path: Path, kind: type[Exception]) -> Iterator[None]:
    """Turn an OSError in the block into a `kind` that names `path` and the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: {error.strerror or error}") from None


_EXIT_CODES = {
    ConfigError: EXIT_CONFIG,
    DatasetError: EXIT_DATA,
    CheckpointError: EXIT_CHECKPOINT,
    NonFiniteError: EXIT_NON_FINITE,
    LockedError: EXIT_LOCKED,
    RankError: EXIT_RANK,
    Preempted: EXIT_PREEMPTED,
}


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of an error meant for users, or None for a bug in this project."""
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), None)
