"""Row 3: after a power loss every checkpoint reported as saved is there, with its metrics."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from harness import mutants
from harness.disk import images, put, record_to
from harness.lab import Lab
from harness.processes import Fault

from training.checkpoint.store import newest_good


def lose_power(lab: Lab, steps: int, *faults: Fault) -> int:
    """Cut the power at each moment of a run, require the saved checkpoints in each image that the
    disk may hold, and return the number of images.
    """
    lab.train("whole", f"max_steps={steps}", "keep_last=99")
    record, run, folder = (lab.folder / name for name in ("record", "run", "image"))
    record.mkdir()
    run.mkdir()
    lab.train("run", f"max_steps={steps}", faults=(partial(record_to, run, record), *faults))
    tried = 0
    for tree, saved, after in images(record, any_choice=lab.long):
        tried += 1
        put(tree, folder)
        try:
            require_whole(folder, saved, lab.folder / "whole")
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"after {after}: {error}") from error
        shutil.rmtree(folder)
    return tried


def require_whole(folder: Path, saved: int | None, whole: Path) -> None:
    """Require a resumed run to start from the saved checkpoint, or a newer one."""
    checkpoint = newest_good(folder, lambda message: None)
    step = 0 if checkpoint is None else checkpoint.step
    assert step >= (saved or 0), f"step {saved} is gone"
    if checkpoint is None:
        return
    for path in sorted((whole / checkpoint.path.name).glob("*.safetensors")):
        is_same = (checkpoint.path / path.name).read_bytes() == path.read_bytes()
        assert is_same, path.name
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    steps = {record["step"] for record in records if "train/lr" in record}
    assert steps >= set(range(1, step + 1)), "metrics are gone"


def test_no_image_of_the_disk_loses_what_was_saved(lab: Lab) -> None:
    tried = lose_power(lab, 24)
    assert tried >= lab.cases(quick=3000, long=15000), tried
    choices = "every subset of the changes" if lab.long else "many subsets of the changes"
    lab.tally(f"{tried} disk images, {choices}", disk_images=tried, lost_steps=0)


@pytest.mark.parametrize("mutant", mutants.params("no_fsync", "no_folder_fsync"))
def test_a_missing_flush_is_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="^after "):
        lose_power(lab, 9, mutant)
