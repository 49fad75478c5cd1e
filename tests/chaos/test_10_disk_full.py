"""Row 10: a save on a disk that is full, or fails at any operation, leaves the older checkpoints as
they were, nothing half done, and one line that says why.
"""

import errno
import json
import shutil
from itertools import count
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.mounts import FileSizeLimit, SmallDisk, available
from harness.operations import FailAt
from harness.processes import Child, Fault, pretrain
from harness.saves import strike_saves

from runtime.errors import EXIT_RANK
from training.checkpoint.lock import LOCK_FILE
from training.checkpoint.store import (
    checkpoint_path,
    list_steps,
    load_checkpoint,
    newest_good,
    remove_leftovers,
)


def require_whole(lab: Lab, folder: Path, saved: int) -> None:
    """Require every checkpoint that is there to be good, `saved` or a newer one among them, and
    nothing half done beside them.
    """
    steps = list_steps(folder)
    assert max(steps) >= saved
    for step in steps:
        load_checkpoint(checkpoint_path(folder, step))
    # Copies are taken of a run at work, which holds its lock.
    assert set(lab.look(folder).leftovers()) <= {LOCK_FILE}


def is_deletion(operation: str) -> bool:
    """Return whether an operation belongs to the deletion of what is no longer needed.

    The folder is flushed between a checkpoint's renaming and its deletion.
    """
    name, _, path = operation.partition(" ")
    return name in ("unlink", "rmdir") or (name == "fsync" and "-" in path)


@pytest.mark.row(10)
@pytest.mark.parametrize("saves_before", [2, None])
def test_an_error_at_any_operation_leaves_the_old_checkpoint(
    lab: Lab, saves_before: int | None
) -> None:
    left, saved = strike_saves(lab, saves_before, ("ENOSPC", "EIO"))
    refused = 0
    for folder, operation in left:
        if is_deletion(operation):
            # What cannot be deleted stays, under a hidden name, until the next run.
            remove_leftovers(folder)
        require_whole(lab, folder, saved)
        error = folder.with_suffix(".error")
        if error.exists():
            refused += 1
            assert "step_" in error.read_text(), operation
            assert "No space left" in error.read_text() or "Input/output" in error.read_text()
        else:
            assert newest_good(folder, pytest.fail) is not None
    assert refused > len(left) / 2
    which = "the last step again" if saves_before is None else "a further step"
    lab.tally(
        f"{which}: {len(left)} failing operations, {refused} reported, the others without effect",
        failing_operations=len(left),
        losses=0,
    )


@pytest.fixture
def saved_run(lab: Lab) -> Path:
    """The folder of a run of 6 steps."""
    lab.train("run", "max_steps=6")
    assert list_steps(lab.folder / "run") == [3, 6]
    return lab.folder / "run"


def half_a_file(folder: Path) -> FileSizeLimit:
    """A limit that the largest file of a checkpoint does not meet."""
    return FileSizeLimit(max(path.stat().st_size for path in (folder / "step_6").iterdir()) // 2)


CHECKPOINT, METRICS = "step_9: could not be saved", "metrics.jsonl: could not be written"


def require_refused(lab: Lab, fault: Fault, reason: str, what: str, *more: str) -> None:
    """Go on with the run, and require it to say what failed, and why."""
    child = lab.server.run(pretrain, *lab.settings("run", *more), faults=[fault])
    require_said(child, what, reason)


def require_said(child: Child, what: str, reason: str) -> None:
    """Require exit code 4 and one line that says what failed, and why."""
    assert child.wait() == 4, child.err
    assert f"{what}: " in child.error_line
    assert reason in child.error_line
    assert child.err.count("could not be") == 1
    assert "Traceback" not in child.err


@pytest.mark.row(10)
def test_a_full_disk(lab: Lab, saved_run: Path) -> None:
    if available():
        sizes = {p: p.stat().st_size for p in saved_run.rglob("*") if p.is_file()}
        room = sum(sizes.values()) + sum(s for p, s in sizes.items() if "step_6" in p.parts) // 2
        disk = SmallDisk(saved_run, room, lab.folder / "kept")
        require_refused(lab, disk, "No space left on device", CHECKPOINT)
        require_whole(lab, lab.folder / "kept", 6)
        lab.tally("a disk that is really full")
    else:
        require_refused(lab, half_a_file(saved_run), "File too large", CHECKPOINT)
        require_whole(lab, saved_run, 6)
        lab.tally("files that may not grow (no right to mount a small disk here)")

    lab.train("run", "max_steps=9")
    assert list_steps(saved_run) == [6, 9]


@pytest.mark.row(10)
def test_files_that_may_not_grow(lab: Lab, saved_run: Path) -> None:
    require_refused(lab, half_a_file(saved_run), "File too large", CHECKPOINT)
    require_whole(lab, saved_run, 6)


def require_resumed(lab: Lab, folder: Path) -> None:
    """Require a run whose metrics were refused behind step 6 to have kept what it had, and to go on
    to step 9.
    """
    require_whole(lab, folder, 6)
    lab.train("run", "max_steps=9")
    assert list_steps(folder)[-1] == 9
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "train/lr" in r] == list(range(1, 10))


@pytest.mark.row(10)
def test_metrics_on_a_disk_that_refuses_at_any_operation(lab: Lab, saved_run: Path) -> None:
    kept, refused = lab.copy(saved_run, "kept"), 0
    for number in count():
        error, reason = [(errno.ENOSPC, "No space left"), (errno.EIO, "Input/output")][number % 2]
        fault = FailAt(saved_run / "metrics.jsonl", number, error, lasting=error == errno.ENOSPC)
        child = lab.server.run(pretrain, *lab.settings("run", "max_steps=9"), faults=[fault])
        if child.wait() == 0:
            break
        refused += 1
        require_said(child, METRICS, reason)
        require_resumed(lab, saved_run)
        shutil.rmtree(saved_run)
        lab.copy(kept, "run")
    # Opening, three records, flushes of the save and of the end, closing.
    assert refused >= 6
    lab.tally(
        f"metrics refused at each of {refused} operations: one line, resumed",
        failing_operations=refused,
    )


@pytest.mark.row(10)
def test_metrics_that_may_not_grow(lab: Lab, saved_run: Path) -> None:
    limit = FileSizeLimit((saved_run / "metrics.jsonl").stat().st_size + 100)
    require_refused(lab, limit, "File too large", METRICS, "log_interval=1")
    require_resumed(lab, saved_run)


@pytest.mark.row(10)
def test_metrics_that_are_refused_leave_no_rank_behind(lab: Lab, saved_run: Path) -> None:
    fault = FailAt(saved_run / "metrics.jsonl", 1, errno.ENOSPC, lasting=True)
    ranks = lab.start_ranks(2, faults={0: [fault]})
    require_said(ranks[0], METRICS, "No space left")
    assert ranks[1].wait(30.0) == EXIT_RANK, ranks[1].err
    assert "rank 0 " in ranks[1].error_line  # Why, is often gone with the store that it kept.
    assert "Traceback" not in ranks[1].err
    require_resumed(lab, saved_run)
    lab.tally("metrics refused on the first of two ranks: the other names it and ends")
