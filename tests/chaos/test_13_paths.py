"""Row 13: what cannot be written is refused before anything is trained, measured or built, with
exit code 2 and the path.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.builds import CachedDownloads, build, flags, write_sources
from harness.lab import Lab
from harness.mounts import Protected, ReadOnly, available
from harness.operations import FailAll
from harness.processes import Child, Fault, evaluate, pretrain

GENERATED = {
    "sudoku": ("--source=generate", "--size=4", "--subsample-size=4", "--test-size=2"),
    "maze": (
        *("--source=generate", "--size=6", "--min-length=6"),
        *("--subsample-size=4", "--test-size=2"),
    ),
}


@pytest.fixture(scope="module", params=["read-only disk", "no permission"])
def hindrance(request: pytest.FixtureRequest) -> str:
    """Why nothing can be written."""
    return request.param


@pytest.fixture(scope="module")
def unwritable(hindrance: str) -> Callable[[Path], Fault]:
    """Return the fault that lets nobody write below a folder."""
    if hindrance == "no permission":
        return Protected
    # Where nobody may mount, the hook answers as such a disk would.
    return ReadOnly if available() else lambda folder: FailAll(folder, errno.EROFS)


@pytest.fixture
def refused(lab: Lab, hindrance: str) -> Callable[[int, str], None]:
    """Report how many of something were refused."""
    return lambda number, what: lab.tally(f"{hindrance}: {number} {what} refused", paths=number)


def tree(folder: Path) -> Mapping[str, bytes | None]:
    """All that is below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def require_refusal(child: Child, named: Path, folder: Path, before: Mapping[str, Any]) -> None:
    """Demand exit code 2, one line that names the path, and everything as it was."""
    assert child.wait() == 2, child.err
    assert len(child.err.splitlines()) == 1, child.err
    assert str(named) in child.err, child.err
    assert child.out == ""
    assert tree(folder) == before


@pytest.mark.row(13)
def test_a_run_where_nothing_can_be_written(
    lab: Lab, unwritable: Callable[[Path], Fault], refused: Callable[[int, str], None]
) -> None:
    disk = lab.folder / "disk"
    (disk / "empty").mkdir(parents=True)
    lab.train("disk/begun", "max_steps=3")
    places = ("empty", "begun", "to be made", "to be made/below")
    before = tree(disk)
    for place in places:
        overrides = lab.settings(f"disk/{place}", "max_steps=6")
        child = lab.server.run(pretrain, *overrides, faults=[unwritable(disk)])
        require_refusal(child, disk / place, disk, before)
    without_path = [one for one in lab.overrides if not one.startswith("checkpoint_path")]
    faults = [unwritable(disk), partial(os.chdir, disk)]
    child = lab.server.run(pretrain, *without_path, "max_steps=3", faults=faults)
    require_refusal(child, Path("checkpoints"), disk, before)
    refused(len(places) + 1, "run folders")


@pytest.mark.row(13)
def test_an_evaluation_whose_result_cannot_be_written(
    lab: Lab, unwritable: Callable[[Path], Fault], refused: Callable[[int, str], None]
) -> None:
    disk = lab.folder / "disk"
    disk.mkdir()
    run = disk / "run"
    lab.train("disk/run", "max_steps=3")
    before = tree(disk)
    outputs = {
        "": run / "eval_step_3.json",
        f"output={disk / 'other.json'}": disk / "other.json",
        f"output={disk / 'new' / 'other.json'}": disk / "new" / "other.json",
    }
    for setting, named in outputs.items():
        overrides = [f"checkpoint={run}", "device=cpu", *filter(None, [setting])]
        child = lab.server.run(evaluate, *overrides, faults=[unwritable(disk)])
        require_refusal(child, named, disk, before)
    elsewhere = lab.folder / "elsewhere.json"
    settings = [f"checkpoint={run}", "device=cpu", f"output={elsewhere}"]
    lab.server.finish(evaluate, *settings, faults=[unwritable(disk)])
    assert json.loads(elsewhere.read_bytes())["step"] == 3
    refused(len(outputs), "results of evaluations")


@pytest.mark.row(13)
@pytest.mark.parametrize("kind", ["sudoku", "maze", "arc"])
def test_a_data_set_that_cannot_be_written(
    lab: Lab, unwritable: Callable[[Path], Fault], refused: Callable[[int, str], None], kind: str
) -> None:
    disk, sources = lab.folder / "disk", write_sources(lab.folder / "sources")
    disk.mkdir()

    def arguments(output: Path) -> list[str]:
        if kind in GENERATED:
            return [*GENERATED[kind], f"--output-dir={output}"]
        return flags(kind, sources, output)

    lab.server.finish(build, kind, *arguments(disk / "built"))
    before = tree(disk)
    places = ("built", "new", "new/below")
    for place in places:
        child = lab.server.run(build, kind, *arguments(disk / place), faults=[unwritable(disk)])
        require_refusal(child, disk / place, disk, before)
    refused(len(places), f"outputs of the {kind} builder")


@pytest.mark.row(13)
def test_a_cache_of_downloads_that_cannot_be_written(
    lab: Lab, unwritable: Callable[[Path], Fault], refused: Callable[[int, str], None]
) -> None:
    cache = lab.folder / "cache"
    cache.mkdir()
    faults = [CachedDownloads(cache), unwritable(cache)]
    output = f"--output-dir={lab.folder / 'new'}"
    child = lab.server.run(build, "sudoku", "--source=hf", output, faults=faults)
    require_refusal(child, cache, cache, {})
    assert not (lab.folder / "new").exists()
    refused(1, "cache of downloads")
