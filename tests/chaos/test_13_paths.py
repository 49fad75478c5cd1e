"""Row 13: what cannot be written is refused before anything is trained, measured or built, with
exit code 2 and the path.
"""

import errno
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import builds, mounts, mutants
from harness.builds import build
from harness.lab import Lab
from harness.operations import fail_all
from harness.processes import Child, Fault, evaluate, pretrain

Hindered = tuple[str, Fault]


@pytest.fixture(params=["read-only disk", "no permission"])
def hindered(lab: Lab, request: pytest.FixtureRequest) -> Hindered:
    """Make a folder "disk"; return why nothing can be written there, and the fault."""
    folder = lab.folder / "disk"
    folder.mkdir()
    if request.param == "no permission":
        return request.param, partial(mounts.protect, folder)
    if mounts.available():
        return request.param, partial(mounts.read_only, folder)
    return request.param, partial(fail_all, folder, errno.EROFS)  # As such a disk would answer.


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


def test_a_run_where_nothing_can_be_written(lab: Lab, hindered: Hindered) -> None:
    why, fault = hindered
    disk = lab.folder / "disk"
    (disk / "empty").mkdir()
    lab.train("disk/begun", "max_steps=3")
    places = ("empty", "begun", "to be made", "to be made/below")
    before = tree(disk)
    for place in places:
        child = lab.run(f"disk/{place}", "max_steps=6", faults=[fault])
        require_refusal(child, disk / place, disk, before)
    without_path = [one for one in lab.overrides if not one.startswith("checkpoint_path")]
    faults = [fault, partial(os.chdir, disk)]
    child = lab.server.run(pretrain, *without_path, "max_steps=3", faults=faults)
    require_refusal(child, Path("checkpoints"), disk, before)
    lab.tally(f"{why}: {len(places) + 1} run folders refused", paths=len(places) + 1)


def require_text(lab: Lab, *faults: Fault) -> None:
    """Demand that a folder is refused whose name is not UTF-8: its checkpoints could be written
    there, and not read.
    """
    place = f"checkpoint_path='{lab.folder}/disk \udcff'"
    child = lab.run("run", place, "max_steps=3", faults=faults)
    assert child.wait() == 2, child.err
    assert len(child.err.splitlines()) == 1
    assert r"disk \udcff: the name is not UTF-8" in child.err
    assert list(lab.folder.iterdir()) == []


def test_a_run_in_a_folder_whose_name_is_no_text(lab: Lab) -> None:
    require_text(lab)
    lab.tally("1 run folder whose name is not UTF-8 refused", paths=1)


@pytest.mark.mutant(fault=mutants.take_any_folder_name)
def test_a_folder_whose_checkpoints_cannot_be_read_is_noticed(lab: Lab) -> None:
    with pytest.raises(AssertionError, match="== 2"):
        require_text(lab, mutants.take_any_folder_name)


def test_an_evaluation_whose_result_cannot_be_written(lab: Lab, hindered: Hindered) -> None:
    why, fault = hindered
    disk = lab.folder / "disk"
    run = disk / "run"
    lab.train("disk/run", "max_steps=3")
    before = tree(disk)
    outputs = (disk / "other.json", disk / "new" / "other.json")
    settings = {f"output={path}": path for path in outputs}
    # Where it is put unless something else is asked for.
    settings["evaluators=[]"] = run / "eval_step_3.json"
    for setting, named in settings.items():
        overrides = [f"checkpoint={run}", "device=cpu", setting]
        child = lab.server.run(evaluate, *overrides, faults=[fault])
        require_refusal(child, named, disk, before)
    elsewhere = lab.folder / "elsewhere.json"
    overrides = [f"checkpoint={run}", "device=cpu", f"output={elsewhere}"]
    lab.server.finish(evaluate, *overrides, faults=[fault])
    assert json.loads(elsewhere.read_bytes())["step"] == 3
    lab.tally(f"{why}: {len(settings)} results of evaluations refused", paths=len(settings))


@pytest.mark.parametrize("kind", ["sudoku", "maze", "arc"])
def test_a_data_set_that_cannot_be_written(lab: Lab, hindered: Hindered, kind: str) -> None:
    why, fault = hindered
    disk, sources = lab.folder / "disk", builds.write_sources(lab.folder / "sources")
    lab.server.finish(build, kind, *builds.flags(kind, sources, disk / "built"))
    before = tree(disk)
    places = ("built", "new", "new/below")
    for place in places:
        arguments = builds.flags(kind, sources, disk / place)
        child = lab.server.run(build, kind, *arguments, faults=[fault])
        require_refusal(child, disk / place, disk, before)
    lab.tally(f"{why}: {len(places)} outputs of the {kind} builder refused", paths=len(places))


def test_a_cache_of_downloads_that_cannot_be_written(lab: Lab, hindered: Hindered) -> None:
    why, fault = hindered
    cache = lab.folder / "disk"
    faults = [partial(builds.cached_downloads, cache), fault]
    output = f"--output-dir={lab.folder / 'new'}"
    child = lab.server.run(build, "sudoku", "--source=hf", output, faults=faults)
    require_refusal(child, cache, cache, {})
    assert not (lab.folder / "new").exists()
    lab.tally(f"{why}: 1 cache of downloads refused", paths=1)
