"""The lock on a run's folder: only one run at a time writes into it.

The lock is flock on a hidden file that names its owner. flock alone is not enough, because a child
process of a killed run still holds it: if the file is locked but its owner has ended, a new file
replaces it. A second lock, the gate, lets one starting run at a time do this. On a file system
without flock the recorded owner alone decides.

lockf would not work: its locks end when any descriptor of the file is closed. Imports no torch.
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
    """The process that holds a lock."""

    host: str
    boot: str  # Identifies the boot of the machine and the pid namespace.
    pid: int
    started: str  # The process's start, in ticks since the boot: its number may be used again.
    since: str  # The time when it took the lock, for messages.

    @classmethod
    def this_process(cls) -> "Owner":
        pid = os.getpid()
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(socket.gethostname(), _boot(), pid, _start_of(pid) or "", now)

    @classmethod
    def recorded(cls, path: Path) -> "Owner | None":
        """Return the owner recorded in a lock's file, or None if the file records none."""
        try:
            owner = cls(**read_json(path))
        except (CheckpointError, TypeError):
            return None
        return owner if type(owner.pid) is int else None

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended; False for one of another machine or boot."""
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        start = _start_of(self.pid)
        return start is None or start not in ("", self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextlib.contextmanager
def run_lock(run_dir: Path, instead: str = "another checkpoint_path") -> Iterator[None]:
    """Lock a run's existing folder until the end of the block or of the process.

    Args:
        instead: the settings that the message tells a second run to change.
    Raises:
        LockedError: another run has locked the folder; names the folder and that process.
        ConfigError: the folder cannot be written.
    """
    path, own = run_dir / LOCK_FILE, Owner.this_process()
    with disk_errors(run_dir, ConfigError):
        with tempfile.TemporaryFile(dir=run_dir) as probe:
            has_flock = _flock(probe.fileno()) is not None
        with _gate(run_dir, has_flock):
            _require_free(path, has_flock, instead)
            descriptor = _replace_lock_file(path, own)
    try:
        yield
    finally:
        # Delete the file before releasing the lock. A run that has just opened the file finds it
        # unlocked, and replaces it.
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
            return  # ELOOP: a link, which no run has made.
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


def _replace_lock_file(path: Path, own: Owner) -> int:
    """Replace the lock's file by a locked file that names `own`, and return its descriptor, which
    programs started by this process do not inherit.
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
    """Let one run at a time into the block; raise LockedError if another stays in it too long."""
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
    """Return the descriptor of the gate's file, or None while another run is in the gate."""
    # O_EXCL follows no link either.
    flags = os.O_RDWR | os.O_CREAT | (os.O_NOFOLLOW if has_flock else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ELOOP):
            raise
        if path.is_symlink():
            path.unlink(missing_ok=True)  # No run makes links, and a link may lead anywhere.
        return None
    if not has_flock:
        return descriptor
    with contextlib.suppress(FileNotFoundError):
        # If the file is no longer at its path, the run before has deleted it: try again.
        if _flock(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    os.close(descriptor)
    return None


def _flock(descriptor: int) -> bool | None:
    """Try to lock a file. Return whether it worked, or None on a file system without flock."""
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
    """Return the start of a local process in ticks since the boot: None if the process has ended,
    "" if it lives but its start is unknown.
    """
    try:
        with contextlib.suppress(PermissionError):  # It lives and belongs to another user.
            os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    # The program's name stands in brackets and may contain anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
