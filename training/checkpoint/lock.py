"""The lock on a run's folder: one run at a time writes into it.

The lock is flock on a hidden file, in which the owner is recorded. flock alone is not enough: a
child process of a killed run still holds it. So when the file is locked but its owner has ended, a
new file replaces it. A second lock, the gate, lets one start at a time do this. On a file system
without flock the recorded owner alone decides.

lockf does not work here: its locks end when any descriptor of the file is closed. Imports no torch.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from runtime.errors import CheckpointError, ConfigError, LockedError, disk_errors
from training.checkpoint.store import read_json

LOCK_FILE = ".lock"
_GATE_SECONDS = 10.0
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@dataclass(frozen=True)
class Owner:
    """The process that has taken a lock."""

    host: str
    boot: str  # Identifies the boot and the pid namespace of the machine.
    pid: int
    started: str  # In ticks since the boot: process numbers are used again.
    since: str  # When it took the lock, for messages.

    @classmethod
    def this_process(cls) -> "Owner":
        pid = os.getpid()
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(socket.gethostname(), _boot(), pid, _start_of(pid) or "", now)

    @classmethod
    def recorded(cls, path: Path) -> "Owner | None":
        """Return the owner recorded in a lock's file; None when there is none."""
        try:
            owner = cls(**read_json(path))
        except (CheckpointError, TypeError):
            return None
        return owner if type(owner.pid) is int else None

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended; never certain for one of another machine."""
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        start = _start_of(self.pid)
        return start is None or start not in ("", self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextlib.contextmanager
def run_lock(run_dir: Path, instead: str = "another checkpoint_path or run_name") -> Iterator[None]:
    """Lock a run's folder, which exists, until the block is left or the process ends.

    Args:
        instead: what else a second run may choose, for messages.
    Raises:
        LockedError: another run has locked it; names the folder and that process.
        ConfigError: the folder cannot be written.
    """
    path, own = run_dir / LOCK_FILE, Owner.this_process()
    with disk_errors(run_dir, ConfigError):
        with tempfile.TemporaryFile(dir=run_dir) as probe:
            has_flock = _flock(probe.fileno()) is not None
        with _gate(run_dir, has_flock):
            _require_free(path, has_flock, instead)
            descriptor = _take(path, own)
    try:
        yield
    finally:
        # Before the lock is released. A start that has opened the file by then finds it unlocked,
        # and replaces it.
        if Owner.recorded(path) == own:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _require_free(path: Path, has_flock: bool, instead: str) -> None:
    owner = Owner.recorded(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return  # A link was not made by a run.
        raise
    try:
        if (has_flock and _flock(descriptor)) or (owner is not None and owner.is_gone):
            return
    finally:
        os.close(descriptor)
    hint = "" if has_flock else f"; if that run has ended, delete {path}"
    raise LockedError(
        f"{path.parent}: another run is using this folder ({owner or 'unknown process'}): "
        f"stop it, or choose {instead}{hint}"
    )


def _take(path: Path, own: Owner) -> int:
    """Replace the lock's file by one that names `own` and is already locked.

    Returns its descriptor, which programs started by this process do not inherit.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _flock(descriptor)
        os.write(descriptor, json.dumps(asdict(own)).encode())
        new.replace(path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    return descriptor


@contextlib.contextmanager
def _gate(run_dir: Path, has_flock: bool) -> Iterator[None]:
    """Let one start at a time into the block; LockedError when another is in it for too long."""
    path, deadline = run_dir / f"{LOCK_FILE}.gate", time.monotonic() + _GATE_SECONDS
    while (descriptor := _enter_gate(path, has_flock)) is None:
        if time.monotonic() > deadline:
            hint = "" if has_flock else f"; if there is none, delete {path}"
            raise LockedError(f"{run_dir}: another run is just starting in this folder{hint}")
        time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _enter_gate(path: Path, has_flock: bool) -> int | None:
    """Return the descriptor of the gate's file, or None while another start is in the gate."""
    # With O_EXCL a link is just a file that exists.
    flags = os.O_RDWR | os.O_CREAT | (os.O_NOFOLLOW if has_flock else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ELOOP):
            raise
        if path.is_symlink():
            path.unlink(missing_ok=True)  # Not made by a run; it may lead anywhere.
        return None
    if not has_flock:
        return descriptor
    with contextlib.suppress(FileNotFoundError):
        # The start before has deleted the file if it is no longer at its path: try again.
        if _flock(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    os.close(descriptor)
    return None


def _flock(descriptor: int) -> bool | None:
    """Try to lock a file; return whether it worked, or None on a file system without flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return None
        raise
    return True


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return when a process of this machine started, in ticks since the boot; None when it has
    ended, "" when it is alive but the start is unknown.
    """
    try:
        with contextlib.suppress(PermissionError):  # It is alive, and of another user.
            os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    # The name of the program, in brackets, may contain anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
