"""Row 13: an unwritable path is refused with exit code 2 before training, evaluation or build."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import builds, mounts, mutants
from harness.builds import build, contents
from harness.lab import Lab
from harness.operations import strike_at
from harness.processes import Fault, evaluate, pretrain


class Disk:
    """A folder that a child with the fault `hinder` cannot write."""

    def __init__(self, lab: Lab, why: str) -> None:
        self.why, self.lab, self.folder = why, lab, lab.folder / "disk"
        self.folder.mkdir()
        self.hinder = partial(mounts.protect, self.folder)
        if why == "read-only disk":
            self.hinder = partial(mounts.read_only, self.folder)
            if not mounts.available():  # Give the errors of a read-only disk instead.
                self.hinder = partial(strike_at, self.folder, "EROFS", 0)

    def require_refusal(self, named: Path, *target: Any, faults: tuple[Fault, ...] = ()) -> None:
        """Require exit code 2, one line that names the path, and an unchanged folder."""
        before = contents(self.folder, folders=True)
        child = self.lab.server.run(*target, faults=[self.hinder, *faults])
        child.require_refusal(2, str(named))
        assert child.out == ""
        assert contents(self.folder, folders=True) == before

    def tally(self, number: int, what: str) -> None:
        self.lab.tally(f"{self.why}: {number} {what} refused", paths=number)


@pytest.fixture(params=["read-only disk", "no permission"])
def disk(lab: Lab, request: pytest.FixtureRequest) -> Disk:
    return Disk(lab, request.param)


def test_a_run_where_nothing_can_be_written(lab: Lab, disk: Disk) -> None:
    (disk.folder / "empty").mkdir()
    lab.train("disk/begun", "max_steps=3")
    places = ("empty", "begun", "to be made", "to be made/below")
    for place in places:
        settings = lab.settings(f"disk/{place}", "max_steps=6")
        disk.require_refusal(disk.folder / place, pretrain, *settings)
    settings = [one for one in lab.overrides if not one.startswith("checkpoint_path")]
    there = partial(os.chdir, disk.folder)
    disk.require_refusal(Path("checkpoints"), pretrain, *settings, faults=(there,))
    disk.tally(len(places) + 1, "run folders")


def require_text(lab: Lab, *faults: Fault) -> None:
    """Require that a folder name that is not UTF-8 is refused: a checkpoint there is unreadable."""
    place = f"checkpoint_path='{lab.folder}/disk \udcff'"
    child = lab.run("run", place, "max_steps=3", faults=faults)
    child.require_refusal(2, r"disk \udcff: the name is not UTF-8")
    assert list(lab.folder.iterdir()) == []


def test_a_run_in_a_folder_with_a_name_that_is_not_utf_8(lab: Lab) -> None:
    require_text(lab)
    lab.tally("1 run folder with a name that is not UTF-8 refused", paths=1)


@pytest.mark.parametrize("mutant", mutants.params("take_any_folder_name"))
def test_a_folder_with_unreadable_checkpoints_is_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="exit code"):
        require_text(lab, mutant)


def test_an_evaluation_with_an_unwritable_result(lab: Lab, disk: Disk) -> None:
    run = disk.folder / "run"
    lab.train("disk/run", "max_steps=3")
    outputs = (disk.folder / "other.json", disk.folder / "new" / "other.json")
    settings = {f"output={path}": path for path in outputs}
    # The default place of the result.
    settings["evaluators=[]"] = run / "eval_step_3.json"
    given = (evaluate, f"checkpoint={run}", "device=cpu")
    for setting, named in settings.items():
        disk.require_refusal(named, *given, setting)
    elsewhere = lab.folder / "elsewhere.json"
    lab.server.finish(*given, f"output={elsewhere}", faults=[disk.hinder])
    assert json.loads(elsewhere.read_bytes())["step"] == 3
    disk.tally(len(settings), "results of evaluations")


@pytest.mark.parametrize("kind", ["sudoku", "maze", "arc"])
def test_a_data_set_that_cannot_be_written(lab: Lab, disk: Disk, kind: str) -> None:
    sources = builds.write_sources(lab.folder / "sources")
    lab.server.finish(build, kind, *builds.flags(kind, sources, disk.folder / "built"))
    places = ("built", "new", "new/below")
    for place in places:
        arguments = builds.flags(kind, sources, disk.folder / place)
        disk.require_refusal(disk.folder / place, build, kind, *arguments)
    disk.tally(len(places), f"outputs of the {kind} builder")


def test_a_cache_of_downloads_that_cannot_be_written(lab: Lab, disk: Disk) -> None:
    cached = (partial(builds.cached_downloads, disk.folder),)
    given = ("--source=hf", f"--output-dir={lab.folder / 'new'}")
    disk.require_refusal(disk.folder, build, "sudoku", *given, faults=cached)
    assert not (lab.folder / "new").exists()
    disk.tally(1, "cache of downloads")
