"""The memory that is left, on machines described by files as the kernel writes them."""

import math
from pathlib import Path

import pytest

from runtime.host_memory import host_memory_left

MEMINFO = "MemTotal:       8000 kB\nMemFree:        10 kB\nMemAvailable:   4000 kB\n"
GROUP = "sys/fs/cgroup/slurm/job_7"
OLD_GROUP = "sys/fs/cgroup/memory/slurm/job_7"
CASES = {
    "not Linux": ({}, math.inf),
    "no groups": ({"proc/meminfo": MEMINFO}, 4_096_000),
    "a group without a limit": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/slurm/job_7\n",
            f"{GROUP}/memory.max": "max\n",
        },
        4_096_000,
    ),
    "a container, which sees its own group as the root": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "1000000\n",
            "sys/fs/cgroup/memory.current": "900000\n",
            "sys/fs/cgroup/memory.stat": "anon 5\nfile 500000\ninactive_file 300000\n",
        },
        400_000,
    ),
    "a limit of the group above": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "1:name=systemd:/\n0::/slurm/job_7\n",
            f"{GROUP}/memory.max": "2000000\n",
            f"{GROUP}/memory.current": "100000\n",
            f"{GROUP}/memory.stat": "inactive_file 0\n",
            "sys/fs/cgroup/slurm/memory.max": "1500000\n",
            "sys/fs/cgroup/slurm/memory.current": "1400000\n",
            "sys/fs/cgroup/slurm/memory.stat": "inactive_file 1000\n",
        },
        101_000,
    ),
    "version 1": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "7:cpu,cpuacct:/\n4:memory:/slurm/job_7\n0::/\n",
            f"{OLD_GROUP}/memory.limit_in_bytes": "1000000\n",
            f"{OLD_GROUP}/memory.usage_in_bytes": "250000\n",
            f"{OLD_GROUP}/memory.stat": "inactive_file 9\ntotal_inactive_file 50000\n",
        },
        800_000,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_smallest_limit_counts(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host_memory_left(tmp_path) == expected


def test_this_machine_tells_something() -> None:
    assert host_memory_left() > 0
