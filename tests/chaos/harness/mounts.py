"""Disks that only one process sees, small or read-only, and other limits of one process.

Mounting needs root or a kernel that lets everybody have a user namespace; `available` tells.
"""

import ctypes
import os
import resource
import shutil
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

_CAPABILITIES_VERSION_3, _CAP_DAC_OVERRIDE = 0x20080522, 1

_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Return whether a process may mount a disk here; tried in a child."""
    child = os.fork()
    if child == 0:
        try:
            _own_mounts()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@dataclass(frozen=True)
class SmallDisk:
    """Put a disk of `size` bytes under `folder`, with what is there. When the process ends, in any
    way but a kill, its content is copied to `kept`.
    """

    folder: Path
    size: int
    kept: Path

    def __call__(self) -> None:
        """Mount it in this process."""
        shutil.copytree(self.folder, self.kept)
        _own_mounts()
        _mount(b"tmpfs", self.folder, b"tmpfs", 0, f"size={self.size}")
        shutil.copytree(self.kept, self.folder, dirs_exist_ok=True)
        util.Finalize(None, self._keep, exitpriority=0)

    def _keep(self) -> None:
        shutil.rmtree(self.kept)
        shutil.copytree(self.folder, self.kept)


@dataclass(frozen=True)
class FileSizeLimit:
    """Let no file grow beyond `size` bytes; needs no rights."""

    size: int

    def __call__(self) -> None:
        """Limit this process."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


@dataclass(frozen=True)
class MemoryLimit:
    """Let this process have `more` bytes of address space beyond what it has, and no more."""

    more: int

    def __call__(self) -> None:
        """Limit this process."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + self.more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@dataclass(frozen=True)
class ReadOnly:
    """Let `folder` be on a disk that cannot be written, with what is there."""

    folder: Path

    def __call__(self) -> None:
        """Mount it in this process."""
        _own_mounts()
        _mount(bytes(self.folder), self.folder, b"", _MS_BIND)
        _mount(b"", self.folder, b"", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


@dataclass(frozen=True)
class Protected:
    """Let nobody write below `folder`, and take root's way around that from this process."""

    folder: Path

    def __call__(self) -> None:
        """Take both rights away."""
        for path in [*self.folder.rglob("*"), self.folder]:
            path.chmod(path.stat().st_mode & ~0o222)
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
        sets = (ctypes.c_uint32 * 6)()
        _check(_libc.capget(header, sets))
        for effective_and_permitted in (0, 1):
            sets[effective_and_permitted] &= ~(1 << _CAP_DAC_OVERRIDE)
        _check(_libc.capset(header, sets))


def _own_mounts() -> None:
    user, group = os.getuid(), os.getgid()
    flags = _CLONE_NEWNS if user == 0 else _CLONE_NEWNS | _CLONE_NEWUSER
    _check(_libc.unshare(flags))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(b"none", Path("/"), b"", _MS_REC | _MS_PRIVATE)


def _mount(source: bytes, target: Path, kind: bytes, flags: int, options: str = "") -> None:
    _check(_libc.mount(source, bytes(target), kind, ctypes.c_ulong(flags), options.encode()))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
