"""The memory that this process can still take from its machine. Imports no torch."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def host_memory_left(root: Path = Path("/")) -> float:
    """Return the bytes of memory that are left: on the machine, or in the control group of a
    container or job if it has less. inf if the kernel does not tell.
    """
    left = [math.inf]
    with suppress(OSError):
        left.append(1024 * _entry(root / "proc/meminfo", "MemAvailable:"))
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                left += _left_in_groups(root / "sys/fs/cgroup" / (kinds and "memory"), path)
    return min(left)


def _left_in_groups(group: Path, path: str) -> Iterator[float]:
    """Yield the bytes left in each group from the root `group` down to the one at `path`."""
    for part in ("", *path.strip("/").split("/")):
        group = group / part
        for limit, used, cached in (  # Version 2 of control groups, and version 1.
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # A group without a limit says "max".
                size = int((group / limit).read_text()) - int((group / used).read_text())
                yield size + _entry(group / "memory.stat", cached)  # The kernel can free the cache.


def _entry(file: Path, name: str) -> float:
    rows = (line.split() for line in file.read_text().splitlines())
    return next((float(row[1]) for row in rows if row[0] == name), math.inf)
