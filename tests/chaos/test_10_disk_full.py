"""Row 10: a save on a disk that is full, or fails at any operation, leaves the older checkpoints as
they were, nothing half done, and one line that says why.
"""

import errno
import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from harness.mounts import FileSizeLimit, SmallDisk, available
from harness.operations import FailAt
from harness.processes import Child, Fault, ForkServer, pretrain
from harness.saves import AtEachOperation, struck

from runtime.errors import EXIT_RANK
from training.checkpoint.lock import LOCK_FILE
from training.checkpoint.store import (
    checkpoint_path,
    list_steps,
    load_checkpoint,
    newest_good,
    remove_leftovers,
)


def require_whole(folder: Path, files_of: Any, saved: int) -> None:
    """Require every checkpoint that is there to be good, `saved` or a newer one among them, and
    nothing half done beside them.
    """
    steps = list_steps(folder)
    assert max(steps) >= saved
    for step in steps:
        load_checkpoint(checkpoint_path(folder, step))
    # Copies are taken of a run at work, which holds its lock.
    assert set(files_of(folder).leftovers()) <= {LOCK_FILE}


def is_deletion(operation: str) -> bool:
    """Return whether an operation belongs to the deletion of what is no longer needed.

    The folder is flushed between a checkpoint's renaming and its deletion.
    """
    name, _, path = operation.partition(" ")
    return name in ("unlink", "rmdir") or (name == "fsync" and "-" in path)


@pytest.mark.row(10)
@pytest.mark.parametrize("saves_before", [2, None])
def test_an_error_at_any_operation_leaves_the_old_checkpoint(
    fork_server: ForkServer,
    full_settings: list[str],
    files_of: Any,
    tmp_path: Path,
    tally: Callable[..., None],
    saves_before: int | None,
) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    at = AtEachOperation(saves_before, ("ENOSPC", "EIO"), copies)
    settings = [*full_settings, f"checkpoint_path={tmp_path / 'struck'}"]
    fork_server.finish(pretrain, *settings, faults=[at])
    saved = list_steps(tmp_path / "struck")[-1]
    left = list(struck(copies))
    refused = 0
    for folder, operation in left:
        if is_deletion(operation):
            # What cannot be deleted stays, under a hidden name, until the next run.
            remove_leftovers(folder)
        require_whole(folder, files_of, saved)
        error = folder.with_suffix(".error")
        if error.exists():
            refused += 1
            assert "step_" in error.read_text(), operation
            assert "No space left" in error.read_text() or "Input/output" in error.read_text()
        else:
            assert newest_good(folder, pytest.fail) is not None
    assert refused > len(left) / 2
    tally(f"{len(left)} failing operations: {refused} reported, the others got over, 0 losses")


@pytest.fixture
def saved_run(
    fork_server: ForkServer, full_settings: list[str], tmp_path: Path
) -> tuple[list[str], Path]:
    """A run of 6 steps: how to go on with it, and its folder."""
    folder = tmp_path / "run"
    settings = [*full_settings, f"checkpoint_path={folder}"]
    fork_server.finish(pretrain, *settings, "max_steps=6")
    assert list_steps(folder) == [3, 6]
    return settings, folder


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def require_refused(
    fork_server: ForkServer,
    settings: list[str],
    fault: Fault,
    reason: str,
    what: str = "step_9: could not be saved",
) -> None:
    """Require a run to end with exit code 4 and one line that says what failed, and why."""
    child = fork_server.run(pretrain, *settings, faults=[fault])
    require_said(child, what, reason)


def require_said(child: Child, what: str, reason: str) -> None:
    """Require exit code 4 and one line that says what failed, and why."""
    assert child.wait() == 4, child.err
    assert f"{what}: " in child.error_line
    assert reason in child.error_line
    assert child.err.count("could not be") == 1
    assert "Traceback" not in child.err


@pytest.mark.row(10)
def test_a_full_disk(
    fork_server: ForkServer,
    saved_run: tuple[list[str], Path],
    files_of: Any,
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    settings, folder = saved_run
    if available():
        room = size_of(folder) + size_of(folder / "step_6") // 2
        kept = tmp_path / "kept"
        require_refused(
            fork_server, settings, SmallDisk(folder, room, kept), "No space left on device"
        )
        require_whole(kept, files_of, 6)
        tally("a disk that is really full")
    else:
        size = max(path.stat().st_size for path in (folder / "step_6").iterdir()) // 2
        require_refused(fork_server, settings, FileSizeLimit(size), "File too large")
        require_whole(folder, files_of, 6)
        tally("files that may not grow (no right to mount a small disk here)")

    fork_server.finish(pretrain, *settings, "max_steps=9")
    assert list_steps(folder) == [6, 9]


@pytest.mark.row(10)
def test_files_that_may_not_grow(
    fork_server: ForkServer, saved_run: tuple[list[str], Path], files_of: Any
) -> None:
    settings, folder = saved_run
    size = max(path.stat().st_size for path in (folder / "step_6").iterdir()) // 2
    require_refused(fork_server, settings, FileSizeLimit(size), "File too large")
    require_whole(folder, files_of, 6)


METRICS = "metrics.jsonl: could not be written"


def require_resumed(
    fork_server: ForkServer, settings: list[str], folder: Path, files_of: Any
) -> None:
    """Require a run whose metrics were refused behind step 6 to have kept what it had, and to go on
    to step 9.
    """
    require_whole(folder, files_of, 6)
    fork_server.finish(pretrain, *settings, "max_steps=9")
    assert list_steps(folder)[-1] == 9
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "train/lr" in r] == list(range(1, 10))


@pytest.mark.row(10)
def test_metrics_on_a_disk_that_refuses_at_any_operation(
    fork_server: ForkServer,
    saved_run: tuple[list[str], Path],
    files_of: Any,
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    settings, folder = saved_run
    shutil.copytree(folder, tmp_path / "kept")
    refused = 0
    for number in count():
        error, reason = [(errno.ENOSPC, "No space left"), (errno.EIO, "Input/output")][number % 2]
        fault = FailAt(folder / "metrics.jsonl", number, error, lasting=error == errno.ENOSPC)
        child = fork_server.run(pretrain, *settings, "max_steps=9", faults=[fault])
        if child.wait() == 0:
            break
        refused += 1
        require_said(child, METRICS, reason)
        require_resumed(fork_server, settings, folder, files_of)
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "kept", folder)
    # Opening, three records, flushes of the save and of the end, closing.
    assert refused >= 6
    tally(f"metrics refused at each of {refused} operations: one line, resumed")


@pytest.mark.row(10)
def test_metrics_that_may_not_grow(
    fork_server: ForkServer, saved_run: tuple[list[str], Path], files_of: Any
) -> None:
    settings, folder = saved_run
    limit = FileSizeLimit((folder / "metrics.jsonl").stat().st_size + 100)
    require_refused(fork_server, [*settings, "log_interval=1"], limit, "File too large", METRICS)
    require_resumed(fork_server, settings, folder, files_of)


@pytest.mark.row(10)
def test_metrics_that_are_refused_leave_no_rank_behind(
    fork_server: ForkServer,
    start_child: object,
    saved_run: tuple[list[str], Path],
    files_of: Any,
    tally: Callable[..., None],
) -> None:
    settings, folder = saved_run
    fault = FailAt(folder / "metrics.jsonl", 1, errno.ENOSPC, lasting=True)
    ranks = fork_server.start_ranks(2, pretrain, *settings, faults={0: [fault]})
    require_said(ranks[0], METRICS, "No space left")
    assert ranks[1].wait(30.0) == EXIT_RANK, ranks[1].err
    assert "rank 0 " in ranks[1].error_line  # Why, is often gone with the store that it kept.
    assert "Traceback" not in ranks[1].err
    require_resumed(fork_server, settings, folder, files_of)
    tally("metrics refused on the first of two ranks: the other names it and ends")
