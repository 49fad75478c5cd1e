"""Row 19: a build that is killed or fails at any file operation leaves the old set or the new one.

The next build removes all leftovers.
"""

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import pytest
from harness import builds, mutants
from harness.builds import build_here, contents, flags
from harness.lab import Lab
from harness.operations import strike_at, striking, watching
from harness.processes import Fault

from dataset.format.writing import atomic_build
from runtime import files

# The flags by which the older set differs.
FEWER = {"sudoku": "--subsample-size=1", "maze": "--subsample-size=1", "arc": "--tasks=a"}
NO_FSYNC = partial(mutants.take_out, "no_fsync")


class Site:
    """A folder where a set of one kind is built again and again.

    Attributes:
        root: builds write only below it. output: the folder of the set.
        old, new: the files of the older set (empty if there is none) and of the new one.
        operations: the names of a build's file operations, in order.
    """

    def __init__(self, lab: Lab, kind: str, *, over_older: bool = True) -> None:
        self.kind, self._server = kind, lab.server
        self.root, self._kept = lab.folder / "root", lab.folder / "kept"
        self.output = self.root / "data" / "set"
        sources = builds.write_sources(lab.folder / "sources")
        self._flags = flags(kind, sources, self.output)
        if over_older:
            assert build_here(kind, *flags(kind, sources, self._kept, FEWER[kind])) == 0
        self.old = contents(self._kept)
        self.prepare()
        self.operations: list[str] = []
        with watching(self.root, lambda operation: self.operations.append(operation.name)):
            assert self.build() == 0
        self.new = contents(self.output)
        assert self.new != self.old

    def build(self) -> int:
        """Build in this process, and return the exit code."""
        return build_here(self.kind, *self._flags)

    def prepare(self) -> None:
        """Restore the folder with only the older set."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.output.parent.mkdir(parents=True)
        if self.old:
            shutil.copytree(self._kept, self.output)

    def kill(self, number: int, *faults: Fault, kind: str = "kill") -> str:
        """Kill a build in another process at an operation, and return the verdict."""
        self.prepare()
        armed = [*faults, partial(strike_at, self.root, kind, number)]
        child = self._server.run(builds.build, self.kind, *self._flags, faults=armed)
        assert child.wait() == -signal.SIGKILL, child.err
        return self.verdict()

    def fail(self, number: int, kind: str) -> tuple[int, str]:
        """Make an operation of a build fail, and return the exit code and the verdict."""
        self.prepare()
        with watching(self.root, striking(kind, number)):
            return self.build(), self.verdict()

    def verdict(self) -> str:
        """Return the present state of the set: "old", "new", "away" or "mixed"."""
        found = contents(self.output)
        known = {"new": self.new, "old": self.old, "away": {}}
        return next((name for name, files in known.items() if files == found), "mixed")

    def require_new(self) -> None:
        """Build, and require the new set without leftovers."""
        assert self.build() == 0
        assert (self.verdict(), self.others()) == ("new", [])

    def others(self) -> list[str]:
        """Return the names beside the set."""
        return sorted(path.name for path in self.output.parent.iterdir() if path != self.output)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Let fsync return at once: a kill cannot undo writes, and flushing is slow."""
    with patch.object(os, "fsync", lambda descriptor: None):
        yield


@pytest.fixture(params=builds.KINDS)
def site(request: pytest.FixtureRequest, lab: Lab) -> Site:
    """Return a site of each kind with an older set."""
    return Site(lab, request.param)


def kill_everywhere(site: Site, turn: str, kind: str) -> int:
    """Kill a build at each operation, and return the number of kills.

    Up to the operation `turn` the old set must remain, then the new one; a next build must succeed.
    """
    verdicts = []
    for number in range(len(site.operations)):
        verdicts.append(site.kill(number, NO_FSYNC, kind=kind))
        site.require_new()
    number_old = site.operations.index(turn) + 1
    assert verdicts == ["old"] * number_old + ["new"] * (len(verdicts) - number_old)
    return len(verdicts)


def test_a_kill_leaves_the_old_set_or_the_new_one(lab: Lab, site: Site) -> None:
    kills = kill_everywhere(site, "exchange", "tear")
    lab.tally(f"{site.kind}: {kills} kills over an older set, 0 mixed", kills=kills)


def test_a_kill_of_a_first_build_leaves_nothing_or_the_set(lab: Lab) -> None:
    kills = kill_everywhere(Site(lab, "arc", over_older=False), "rename", "kill")
    lab.tally(f"{kills} kills of a first build, 0 halves", kills=kills)


def test_refusals_of_the_disk_leave_the_old_set(
    lab: Lab, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    last = len(site.operations) - site.operations[::-1].index("fsync") - 1
    for kind in ("ENOSPC", "EIO"):
        for number in range(len(site.operations)):
            capsys.readouterr()
            ended, message = site.fail(number, kind), capsys.readouterr().err
            place = f"{kind} at operation {number}: {message}"
            is_there = number == 0 and kind == "EIO"  # mkdir of the folder around the set
            if number <= last and not is_there:
                assert ended == (3, "old"), place
                assert message.startswith(f"error: {site.output}: "), place
                assert os.strerror(getattr(errno, kind)) in message, place
                assert message.count("\n") == 1, place
                assert site.others() == [], place
            else:  # Only the deletion of the old set is left.
                assert ended == (0, "new"), place
    site.require_new()
    refusals = 2 * len(site.operations)
    said = f"{site.kind}: {refusals} refusals (ENOSPC, EIO), 0 changed the old set"
    lab.tally(said, refusals=refusals, mixed_sets=0)


def test_builds_without_an_exchange_of_names(lab: Lab) -> None:
    with patch.object(files, "exchange", lambda first, second: False):
        site = Site(lab, "sudoku")
        first = site.operations.index("exchange")
        verdicts = []
        for number in range(first, len(site.operations)):
            found = site.kill(number, NO_FSYNC, builds.no_exchange)
            with pytest.raises(ArithmeticError), atomic_build(site.output):
                raise ArithmeticError
            assert site.verdict() == ("old" if found == "away" else found)
            verdicts.append(found)
            assert site.others() == []
        swap = site.operations[first:].index("rename")
        expected = ["old"] * (swap + 1) + ["away"]
        assert verdicts == expected + ["new"] * (len(verdicts) - len(expected))
        for number in range(first, first + 6):
            assert site.fail(number, "EIO") == (3, "old")
            assert site.others() == []
    said = f"{len(verdicts)} kills and 6 refusals without renameat2: old set restored or new one"
    lab.tally(said, kills=len(verdicts), refusals=6)


@pytest.mark.parametrize("mutant", mutants.params("in_place"))
def test_a_build_in_place_is_noticed(lab: Lab, mutant: Fault) -> None:
    site = Site(lab, "sudoku")
    assert "mixed" in {site.kill(number, mutant) for number in range(10, 60, 10)}
