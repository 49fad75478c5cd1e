"""Ways to damage a file of a checkpoint or data set. Each one changes the file's content."""

import shutil
import struct
from pathlib import Path

import numpy as np

Rng = np.random.Generator


def flip(path: Path, rng: Rng) -> None:
    """Flip one to three bits."""
    content = bytearray(path.read_bytes())
    for place in rng.choice(len(content), size=rng.integers(1, 4), replace=False):
        content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def cut(path: Path, rng: Rng) -> None:
    """Cut the file off at a random place."""
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def empty(path: Path, rng: Rng) -> None:
    """Remove all content."""
    path.write_bytes(b"")


def lengthen(path: Path, rng: Rng) -> None:
    """Append random bytes."""
    path.write_bytes(path.read_bytes() + rng.bytes(rng.integers(1, 99)))


def wipe(path: Path, rng: Rng) -> None:
    """Replace everything after a random place by zeros, like a disk that lost a block."""
    content = path.read_bytes()
    begin = int(rng.choice(np.flatnonzero(bytearray(content))))
    path.write_bytes(content[:begin] + bytes(len(content) - begin))


def lose(path: Path, rng: Rng) -> None:
    """Remove the file."""
    path.unlink()


def swap(path: Path, rng: Rng) -> None:
    """Replace it by another file of the data set or of the run's checkpoints."""
    whole = path.read_bytes()
    files = sorted(file for file in path.parent.parent.rglob("*") if file.is_file())
    others = [file for file in files if file.read_bytes() != whole]
    shutil.copy(others[rng.integers(len(others))], path)


def npy(header: str, data: bytes = b"") -> bytes:
    """Return a .npy file with this header, unchecked."""
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header.encode() + data


ANYWHERE = (flip, cut, empty, lengthen, wipe, lose, swap)
