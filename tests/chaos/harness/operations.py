"""File operations of a process, caught before they happen, to kill it there, to fail or to record.

These are opening for writing, write, close, fsync, rename, exchange, unlink, mkdir, rmdir, link and
symlink: by Python's audit events, or by patched functions if there is no event. A file of
safetensors is one write.
"""

import builtins
import errno
import functools
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from runtime import files

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# The operations that the disk refuses after the first error too.
_AGAIN = {"ENOSPC": ("open", "write", "close", "fsync", "mkdir", "link", "symlink")}
_AGAIN["EROFS"] = (*_AGAIN["ENOSPC"], "rename", "exchange", "unlink", "rmdir")
_forever = ExitStack()


@dataclass(frozen=True)
class Operation:
    """An operation that is about to happen.

    Attributes:
        name: open, write, close, fsync, rename, exchange, unlink, mkdir, rmdir, link, symlink.
        path: the file or folder.
        other: the new name of a rename, the partner of an exchange.
        tear: does half of a write; None for other operations.
    """

    name: str
    path: Path
    other: Path | None = None
    tear: Callable[[], object] | None = None

    def __str__(self) -> str:
        other = "" if self.other is None else f" -> {self.other.name}"
        return f"{self.name} {self.path.name}{other}"


Before = Callable[[Operation], None]


def striking(kind: str, number: int) -> Before:
    """Return a function that strikes at operation `number` (from 0).

    Args:
        kind: kill; tear (kill in the middle of a write); or the name of an error, with which the
            operation fails (a write in its middle). After ENOSPC all later operations that need
            room fail too, after EROFS all later operations.
    """
    seen = itertools.count()

    def strike(operation: Operation) -> None:
        here = next(seen)
        if here < number or (here > number and operation.name not in _AGAIN.get(kind, ())):
            return
        if operation.tear is not None and kind != "kill":
            operation.tear()
        if kind in ("kill", "tear"):
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, kind)
        raise OSError(code, os.strerror(code), str(operation.path))

    return strike


def strike_at(root: Path, kind: str, number: int) -> None:
    """Strike at an operation below `root`; see `striking`."""
    watch(root, striking(kind, number))


def watch(root: Path, before: Before) -> None:
    """Call `before` for each operation below `root` until this process ends."""
    _forever.enter_context(watching(root, before))


@contextmanager
def watching(root: Path, before: Before) -> Iterator[None]:
    """Call `before` for each operation below `root` in this context, and pass on its errors."""
    _listen()
    watcher = _Watcher(root.resolve(), before)
    _watchers.append(watcher)
    opened = functools.partial(_open, watcher, builtins.open)
    replaced = {
        "builtins.open": opened,
        "io.open": opened,
        "os.fsync": functools.partial(_fsync, watcher, os.fsync),
        "runtime.files.exchange": functools.partial(_exchange, watcher, files.exchange),
        "training.checkpoint.tensors.save_file": functools.partial(_save_file, watcher),
    }
    with ExitStack() as stack:
        stack.callback(_watchers.remove, watcher)
        for name, replacement in replaced.items():
            stack.enter_context(patch(name, replacement))
        yield


class _Watcher:
    def __init__(self, root: Path, before: Before) -> None:
        self.root, self._before = root, before
        self._inside = threading.local()  # A thread may save while another one logs.

    def tell(self, name: str, path: Path, other: Path | None = None, tear: Any = None) -> None:
        # The file operations of `before` itself are not reported.
        if vars(self._inside) or not path.is_relative_to(self.root):
            return
        self._inside.here = True
        try:
            self._before(Operation(name, path, other, tear))
        finally:
            del self._inside.here


_watchers: list[_Watcher] = []


@functools.cache
def _listen() -> None:
    sys.addaudithook(lambda event, found: _hear(event, found) if _watchers else None)


def _hear(event: str, found: tuple[Any, ...]) -> None:
    """Report an audit event to the watchers if it changes a file or folder."""
    match event, found:
        case "open", (str() | bytes() as path, _, int(flags)) if flags & _WRITES:
            told = ("open", _located(path))
        case "os.remove", (path, folder):
            told = ("unlink", _located(path, folder))
        case ("os.mkdir", (path, _, folder)) | ("os.rmdir", (path, folder)):
            told = (event.removeprefix("os."), _located(path, folder))
        case ("os.symlink", (_, path, folder)) | ("os.link", (_, path, _, folder)):
            told = (event.removeprefix("os."), _located(path, folder))
        case "os.rename", (source, target, *folders):
            told = ("rename", _located(source, folders[0]), _located(target, folders[1]))
        case _:
            return
    for watcher in list(_watchers):
        watcher.tell(*told)


def _open(watcher: _Watcher, original: Any, file: Any, mode: str = "r", *more: Any, **how: Any):
    opened = original(file, mode, *more, **how)
    if isinstance(file, int) or not set(mode) & set("wax+"):
        return opened
    path = _located(file)
    return _WatchedFile(opened, path, watcher) if path.is_relative_to(watcher.root) else opened


def _fsync(watcher: _Watcher, original: Any, file: Any) -> None:
    watcher.tell("fsync", _path_of(file if isinstance(file, int) else file.fileno()))
    original(file)


def _exchange(watcher: _Watcher, original: Any, first: Path, second: Path) -> bool:
    watcher.tell("exchange", _located(first), _located(second))
    return original(first, second)


def _save_file(watcher: _Watcher, tensors: Any, file: Any) -> None:
    from safetensors.torch import save_file

    path = _located(file)

    def tear() -> None:
        save_file(tensors, file)
        os.truncate(path, path.stat().st_size // 2)

    watcher.tell("open", path)
    watcher.tell("write", path, tear=tear)
    save_file(tensors, file)


class _WatchedFile:
    """A file opened for writing that reports its writes and its closing."""

    def __init__(self, file: Any, path: Path, watcher: _Watcher) -> None:
        self._file, self._path, self._watcher = file, path, watcher

    def write(self, data: Any) -> Any:
        def tear() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._watcher.tell("write", self._path, tear=tear)
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._watcher.tell("close", self._path)
            finally:
                self._file.close()

    def __enter__(self) -> "_WatchedFile":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _located(path: Any, folder: int = -1) -> Path:
    parent = Path.cwd() if folder == -1 else _path_of(folder)
    return Path(os.path.normpath(parent / os.fsdecode(path)))


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
