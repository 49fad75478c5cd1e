"""Reading files that others may have written, and replacing files and folders atomically: after a
kill at any moment either the old content is there or the new.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO


def require_no_link(folder: Path) -> None:
    """Raise OSError if a folder that is to be written is a link: it may lead anywhere."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link, expected a folder", str(folder))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: it cannot be read, or is a device or pipe, whose reading may never end.
    """
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or is over `limit` bytes.
    """
    with open_regular(path) as file:
        # Not read(limit + 1): Python allocates that much first.
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1)
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, and fsync it."""
    with open(path, "wb") as file:
        file.write(content)
        flush(file)


def flush(file: BinaryIO) -> None:
    """Put what was written to an open file on the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a hidden file beside `path` that replaces it atomically after the block, on disk too.

    Each writer has a file `.NAME.tmp-HEX` of its own, which is locked while it writes: those that
    nobody has locked were left by writers that were killed, and are deleted.

    Raises:
        OSError: not written. After any error the hidden file is gone, and `path` unchanged.
    """
    with contextlib.suppress(OSError):
        _remove_leftovers(path, "tmp", Path.unlink)
    with locked_sibling(path, "tmp", lambda new: new.open("xb").close()) as temporary:
        try:
            with temporary.open("wb") as file:
                yield file
                flush(file)
            temporary.replace(path)
            fsync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: str) -> None:
    """Write a text file atomically, see `replacing`."""
    with replacing(path) as file:
        file.write(content.encode())


def write_together(files: Mapping[Path, str | bytes]) -> None:
    """Write files atomically. All are on the disk before the first one replaces what was
    there, which the last one of `files` does first: where there is no room, none has changed.
    """
    with contextlib.ExitStack() as stack:
        for path, content in files.items():
            file = stack.enter_context(replacing(path))
            file.write(content.encode() if isinstance(content, str) else content)
            flush(file)


def sha256(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Put a file's content, or the list of names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Put a folder and everything below it on the disk."""
    for folder, _, names in os.walk(root, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            fsync(path)


# Replacing a folder. While a process builds the new `NAME`, beside it is `.NAME.building-HEX`, and
# where two names cannot be exchanged, for a moment the old one as `.NAME.replaced-HEX`.


def clear_leftovers(output: Path) -> None:
    """Delete what killed builds of `output` left behind; see `put_back` for an old folder."""
    put_back(output)
    for path in _leftovers(output, "replaced"):
        os.rename(path, _sibling(output, "building"))
    _remove_leftovers(output, "building", lambda path: shutil.rmtree(path, ignore_errors=True))


def put_back(output: Path) -> None:
    """Rename an old folder back to `output`, if a kill in `swap_into_place` left none there."""
    replaced = [path for path in _leftovers(output, "replaced") if not path.is_symlink()]
    if replaced and not os.path.lexists(output):
        os.rename(replaced[-1], output)
        fsync(output.parent)


def swap_into_place(built: Path, output: Path) -> None:
    """Move the folder `built` to `output`, on the disk too; an old folder there is then at `built`.

    Raises:
        OSError: a folder cannot be moved; both are where they were.
    """
    with contextlib.ExitStack() as undo:
        if not output.exists():
            os.rename(built, output)
            undo.callback(os.rename, output, built)
        elif exchange(built, output):
            undo.callback(exchange, built, output)
        else:
            replaced = _sibling(output, "replaced")
            os.rename(output, replaced)
            undo.callback(os.rename, replaced, output)
            os.rename(built, output)
            undo.callback(os.rename, output, built)
            fsync(output.parent)
            # Out of the way of `put_back`: the caller deletes it, and a kill may leave half of it.
            os.rename(replaced, built)
            undo.callback(os.rename, built, replaced)
        fsync(output.parent)
        undo.pop_all()


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically (renameat2 of Linux); return False where that is impossible."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_fdcwd, swap = -100, ctypes.c_uint(2)
    if renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _sibling(output: Path, kind: str) -> Path:
    return output.with_name(f".{output.name}.{kind}-{secrets.token_hex(4)}")


def _leftovers(output: Path, kind: str) -> list[Path]:
    pattern = re.compile(re.escape(f".{output.name}.{kind}-") + "[0-9a-f]{8}")
    return sorted(path for path in output.parent.iterdir() if pattern.fullmatch(path.name))


def _remove_leftovers(output: Path, kind: str, remove: Callable[[Path], object]) -> None:
    for path in _leftovers(output, kind):
        with contextlib.suppress(OSError), _locked(path):
            remove(path)


@contextlib.contextmanager
def locked_sibling(
    output: Path, kind: str = "building", create: Callable[[Path], object] = Path.mkdir
) -> Iterator[Path]:
    """Create a temporary folder beside `output`, locked until the end of the block or process."""
    while True:
        path = _sibling(output, kind)
        create(path)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(path))
            except (BlockingIOError, FileNotFoundError):
                continue  # Another writer has deleted the new one as a leftover.
            except OSError:
                pass  # Some network file systems lock nothing: leftovers then stay.
            yield path
            return


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "removed before it was locked", str(path))
        yield
    finally:
        os.close(descriptor)
