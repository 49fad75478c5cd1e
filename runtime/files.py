"""Read untrusted files, and replace files and folders atomically: whenever a process is killed,
either the old or the new content is there. Also the commit of a clone.
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
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO


def require_no_link(folder: Path) -> None:
    """Raise OSError if a folder to write into is a link, which may lead anywhere."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link, expected a folder", str(folder))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file to read. Raise OSError for a device or pipe too, because it may never end."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_bounded(path: Path, limit: int) -> bytes:
    """Return a file's content; raise OSError if it is unreadable or larger than `limit` bytes."""
    with open_regular(path) as file:
        # Not read(limit + 1), because Python would allocate that much first.
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, limit) + 1)
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file and fsync it."""
    with open(path, "wb") as file:
        file.write(content)
        flush(file)


def flush(file: BinaryIO) -> None:
    """Flush and fsync an open file."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a hidden file beside `path`, which is fsynced and replaces `path` after the block.

    Each writer locks its own file `.NAME.tmp-HEX`. Killed writers leave theirs unlocked; these are
    deleted.

    Raises:
        OSError: writing failed. After any error the hidden file is gone and `path` is unchanged.
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
    """Write several files atomically. All are on the disk before the first replaces its old
    version, so that a full disk changes none. The last file is replaced first.
    """
    with contextlib.ExitStack() as stack:
        for path, content in files.items():
            file = stack.enter_context(replacing(path))
            file.write(content.encode() if isinstance(content, str) else content)
            flush(file)


def sha256(path: Path) -> str:
    """Return a file's sha256 as hexadecimal digits; raise OSError if it is unreadable."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def commit_of_clone(folder: Path) -> str:
    """Return the commit of a git clone; "-dirty" follows if the tree has other changes. Return ""
    without git, or if the folder is in no clone.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError):
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        return said.stdout.strip()
    return ""


def fsync(path: Path) -> None:
    """Fsync a file, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Fsync a folder and everything below it."""
    for folder, _, names in os.walk(root, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            fsync(path)


# Replacing a folder NAME. A process builds the new folder as `.NAME.building-HEX`. Where two names
# cannot be exchanged, the old folder is called `.NAME.replaced-HEX` for a moment.


def clear_leftovers(output: Path) -> None:
    """Delete the leftovers of killed builds of `output`, after calling `put_back`."""
    put_back(output)
    for path in _leftovers(output, "replaced"):
        os.rename(path, _sibling(output, "building"))
    _remove_leftovers(output, "building", lambda path: shutil.rmtree(path, ignore_errors=True))


def put_back(output: Path) -> None:
    """Rename the old folder back to `output` if `swap_into_place` was killed in between."""
    replaced = [path for path in _leftovers(output, "replaced") if not path.is_symlink()]
    if replaced and not os.path.lexists(output):
        os.rename(replaced[-1], output)
        fsync(output.parent)


def swap_into_place(built: Path, output: Path) -> None:
    """Move the folder `built` to `output`, and an old folder there to `built`; fsync the change.

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
            # Hide it from `put_back`: if the caller is killed while deleting it, half is left.
            os.rename(replaced, built)
            undo.callback(os.rename, built, replaced)
        fsync(output.parent)
        undo.pop_all()


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically by Linux's renameat2; return False if that is impossible."""
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
    """Create a hidden folder beside `output` (or with `create` a file) and lock it until the end of
    the block or process. Unlocked ones are leftovers.
    """
    while True:
        path = _sibling(output, kind)
        create(path)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(path))
            except (BlockingIOError, FileNotFoundError):
                continue  # Another writer took it for a leftover before it was locked.
            except OSError:
                pass  # Some network file systems cannot lock: leftovers stay there.
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
