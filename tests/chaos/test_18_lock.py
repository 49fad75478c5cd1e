"""Row 18: of runs that start in one folder one proceeds; when it is killed, the next takes over."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import mutants
from harness.processes import Child, Fault, ForkServer, pretrain, until
from harness.steps import StandStill, WaitFor, without_flock

STARTS = 20
TAKES_OVER_WITHIN = 3 * 10.0

Starts = tuple[list[Child], list[Child]]


@contextmanager
def many_starts(
    server: ForkServer,
    settings: list[str],
    folder: Path,
    *faults: Fault,
    with_child: bool = False,
    number: int = STARTS,
) -> Iterator[Starts]:
    """Start runs at once; yields those that have proceeded and those that have ended, when
    every one has done either. A run that proceeds stands still after a few steps.
    """
    folder.mkdir()
    begin = WaitFor(folder / "begin")
    stay = StandStill(5, folder, with_child=with_child)
    armed = [*faults, begin, stay]
    runs = [server.start(pretrain, *settings, faults=armed) for _ in range(number)]
    try:
        (folder / "begin").touch()
        until(lambda: all(has_arrived(folder, run) for run in runs), "every start came to an end")
        yield [run for run in runs if run.alive], [run for run in runs if not run.alive]
    finally:
        for run in runs:
            run.kill()
        for child in folder.glob("child *"):
            os.kill(int(child.name.split()[1]), signal.SIGKILL)


def has_arrived(folder: Path, run: Child) -> bool:
    """Whether a start has ended, or stands still in its training."""
    return not run.alive or (folder / f"stands {run.pid}").exists()


def require_one(starts: Starts, run_dir: Path) -> None:
    """Demand that one start has proceeded, and that all others were told so."""
    at_work, ended = starts
    assert len(at_work) == 1, f"{len(at_work)} runs at work in one folder"
    for run in ended:
        assert run.wait() == 6, run.err
        assert len(run.err.splitlines()) == 1, run.err
        wanted = f"{run_dir}: another run is at work here (process {at_work[0].pid} on "
        assert wanted + f"{socket.gethostname()}, since 20" in run.err, run.err


def require_takeover(
    server: ForkServer, settings: list[str], holder: Child, faults: Sequence[Fault]
) -> float:
    """Kill the run that holds the lock, and demand that the next start runs to the end; returns
    after how many seconds it was at work.
    """
    holder.kill()
    began = time.monotonic()
    heir = server.start(pretrain, *settings, faults=faults)
    until(lambda: "run folder" in heir.out or not heir.alive, "the next start", TAKES_OVER_WITHIN)
    seconds = time.monotonic() - began
    assert heir.wait() == 0, heir.err
    return seconds


@pytest.mark.row(18)
@pytest.mark.parametrize(
    ("faults", "with_child", "named"),
    [
        ((), False, "its lock gone with it"),
        ((), True, "its lock held by a child that lives on"),
        ((without_flock,), False, "on a file system without flock"),
    ],
    ids=["killed", "child lives on", "no flock"],
)
def test_one_proceeds_and_the_next_takes_over(
    fork_server: ForkServer,
    settings: Callable[[str], list[str]],
    files_of: Any,
    tmp_path: Path,
    faults: Sequence[Fault],
    with_child: bool,
    named: str,
    cases: Callable[..., int],
    tally: Callable[..., None],
) -> None:
    fork_server.finish(pretrain, *settings("whole"))
    slowest, rounds = 0.0, cases(quick=1, long=20)
    for number in range(rounds):
        name = f"run {number}"
        where = tmp_path / f"starts {number}"
        with many_starts(
            fork_server, settings(name), where, *faults, with_child=with_child
        ) as starts:
            require_one(starts, tmp_path / name)
            seconds = require_takeover(fork_server, settings(name), starts[0][0], faults)
            slowest = max(slowest, seconds)
        run = files_of(tmp_path / name)
        assert run.digest() == files_of(tmp_path / "whole").digest()
        assert run.leftovers() == []
    tally(
        f"{rounds * STARTS} starts, {rounds} proceeded, {rounds * (STARTS - 1)} ended with exit "
        f"code 6",
        f"holder killed, {named}: the next at work after {slowest:.1f} s, same bits",
    )


@pytest.mark.row(18, mutant=f"{mutants.omit_lock.__doc__}")
def test_a_missing_lock_is_noticed(
    fork_server: ForkServer, settings: Callable[[str], list[str]], tmp_path: Path
) -> None:
    where = tmp_path / "starts"
    with (
        many_starts(fork_server, settings("run"), where, mutants.omit_lock, number=3) as starts,
        # Several at work, or one that came to grief over the files of another.
        pytest.raises(AssertionError, match=r"runs at work in one folder|assert -?\d+ == 6"),
    ):
        require_one(starts, tmp_path / "run")


@pytest.mark.row(18, mutant=f"{mutants.omit_owner.__doc__}")
def test_a_lock_that_outlives_its_owner_is_noticed(
    fork_server: ForkServer, settings: Callable[[str], list[str]], tmp_path: Path
) -> None:
    where = tmp_path / "starts"
    with many_starts(fork_server, settings("run"), where, with_child=True, number=1) as starts:
        starts[0][0].kill()
        heir = fork_server.run(pretrain, *settings("run"), faults=[mutants.omit_owner])
        assert heir.wait() == 6, heir.err
