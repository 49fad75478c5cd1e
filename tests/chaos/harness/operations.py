"""Every change that a process makes to files, seen before it happens: to kill there, to fail there,
or to write it down.

Seen are opening for writing, write, close, fsync, rename, replace, exchange, unlink, mkdir, rmdir,
link and symlink, through `os`, `open`, `pathlib`, `shutil` and numpy, and what safetensors writes
(as one write of the whole file).
"""

import builtins
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEEDS_ROOM = ("open", "write", "close", "fsync", "mkdir", "link", "symlink")
_forever = ExitStack()


@dataclass(frozen=True)
class Operation:
    """An operation that is about to happen.

    Attributes:
        name: open, write, close, fsync, rename, exchange, unlink, mkdir, rmdir, link, symlink.
        path: what it happens to.
        other: the new name of a rename, the partner of an exchange.
        tear: does half of a write; None where there are no halves.
    """

    name: str
    path: Path
    other: Path | None = None
    tear: Callable[[], object] | None = None

    def __str__(self) -> str:
        other = "" if self.other is None else f" -> {self.other.name}"
        return f"{self.name} {self.path.name}{other}"


Before = Callable[[Operation], None]


# Faults


def kill_at(root: Path, number: int, torn: bool = False) -> None:
    """kill -9 before operation `number` (from 0) below `root`; `torn`: in the middle of a write."""
    watch(root, nth(number, killing(torn=torn)))


def fail_at(root: Path, number: int, error: int, lasting: bool = False) -> None:
    """Let operation `number` (from 0) below `root` fail with `error`; `lasting`: see `nth`."""
    watch(root, nth(number, refusing(error), lasting=lasting))


def fail_all(root: Path, error: int) -> None:
    """Let every operation below `root` fail with `error`."""
    watch(root, refusing(error))


def killing(*, torn: bool) -> Before:
    """Return what kills this process; `torn`: in the middle of a write."""

    def strike(operation: Operation) -> None:
        if torn and operation.tear is not None:
            operation.tear()
        os.kill(os.getpid(), signal.SIGKILL)

    return strike


def refusing(error: int) -> Before:
    """Return what lets an operation fail, a write in its middle."""

    def strike(operation: Operation) -> None:
        if operation.tear is not None:
            operation.tear()
        raise OSError(error, os.strerror(error), str(operation.path))

    return strike


def nth(number: int, strike: Before, *, lasting: bool = False) -> Before:
    """Return what strikes at operation `number`; `lasting`: and at all later ones that need room
    too.
    """
    seen = 0

    def count(operation: Operation) -> None:
        nonlocal seen
        seen += 1
        if seen - 1 == number or (lasting and seen - 1 > number and operation.name in _NEEDS_ROOM):
            strike(operation)

    return count


# Watching


def watch(root: Path, before: Before) -> None:
    """Call `before` for each operation below `root` from now on, until this process ends."""
    _forever.enter_context(watching(root, before))


@contextmanager
def watching(root: Path, before: Before) -> Iterator[None]:
    """Call `before` for each operation below `root` in this context; what it raises, the operation
    raises.
    """
    hook = _Hook(root.resolve(), before)
    with ExitStack() as stack:
        for owner, name, replacement in hook.replacements():
            stack.enter_context(patch.object(owner, name, replacement))
        yield


class _Hook:
    def __init__(self, root: Path, before: Before) -> None:
        self.root, self._before, self._inside = root, before, False

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield (module, name, replacement) for all that is watched."""

        def opening(path: Any, flags: int, *_: Any, dir_fd: int | None = None) -> Operation | None:
            return Operation("open", _located(path, dir_fd)) if flags & _WRITES else None

        def flush(file: Any) -> Operation:
            return Operation("fsync", _path_of(file if isinstance(file, int) else file.fileno()))

        def on_path(name: str) -> Callable[..., Operation]:
            return lambda path, *_, dir_fd=None: Operation(name, _located(path, dir_fd))

        def on_two(source: Any, target: Any, **fds: Any) -> tuple[Path, Path]:
            source = _located(source, fds.get("src_dir_fd"))
            return source, _located(target, fds.get("dst_dir_fd"))

        def move(*paths: Any, **fds: Any) -> Operation:
            return Operation("rename", *on_two(*paths, **fds))

        def on_link(name: str) -> Callable[..., Operation]:
            # It is the new name that changes something.
            return lambda *paths, **fds: Operation(name, *reversed(on_two(*paths[:2], **fds)))

        def swap(first: Path, second: Path) -> Operation:
            return Operation("exchange", _located(first), _located(second))

        opened = self._open(builtins.open)
        yield from ((builtins, "open", opened), (io, "open", opened))
        described: dict[str, Callable[..., Operation | None]] = {
            **{"open": opening, "fsync": flush, "unlink": on_path("unlink")},
            **{"remove": on_path("unlink"), "mkdir": on_path("mkdir"), "rmdir": on_path("rmdir")},
            **{"rename": move, "replace": move},
            **{"link": on_link("link"), "symlink": on_link("symlink")},
        }
        for name, describe in described.items():
            yield os, name, self._told(getattr(os, name), describe)
        yield from _by_identity("runtime.files", "exchange", lambda old: self._told(old, swap))
        yield from _by_identity("safetensors.torch", "save_file", self._save_file)

    def tell(self, operation: Operation) -> None:
        # What `before` itself does to files is not looked at.
        if self._inside or not operation.path.is_relative_to(self.root):
            return
        self._inside = True
        try:
            self._before(operation)
        finally:
            self._inside = False

    def _told(
        self, original: Callable[..., Any], describe: Callable[..., Operation | None]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            operation = describe(*arguments, **options)
            if operation is not None:
                self.tell(operation)
            return original(*arguments, **options)

        return call

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return original(file, mode, *arguments, **options)
            path = _located(file)
            self.tell(Operation("open", path))
            opened = original(file, mode, *arguments, **options)
            return _WatchedFile(opened, path, self) if path.is_relative_to(self.root) else opened

        return call

    def _save_file(self, original: Callable[..., None]) -> Callable[..., None]:
        def call(tensors: Any, filename: Any, *arguments: Any, **options: Any) -> None:
            path = _located(filename)

            def tear() -> None:
                original(tensors, filename, *arguments, **options)
                os.truncate(path, path.stat().st_size // 2)

            self.tell(Operation("open", path))
            self.tell(Operation("write", path, tear=tear))
            original(tensors, filename, *arguments, **options)

        return call


class _WatchedFile:
    """A file opened for writing whose writes and closing are told of."""

    def __init__(self, file: Any, path: Path, hook: _Hook) -> None:
        self._file, self._path, self._hook = file, path, hook

    def write(self, data: Any) -> Any:
        def tear() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._hook.tell(Operation("write", self._path, tear=tear))
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._hook.tell(Operation("close", self._path))
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


def _by_identity(
    module: str, name: str, wrap: Callable[[Any], Any]
) -> Iterator[tuple[Any, str, Any]]:
    """Wrap a function in all modules that have imported it by name."""
    __import__(module)
    original = getattr(sys.modules[module], name)
    wrapped = wrap(original)
    for owner in list(sys.modules.values()):
        if getattr(owner, name, None) is original:
            yield owner, name, wrapped


def _located(path: Any, dir_fd: int | None = None) -> Path:
    folder = Path.cwd() if dir_fd is None else _path_of(dir_fd)
    return Path(os.path.normpath(folder / os.fsdecode(path)))


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
