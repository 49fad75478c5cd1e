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


@dataclass(frozen=True)
class KillAt:
    """kill -9 before operation `number` (from 0) below `root`; `torn`: in the middle of a write."""

    root: Path
    number: int
    torn: bool = False

    def __call__(self) -> None:
        """Arm this process."""

        def strike(operation: Operation) -> None:
            if self.torn and operation.tear is not None:
                operation.tear()
            os.kill(os.getpid(), signal.SIGKILL)

        watch(self.root, nth(self.number, strike))


@dataclass(frozen=True)
class FailAt:
    """Let operation `number` (from 0) below `root` fail with `error`; `lasting`: and all later ones
    that need room too.
    """

    root: Path
    number: int
    error: int
    lasting: bool = False

    def __call__(self) -> None:
        """Arm this process."""
        watch(self.root, self.before())

    def before(self) -> Before:
        """Return what to give to `watching`."""

        def strike(operation: Operation) -> None:
            if operation.tear is not None:
                operation.tear()
            raise OSError(self.error, os.strerror(self.error), str(operation.path))

        return nth(self.number, strike, lasting=self.lasting)


@dataclass(frozen=True)
class FailAll:
    """Let every operation below `root` fail with `error`."""

    root: Path
    error: int

    def __call__(self) -> None:
        """Arm this process."""

        def strike(operation: Operation) -> None:
            raise OSError(self.error, os.strerror(self.error), str(operation.path))

        watch(self.root, strike)


_forever = ExitStack()
_NEEDS_ROOM = ("open", "write", "close", "fsync", "mkdir", "link", "symlink")


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
        opened = self._opening(builtins.open)
        yield builtins, "open", opened
        yield io, "open", opened
        yield os, "open", self._os_open(os.open)
        yield os, "fsync", self._fsync(os.fsync)
        for name in ("unlink", "remove", "mkdir", "rmdir"):
            yield os, name, self._on_path(getattr(os, name), name.replace("remove", "unlink"))
        for name in ("rename", "replace"):
            yield os, name, self._on_two(getattr(os, name), "rename")
        for name in ("link", "symlink"):
            yield os, name, self._on_two(getattr(os, name), name, swapped=True)
        yield from self._by_identity("runtime.files", "exchange", self._exchange)
        yield from self._by_identity("safetensors.torch", "save_file", self._save_file)

    def _by_identity(
        self, module: str, name: str, wrap: Callable[[Any], Any]
    ) -> Iterator[tuple[Any, str, Any]]:
        """Wrap a function in all modules that have imported it by name."""
        __import__(module)
        original = getattr(sys.modules[module], name)
        wrapped = wrap(original)
        for owner in list(sys.modules.values()):
            if getattr(owner, name, None) is original:
                yield owner, name, wrapped

    def tell(self, operation: Operation) -> None:
        # What `before` itself does to files is not looked at.
        if self._inside or not operation.path.is_relative_to(self.root):
            return
        self._inside = True
        try:
            self._before(operation)
        finally:
            self._inside = False

    def _path(self, path: Any, dir_fd: int | None = None) -> Path:
        folder = Path.cwd() if dir_fd is None else _path_of(dir_fd)
        return Path(os.path.normpath(folder / os.fsdecode(path)))

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return original(file, mode, *arguments, **options)
            path = self._path(file)
            self.tell(Operation("open", path))
            opened = original(file, mode, *arguments, **options)
            return _WatchedFile(opened, path, self) if path.is_relative_to(self.root) else opened

        return call

    def _os_open(self, original: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & _WRITES:
                self.tell(Operation("open", self._path(path, options.get("dir_fd"))))
            return original(path, flags, *arguments, **options)

        return call

    def _fsync(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(descriptor: Any) -> None:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            self.tell(Operation("fsync", _path_of(number)))
            original(descriptor)

        return call

    def _on_path(self, original: Callable[..., None], name: str) -> Callable[..., None]:
        def call(path: Any, *arguments: Any, **options: Any) -> None:
            self.tell(Operation(name, self._path(path, options.get("dir_fd"))))
            original(path, *arguments, **options)

        return call

    def _on_two(
        self, original: Callable[..., None], name: str, *, swapped: bool = False
    ) -> Callable[..., None]:
        def call(source: Any, target: Any, *arguments: Any, **options: Any) -> None:
            paths = [
                self._path(source, options.get("src_dir_fd")),
                self._path(target, options.get("dst_dir_fd")),
            ]
            # Of a link it is the new name that changes something.
            path, other = reversed(paths) if swapped else paths
            self.tell(Operation(name, path, other))
            original(source, target, *arguments, **options)

        return call

    def _exchange(self, original: Callable[[Path, Path], bool]) -> Callable[[Path, Path], bool]:
        def call(first: Path, second: Path) -> bool:
            self.tell(Operation("exchange", self._path(first), self._path(second)))
            return original(first, second)

        return call

    def _save_file(self, original: Callable[..., None]) -> Callable[..., None]:
        def call(tensors: Any, filename: Any, *arguments: Any, **options: Any) -> None:
            path = self._path(filename)

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


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
