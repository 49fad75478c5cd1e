"""Row 3: whatever a disk may hold after the power went out, a checkpoint that was reported as saved
is there, whole, with the metrics of its steps.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from harness import mutants
from harness.disk import RecordTo, images
from harness.lab import Lab
from harness.processes import Fault

from training.checkpoint.store import newest_good


def lose_power(
    lab: Lab, steps: int, *faults: Fault, any_choice: bool = False
) -> tuple[int, str | None]:
    """Let the power go out at any moment of a run, and look at what the disk may hold until
    something is lost; returns how many images were tried, and what was wrong with the last.
    """
    lab.train("whole", f"max_steps={steps}", "keep_last=99")
    record, run, image_folder = (lab.folder / name for name in ("record", "run", "image"))
    record.mkdir()
    run.mkdir()
    lab.train("run", f"max_steps={steps}", faults=(RecordTo(run, record), *faults))
    tried = 0
    for image in images(record, any_choice=any_choice):
        tried += 1
        image.put(image_folder)
        try:
            _require_whole(image_folder, image.saved, lab.folder / "whole")
        except (AssertionError, ValueError) as error:
            return tried, f"{image.after}: {error}"
        shutil.rmtree(image_folder)
    return tried, None


def _require_whole(folder: Path, saved: int | None, whole: Path) -> None:
    """Require what a resumed run would start from to be what was saved, or newer."""
    checkpoint = newest_good(folder, lambda message: None)
    if checkpoint is None:
        assert saved is None, f"step {saved} is gone"
        return
    assert saved is None or checkpoint.step >= saved, f"step {saved} is gone"
    for path in sorted((whole / checkpoint.path.name).glob("*.safetensors")):
        own = (checkpoint.path / path.name).read_bytes()
        assert hashlib.sha256(own).digest() == hashlib.sha256(path.read_bytes()).digest(), path.name
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    steps = {record["step"] for record in records if "train/lr" in record}
    assert steps >= set(range(1, checkpoint.step + 1)), "metrics are gone"


@pytest.mark.row(3)
def test_no_image_of_the_disk_loses_what_was_saved(lab: Lab) -> None:
    tried, lost = lose_power(lab, 24, any_choice=lab.long)
    assert lost is None
    assert tried >= lab.cases(quick=3000, long=15000), tried
    choices = "every subset of the changes" if lab.long else "all choices named above"
    lab.tally(f"{tried} disk images, {choices}", disk_images=tried, lost_steps=0)


@pytest.mark.parametrize("mutant", mutants.params(3, mutants.no_fsync, mutants.no_folder_fsync))
def test_what_is_not_flushed_is_lost(lab: Lab, mutant: Fault) -> None:
    _, lost = lose_power(lab, 9, mutant)
    assert lost is not None
