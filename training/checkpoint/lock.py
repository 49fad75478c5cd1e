"""One run at a time writes into a run's folder.

The lock is flock on a hidden file, which also says whose it is. flock alone is not enough: a child
that a killed run had forked still holds it. So where the lock is held, but the process that took it
is gone, a new file takes the place of the old one. Starts pass a gate one at a time, so that each
sees what the one before has done. Where the file system knows no flock, what the file says is all
there is.

lockf is no choice: its locks go as soon as any descriptor of the file is closed. Imports no torch.
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

from runtime.errors import CheckpointError, ConfigError, LockedError
from training.checkpoint.store import read_json

LOCK_FILE = ".lock"
_GATE_SECONDS = 10.0
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock.

    Attributes:
        host: its name. boot: identifier of the boot and of the process numbers' name space, within
            which `pid` means something.
        pid, started: number of the process, and when it started, in ticks since the boot: numbers
            are used again.
        since: when it took the lock, for people.
    """

    host: str
    boot: str
    pid: int
    started: str
    since: str

    @classmethod
    def this_process(cls) -> "Owner":
        """Describe the process that asks."""
        pid = os.getpid()
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(socket.gethostname(), _boot(), pid, _start_of(pid) or "", now)

    @classmethod
    def recorded(cls, path: Path) -> "Owner | None":
        """Read what a lock's file says; None when it is missing or says nothing."""
        try:
            owner = cls(**read_json(path))
        except (CheckpointError, TypeError):
            return None
        return owner if type(owner.pid) is int else None

    @property
    def is_gone(self) -> bool:
        """Whether it is certain that the process lives no more; of another machine's it never
        is.
        """
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return False
        start = _start_of(self.pid)
        return start is None or start not in ("", self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock on a run's folder, which exists, until the block is left; a process that dies
    in it loses it.

    Raises:
        LockedError: another run holds it; names the folder, the host, the process and since when.
        ConfigError: the folder cannot be written.
    """
    path, own = run_dir / LOCK_FILE, Owner.this_process()
    try:
        with tempfile.TemporaryFile(dir=run_dir) as probe:
            has_flock = _flock(probe.fileno()) is not None
        with _gate(run_dir, has_flock):
            _require_free(path, has_flock)
            descriptor = _take(path, own)
    except OSError as error:
        raise ConfigError(
            f"checkpoint_path={run_dir}: cannot be locked: {error.strerror or error}"
        ) from None
    try:
        yield
    finally:
        # Before the lock goes. Whoever has opened the file by then finds it free, and puts another
        # one in its place.
        if Owner.recorded(path) == own:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _require_free(path: Path, has_flock: bool) -> None:
    owner = Owner.recorded(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return  # No run of ours left a link.
        raise
    try:
        if (has_flock and _flock(descriptor)) or (owner is not None and owner.is_gone):
            return
    finally:
        os.close(descriptor)
    hint = "" if has_flock else f"; if that run is no more, delete {path}"
    raise LockedError(
        f"{path.parent}: another run is at work here ({owner or 'it does not say which'}): "
        f"stop it, or choose another checkpoint_path or run_name{hint}"
    )


def _take(path: Path, own: Owner) -> int:
    """Put a file of our own, locked before anybody can see it, in the place of the lock's; returns
    its descriptor. It is not inherited by programs that this one starts.
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
    """Let one start at a time into the block."""
    path, deadline = run_dir / f"{LOCK_FILE}.gate", time.monotonic() + _GATE_SECONDS
    while (descriptor := _pass(path, has_flock)) is None:
        if time.monotonic() > deadline:
            hint = "" if has_flock else f"; if there is none, delete {path}"
            raise LockedError(f"{run_dir}: another run is about to start here{hint}")
        time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _pass(path: Path, has_flock: bool) -> int | None:
    # With O_EXCL a link is just a file that exists.
    flags = os.O_RDWR | os.O_CREAT | (os.O_NOFOLLOW if has_flock else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ELOOP):
            raise
        if path.is_symlink():
            # Somebody else's, which may lead anywhere.
            path.unlink(missing_ok=True)
        return None
    # The one before deletes the file while it is inside: then this is no longer the gate.
    if has_flock and not (_flock(descriptor) and _is_at(descriptor, path)):
        os.close(descriptor)
        return None
    return descriptor


def _flock(descriptor: int) -> bool | None:
    """Try to lock a file; returns whether that worked, None where there is no flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return None
        raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return when a process of this machine started, in ticks since the boot; None when it lives no
    more, "" when it does but the system does not say since when.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # It lives, and is somebody else's.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name of the program, in brackets, may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
