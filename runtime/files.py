"""Files that anybody may have written, read with care; files and folders that take the place of
older ones in one step, whenever this process is killed.
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
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def require_no_link(folder: Path) -> None:
    """Raise OSError when a link stands where a folder of ours is to be written: in somebody else's
    folder it may lead anywhere.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link, expected a folder", str(folder))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; a device or a pipe, which may have no end, is none.

    Raises: OSError: there is none, or it cannot be read.
    """
    # A pipe that nobody writes to would not open otherwise.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises: OSError: there is none, it cannot be read, or it is larger.
    """
    with open_regular(path) as file:
        # Not as much as may be: that would be allocated at once.
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1)
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, and fsync it."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a hidden file beside `path` that takes its place at the end, in one indivisible move.

    It is fsynced first, and its folder afterwards. After an error it is gone and `path` as it was.

    Raises: OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # Never through a link that somebody left there.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str) -> None:
    """Replace a text file in one indivisible move. Raises: OSError: it cannot be written."""
    with replacing(path) as file:
        file.write(content.encode())


def sha256(path: Path) -> str:
    """sha256 (hex) of a file's content. Raises: OSError: there is none, or it cannot be read."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Put a file on the disk, or which names a folder holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Put a folder on the disk, and all that lies in it."""
    for folder, _, names in os.walk(root, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            fsync(path)


# Replacing a folder


def clear_leftovers(output: Path) -> None:
    """Remove what killed builds of this folder left; put back a set that one had moved away."""
    put_back(output)
    for path in _leftovers(output, "replaced"):
        os.rename(path, _sibling(output, "building"))
    for path in _leftovers(output, "building"):
        with contextlib.suppress(OSError), _locked(path):
            shutil.rmtree(path, ignore_errors=True)


def put_back(output: Path) -> None:
    """Give a folder its name back that a killed `swap_into_place` had moved away."""
    replaced = [path for path in _leftovers(output, "replaced") if not path.is_symlink()]
    if replaced and not os.path.lexists(output):
        os.rename(replaced[-1], output)
        fsync(output.parent)


@contextlib.contextmanager
def locked_sibling(output: Path) -> Iterator[Path]:
    """Create a temporary folder beside `output` that stays locked as long as this process lives."""
    while True:
        path = _sibling(output, "building")
        path.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(path))
            except (BlockingIOError, FileNotFoundError):
                continue  # Another build took the fresh folder for a leftover before it was locked.
            except OSError:
                pass  # Some network file systems lock no folders: then nobody clears leftovers.
            yield path
            return


def swap_into_place(built: Path, output: Path) -> None:
    """Move `built` to `output`, for good; an old folder there is afterwards at `built`.

    After an error both are where they were.
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
            # Under a name that is never put back: a kill may leave half of it.
            os.rename(replaced, built)
            undo.callback(os.rename, built, replaced)
        fsync(output.parent)
        undo.pop_all()


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one atomic step (Linux renameat2); False where that is not available."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_fdcwd, rename_exchange = -100, 2
    flags = ctypes.c_uint(rename_exchange)
    if renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), flags) == 0:
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


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "removed before it was locked", str(path))
        yield
    finally:
        os.close(descriptor)
