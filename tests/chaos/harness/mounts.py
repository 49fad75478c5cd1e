"""Small or read-only disks that only one process sees, and other limits of one process.

Mounting needs root, or a kernel that grants user namespaces to everybody; see `available`.
"""

import ctypes
import os
import resource
import shutil
from multiprocessing import util
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

_CAPABILITIES_VERSION_3, _CAP_DAC_OVERRIDE = 0x20080522, 1

_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Return whether a process may mount a disk here (it tries in a child)."""
    child = os.fork()
    if child == 0:
        try:
            _own_mounts()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def small_disk(folder: Path, size: int, kept: Path) -> None:
    """Put `folder` with its content on a disk of `size` bytes.

    Unless it is killed, the process copies the content to `kept` at its end.
    """
    shutil.copytree(folder, kept)
    _own_mounts()
    _mount(b"tmpfs", folder, b"tmpfs", 0, f"size={size}")
    shutil.copytree(kept, folder, dirs_exist_ok=True)

    def keep() -> None:
        shutil.rmtree(kept)
        shutil.copytree(folder, kept)

    util.Finalize(None, keep, exitpriority=0)


def limit_file_size(size: int) -> None:
    """Let no file grow beyond `size` bytes; this needs no rights."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def limit_memory(more: int) -> None:
    """Limit this process to `more` bytes of address space beyond its present size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def read_only(folder: Path) -> None:
    """Put `folder` with its content on a read-only disk."""
    _own_mounts()
    _mount(bytes(folder), folder, b"", _MS_BIND)
    _mount(b"", folder, b"", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def protect(folder: Path) -> None:
    """Forbid writing below `folder`; this process loses root's right to write anyway."""
    for path in [*folder.rglob("*"), folder]:
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
