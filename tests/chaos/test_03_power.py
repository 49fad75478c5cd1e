"""Row 3: whatever a disk may hold after the power went out, a checkpoint that was reported as saved
is there, whole, with the metrics of its steps.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import mutants
from harness.disk import RecordTo, images
from harness.processes import Fault, ForkServer, pretrain

from training.checkpoint.store import newest_good

# The images that were tried, and what was wrong with the first that lost something.
Found = tuple[int, str | None]


@pytest.fixture
def lose_power(
    fork_server: ForkServer, full_settings: list[str], tmp_path: Path
) -> Callable[..., Found]:
    """Let the power go out at any moment of a run, and look at what the disk may hold until
    something is lost.
    """

    def run(steps: int, *faults: Fault, any_choice: bool = False) -> Found:
        settings = [*full_settings, f"max_steps={steps}"]
        fork_server.finish(
            pretrain, *settings, f"checkpoint_path={tmp_path / 'whole'}", "keep_last=99"
        )
        (tmp_path / "record").mkdir()
        (tmp_path / "run").mkdir()
        record = RecordTo(tmp_path / "run", tmp_path / "record")
        fork_server.finish(
            pretrain, *settings, f"checkpoint_path={tmp_path / 'run'}", faults=(record, *faults)
        )
        tried, folder = 0, tmp_path / "image"
        for image in images(tmp_path / "record", any_choice=any_choice):
            tried += 1
            image.put(folder)
            try:
                _require_whole(folder, image.saved, tmp_path / "whole")
            except (AssertionError, ValueError) as error:
                return tried, f"{image.after}: {error}"
            shutil.rmtree(folder)
        return tried, None

    return run


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
def test_no_image_of_the_disk_loses_what_was_saved(
    lose_power: Callable[..., Found], cases: Callable[..., int], tally: Callable[..., None]
) -> None:
    any_choice = bool(cases(quick=False, long=True))
    tried, lost = lose_power(24, any_choice=any_choice)
    assert lost is None
    assert tried >= cases(quick=3000, long=15000), tried
    choices = "any choice of the changes" if any_choice else "no choice left out"
    tally(f"{tried} disk images, {choices}", "0 saved steps lost")


@pytest.mark.parametrize("mutant", mutants.params(3, mutants.no_fsync, mutants.no_folder_fsync))
def test_what_is_not_flushed_is_lost(lose_power: Callable[..., Found], mutant: Fault) -> None:
    _, lost = lose_power(9, mutant)
    assert lost is not None
