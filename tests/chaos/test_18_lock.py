"""Row 18: of several starts in one folder one proceeds; if it is killed, the next takes over."""

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Child, Fault, has_begun, pretrain, require_success, until
from harness.steps import stand_still, wait_for, without_flock

from runtime.files import write_atomically

STARTS = 20
TAKES_OVER_WITHIN = 3 * 10.0

Starts = tuple[list[Child], list[Child]]


@contextmanager
def many_starts(
    lab: Lab, name: str, *faults: Fault, with_child: bool = False, number: int = STARTS
) -> Iterator[Starts]:
    """Start runs at once; yield those that proceed (and hang after a few steps) and the others."""
    folder = lab.folder / f"starts of {name}"
    folder.mkdir()
    stay = partial(stand_still, 5, folder, with_child)
    armed = [*faults, partial(wait_for, folder / "begin"), stay]
    runs = [lab.server.start(pretrain, *lab.settings(name), faults=armed) for _ in range(number)]

    def all_hang_or_ended() -> bool:
        return all(not run.alive or (folder / f"stands {run.pid}").exists() for run in runs)

    try:
        (folder / "begin").touch()
        until(all_hang_or_ended, "every start hangs or has ended")
        yield [run for run in runs if run.alive], [run for run in runs if not run.alive]
    finally:
        for run in runs:
            run.kill()
        for child in folder.glob("child *"):
            os.kill(int(child.name.split()[1]), signal.SIGKILL)


def require_one(starts: Starts, run_dir: Path) -> None:
    """Require that one start proceeded, and that all others were refused with its process."""
    at_work, ended = starts
    assert len(at_work) == 1, f"{len(at_work)} runs at work in one folder"
    wanted = f"{run_dir}: another run is using this folder (process {at_work[0].pid} on "
    for run in ended:
        run.require_refusal(6, wanted + f"{socket.gethostname()}, since 20")


@pytest.mark.parametrize(
    ("faults", "with_child", "named"),
    [
        ((), False, "its lock gone with it"),
        ((), True, "its lock held by a surviving child"),
        ((without_flock,), False, "on a file system without flock"),
    ],
    ids=["killed", "child lives on", "no flock"],
)
def test_one_proceeds_and_the_next_takes_over(
    lab: Lab, faults: Sequence[Fault], with_child: bool, named: str
) -> None:
    lab.train("whole")
    slowest, rounds = 0.0, lab.cases(quick=1, long=20)
    for number in range(rounds):
        name = f"run {number}"
        with many_starts(lab, name, *faults, with_child=with_child) as starts:
            require_one(starts, lab.folder / name)
            starts[0][0].kill()
            began = time.monotonic()
            successor = lab.server.start(pretrain, *lab.settings(name), faults=faults)
            until(partial(has_begun, successor), "the next start", TAKES_OVER_WITHIN)
            slowest = max(slowest, time.monotonic() - began)
            require_success(successor)
        lab.require_same_end(name)
    said = f"{rounds * STARTS} starts, {rounds} proceeded, {rounds * (STARTS - 1)} ended with exit"
    said += f" code 6; holder killed, {named}: the next at work after {slowest:.1f} s, same bits"
    lab.tally(said, starts=rounds * STARTS, proceeded=rounds)


def write_again_and_again(path: Path, letter: str) -> None:
    """Write a file of one letter many times, and require it to hold only one letter each time."""
    for _ in range(50):
        write_atomically(path, letter * 10_000)
        found = path.read_text()
        assert found == found[:1] * 10_000


def write_at_once(lab: Lab, *faults: Fault) -> None:
    """Let processes write one file at once, kill one, and require the others to succeed."""
    path = lab.folder / "files" / "report.html"
    path.parent.mkdir()
    writers = [lab.server.start(write_again_and_again, path, x, faults=faults) for x in "abcd"]
    until(path.exists, "the first file")
    writers[0].kill()
    require_success(*writers[1:])
    lab.server.finish(write_again_and_again, path, "e")
    assert list(path.parent.iterdir()) == [path]


def test_writers_of_one_file_do_not_disturb_each_other(lab: Lab) -> None:
    write_at_once(lab)
    lab.tally("4 processes that write one file at once, one killed: 0 refused, 0 torn")


@pytest.mark.parametrize("mutant", mutants.params("share_temporary_files", "delete_of_the_living"))
def test_writers_that_disturb_each_other_are_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="FileExistsError|FileNotFoundError"):
        write_at_once(lab, mutant)


@pytest.mark.parametrize("mutant", mutants.params("omit_lock"))
def test_a_missing_lock_is_noticed(lab: Lab, mutant: Fault) -> None:
    with (
        many_starts(lab, "run", mutant, number=3) as starts,
        # Several are at work, or one failed because of another's files.
        pytest.raises(AssertionError, match=r"runs at work in one folder|exit code -?\d+"),
    ):
        require_one(starts, lab.folder / "run")


@pytest.mark.parametrize("mutant", mutants.params("omit_owner"))
def test_a_lock_that_outlives_its_owner_is_noticed(lab: Lab, mutant: Fault) -> None:
    with many_starts(lab, "run", with_child=True, number=1) as starts:
        starts[0][0].kill()
        lab.run(faults=[mutant]).require_refusal(6)
