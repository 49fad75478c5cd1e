"""Row 10: a save that fails at any operation, or on a full disk, changes no older checkpoint.

It leaves nothing half done, and one line that gives the reason.
"""

import shutil
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from harness import mutants
from harness.lab import Lab
from harness.mounts import available, limit_file_size, small_disk
from harness.operations import strike_at
from harness.processes import Child, Fault, convert
from harness.saves import strike_saves

from runtime.errors import EXIT_RANK
from training.checkpoint import store
from training.checkpoint.lock import LOCK_FILE

REASONS = {"ENOSPC": "No space left on device", "EIO": "Input/output"}


def require_whole(lab: Lab, folder: Path, saved: int) -> None:
    """Require all checkpoints to be good, one of step `saved` or later, and nothing left over."""
    steps = store.list_steps(folder)
    assert max(steps) >= saved
    for step in steps:
        store.load_checkpoint(store.checkpoint_path(folder, step))
    # The folder was copied from a running run, with its lock.
    assert set(lab.look(folder).leftovers()) <= {LOCK_FILE}


def is_deletion(operation: str) -> bool:
    """Return whether the operation belongs to the deletion of an old checkpoint.

    Between the renaming and the deletion the folder is flushed.
    """
    name, _, path = operation.partition(" ")
    return name in ("unlink", "rmdir") or (name == "fsync" and "-" in path)


@pytest.mark.parametrize("saves_before", [2, None])
def test_an_error_at_any_operation_leaves_the_old_checkpoint(
    lab: Lab, saves_before: int | None
) -> None:
    left, saved = strike_saves(lab, saves_before, tuple(REASONS))
    refused = 0
    for folder, operation in left:
        if is_deletion(operation):
            # An old checkpoint that cannot be deleted stays under a hidden name until the next run.
            store.remove_leftovers(folder)
        require_whole(lab, folder, saved)
        error = folder.with_suffix(".error")
        if error.exists():
            refused += 1
            assert "step_" in error.read_text(), operation
            assert any(reason in error.read_text() for reason in REASONS.values())
        else:
            assert store.newest_good(folder, pytest.fail) is not None
    assert refused > len(left) / 2
    which = "the last step again" if saves_before is None else "a further step"
    said = f"{which}: {len(left)} failing operations, {refused} reported, the others without effect"
    lab.tally(said, failing_operations=len(left), losses=0)


@pytest.fixture
def saved_run(lab: Lab) -> Path:
    """Return the folder of a run of 6 steps."""
    lab.train("run", "max_steps=6")
    assert lab.files().steps == [3, 6]
    return lab.folder / "run"


CHECKPOINT, METRICS = "step_9: could not be saved: ", "metrics.jsonl: "


def require_said(child: Child, what: str, reason: str) -> None:
    """Require exit code 4, and that only the last line says what failed, and why."""
    assert child.wait() == 4, child.err
    assert what in child.error_line
    assert reason in child.error_line
    assert child.err.count(reason) == 1
    assert "Traceback" not in child.err


def require_resumed(lab: Lab) -> None:
    """Require a run that failed after step 6 to have kept its checkpoints, and to reach step 9."""
    require_whole(lab, lab.folder / "run", 6)
    lab.train("run", "max_steps=9")
    assert lab.files().steps[-1] == 9
    assert [record["step"] for record in lab.files().train_records] == list(range(1, 10))


def test_a_disk_without_room(lab: Lab, saved_run: Path) -> None:
    sizes = {path: path.stat().st_size for path in saved_run.rglob("*") if path.is_file()}
    saved = [size for path, size in sizes.items() if "step_6" in path.parts]
    small = partial(limit_file_size, max(saved) // 2)  # Too small for the largest file.
    require_said(lab.run(faults=[small]), CHECKPOINT, "File too large")
    require_whole(lab, saved_run, 6)
    said = "files that may not grow (no right to mount a small disk here)"
    if available():
        room = sum(sizes.values()) + sum(saved) // 2
        disk = partial(small_disk, saved_run, room, lab.folder / "kept")
        require_said(lab.run(faults=[disk]), CHECKPOINT, REASONS["ENOSPC"])
        require_whole(lab, lab.folder / "kept", 6)
        said = "a disk that is really full, files that may not grow"
    require_resumed(lab)
    lab.tally(said)


def test_metrics_on_a_disk_that_refuses_at_any_operation(lab: Lab, saved_run: Path) -> None:
    kept, refused = lab.copy(saved_run, "kept"), 0
    for number in count():
        kind = ("ENOSPC", "EIO")[number % 2]
        fault = partial(strike_at, saved_run / "metrics.jsonl", kind, number)
        child = lab.run("run", "max_steps=9", faults=[fault])
        if child.wait() == 0:
            break
        refused += 1
        require_said(child, METRICS, REASONS[kind])
        require_resumed(lab)
        shutil.rmtree(saved_run)
        lab.copy(kept, "run")
    # Opening, three records, a flush at the save and one at the end, closing.
    assert refused >= 6
    said = f"metrics refused at each of {refused} operations: one line, resumed"
    lab.tally(said, failing_operations=refused)


def test_metrics_that_are_refused_leave_no_rank_behind(lab: Lab, saved_run: Path) -> None:
    fault = partial(strike_at, saved_run / "metrics.jsonl", "ENOSPC", 1)
    ranks = lab.start_ranks(2, faults={0: [fault]})
    require_said(ranks[0], METRICS, REASONS["ENOSPC"])
    assert ranks[1].wait(30.0) == EXIT_RANK, ranks[1].err
    assert "rank 0 " in ranks[1].error_line  # The reason is often lost with rank 0's store.
    assert "Traceback" not in ranks[1].err
    require_resumed(lab)
    lab.tally("metrics refused on the first of two ranks: the other names it and ends")


def require_unconverted(lab: Lab, original: Path, *faults: Fault) -> None:
    """Convert under a limit of the file size, and require one line and no files."""
    output = lab.folder / "converted"
    given = (f"checkpoint={original / 'own'}", f"output={output}")
    child = lab.server.run(convert, *given, faults=[partial(limit_file_size, 2**16), *faults])
    child.require_refusal(4, "File too large")
    assert list(output.iterdir()) == []


def test_a_conversion_on_a_disk_without_room(lab: Lab, original: Path) -> None:
    require_unconverted(lab, original)
    lab.tally("a conversion without room: one line, nothing left")


@pytest.mark.parametrize("mutant", mutants.params("convert_in_place"))
def test_half_a_converted_file_is_noticed(lab: Lab, original: Path, mutant: Fault) -> None:
    with pytest.raises(AssertionError):
        require_unconverted(lab, original, mutant)
