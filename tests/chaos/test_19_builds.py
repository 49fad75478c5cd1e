"""Row 19: a build that is killed, or refused by the disk, at any of its file operations leaves the
old data set or the new one, whole, and the next build clears away what else is left.
"""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from harness import builds, mutants
from harness.builds import contents, flags, main_of
from harness.operations import FailAt, KillAt, watching
from harness.processes import Fault, ForkServer

from dataset.format.writing import atomic_build
from runtime import files

# What makes the older set another one.
FEWER = {"sudoku": "--subsample-size=1", "maze": "--subsample-size=1", "arc": "--tasks=a"}


class Site:
    """A folder in which a set of one kind is built again and again.

    Attributes:
        root: all that builds touch lies below. output: where the set shall be.
        old, new: the files of the older set (none: there is no older set) and of the one built.
        operations: the file operations of a build, in order.
    """

    def __init__(self, folder: Path, kind: str, *, over_older: bool) -> None:
        self.kind, self.sources = kind, builds.write_sources(folder / "sources")
        self.root, self._kept = folder / "root", folder / "kept" if over_older else None
        self.output = self.root / "data" / "set"
        self.old: dict[str, bytes] = {}
        if self._kept is not None:
            assert main_of(kind)(flags(kind, self.sources, self._kept, FEWER[kind])) == 0
            self.old = contents(self._kept)
        self.prepare()
        self.operations: list[str] = []
        with watching(self.root, lambda operation: self.operations.append(operation.name)):
            assert self.build() == 0
        self.new = contents(self.output)
        assert self.new != self.old

    def build(self) -> int:
        """Build in this process; returns the exit code."""
        return main_of(self.kind)(flags(self.kind, self.sources, self.output))

    def prepare(self) -> None:
        """Put the older set in place, and nothing else."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.output.parent.mkdir(parents=True)
        if self._kept is not None:
            shutil.copytree(self._kept, self.output)

    def kill(self, server: ForkServer, number: int, *faults: Fault, torn: bool) -> None:
        """Kill a build, in a process of its own, at an operation."""
        self.prepare()
        child = server.start(
            builds.build,
            self.kind,
            *flags(self.kind, self.sources, self.output),
            faults=[*faults, KillAt(self.root, number, torn)],
        )
        assert child.wait() == -signal.SIGKILL, child.err

    def fail(self, number: int, error: int, *, lasting: bool) -> int:
        """Let an operation of a build fail (see `FailAt`); returns the exit code."""
        self.prepare()
        with watching(self.root, FailAt(self.root, number, error, lasting).before()):
            return self.build()

    def verdict(self) -> str:
        """Return "old", "new" or "mixed": what now lies in the place of the set."""
        found = contents(self.output)
        return {True: "new"}.get(found == self.new, "old" if found == self.old else "mixed")

    def others(self) -> list[str]:
        """What else lies beside the set."""
        return sorted(path.name for path in self.output.parent.iterdir() if path != self.output)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Let fsync return at once: no kill can tell, and the disk would take most of the time."""
    with patch.object(os, "fsync", lambda descriptor: None):
        yield


@pytest.fixture(params=builds.KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Where a set of each kind replaces an older one."""
    return Site(tmp_path, request.param, over_older=True)


def kill_everywhere(server: ForkServer, site: Site, *faults: Fault, torn: bool) -> list[str]:
    """Kill a build at each operation, and build again; returns what each kill left."""
    verdicts = []
    for number in range(len(site.operations)):
        site.kill(server, number, mutants.no_fsync, *faults, torn=torn)
        verdicts.append(site.verdict())
        assert site.build() == 0
        assert (site.verdict(), site.others()) == ("new", []), f"after a kill at {number}"
    return verdicts


@pytest.mark.row(19)
def test_a_kill_leaves_the_old_set_or_the_new_one(
    fork_server: ForkServer, site: Site, tally: Callable[..., None]
) -> None:
    verdicts = kill_everywhere(fork_server, site, torn=True)
    swap = site.operations.index("exchange")
    assert verdicts == ["old"] * (swap + 1) + ["new"] * (len(verdicts) - swap - 1)
    tally(f"{site.kind}: {len(verdicts)} kills over an older set, 0 mixed", kills=len(verdicts))


@pytest.mark.row(19)
def test_a_kill_of_a_first_build_leaves_nothing_or_the_set(
    fork_server: ForkServer, tmp_path: Path, tally: Callable[..., None]
) -> None:
    site = Site(tmp_path, "arc", over_older=False)
    verdicts = kill_everywhere(fork_server, site, torn=False)
    move = site.operations.index("rename")
    assert verdicts == ["old"] * (move + 1) + ["new"] * (len(verdicts) - move - 1)
    tally(f"{len(verdicts)} kills of a first build, 0 halves", kills=len(verdicts))


@pytest.mark.row(19)
def test_refusals_of_the_disk_leave_the_old_set(
    site: Site, capsys: pytest.CaptureFixture[str], tally: Callable[..., None]
) -> None:
    last = len(site.operations) - site.operations[::-1].index("fsync") - 1
    for error, lasting in ((errno.ENOSPC, True), (errno.EIO, False)):
        for number in range(len(site.operations)):
            capsys.readouterr()
            code, message = site.fail(number, error, lasting=lasting), capsys.readouterr().err
            place = f"{os.strerror(error)} at operation {number}"
            is_there = number == 0 and not lasting  # mkdir of the folder around the set
            if number <= last and not is_there:
                assert (code, site.verdict()) == (3, "old"), place
                assert message.startswith(f"error: {site.output}: "), message
                assert os.strerror(error) in message
                assert message.count("\n") == 1
                assert site.others() == [], place
            else:  # At the end only the old set is left to delete.
                assert (code, site.verdict()) == (0, "new"), place
    assert site.build() == 0
    assert (site.verdict(), site.others()) == ("new", [])
    refusals = 2 * len(site.operations)
    said = f"{site.kind}: {refusals} refusals (ENOSPC, EIO), 0 changed the old set"
    tally(said, refusals=refusals, mixed_sets=0)


@pytest.mark.row(19)
def test_where_two_names_cannot_be_swapped(
    fork_server: ForkServer, tmp_path: Path, tally: Callable[..., None]
) -> None:
    with patch.object(files, "exchange", lambda first, second: False):
        site = Site(tmp_path, "sudoku", over_older=True)
        first = site.operations.index("exchange")
        verdicts = []
        for number in range(first, len(site.operations)):
            site.kill(fork_server, number, mutants.no_fsync, builds.no_exchange, torn=False)
            away = not site.output.exists()
            with pytest.raises(InterruptedError), atomic_build(site.output):
                raise InterruptedError
            verdicts.append("away" if away and site.verdict() == "old" else site.verdict())
            assert site.others() == []
        swap = site.operations[first:].index("rename")
        expected = ["old"] * (swap + 1) + ["away"]
        assert verdicts == expected + ["new"] * (len(verdicts) - len(expected))
        for number in range(first, first + 6):
            assert (site.fail(number, errno.EIO, lasting=False), site.verdict()) == (3, "old")
            assert site.others() == []
    said = f"{len(verdicts)} kills and 6 refusals without renameat2, old set put back or new one"
    tally(said, kills=len(verdicts), refusals=6)


@pytest.mark.row(19, mutant=f"{mutants.in_place.__doc__}")
def test_a_build_in_place_is_noticed(fork_server: ForkServer, tmp_path: Path) -> None:
    site = Site(tmp_path, "sudoku", over_older=True)
    verdicts = set()
    for number in range(10, 60, 10):
        site.kill(fork_server, number, mutants.in_place, torn=False)
        verdicts.add(site.verdict())
    assert "mixed" in verdicts
