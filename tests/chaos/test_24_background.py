"""Row 24: a save that is written beside training keeps the promises of one that halts it."""

import signal
from functools import partial
from pathlib import Path

import pytest
from harness import mutants
from harness.background import leave_memory, note_writes, strike_beside_training
from harness.lab import Lab
from harness.processes import Fault

from runtime.errors import EXIT_CHECKPOINT, EXIT_PREEMPTED
from training.checkpoint import store

# The saves of a run every 3 steps; each has at least this many file operations.
OPERATIONS = 25
KEEP_ALL = ("keep_last=99", "log_interval=1")


def require_good(lab: Lab, name: str = "run") -> list[int]:
    """Require all checkpoints of a run to be good, and return their steps."""
    steps = lab.files(name).steps
    for step in steps:
        store.load_checkpoint(store.checkpoint_path(lab.folder / name, step))
    return steps


def kill_while_writing(lab: Lab, number: int, *faults: Fault) -> int:
    """Kill a run while it saves beside training, and require the whole run's end. Return the steps
    that training was ahead of the last checkpoint.
    """
    strike = partial(strike_beside_training, lab.folder / "run", "kill", number)
    child = lab.run("run", *KEEP_ALL, faults=[*faults, strike])
    assert child.wait() == -signal.SIGKILL, child.err
    saved = require_good(lab)
    # The kill comes in the save that follows, or while the last one removes what it replaced.
    assert len(saved) >= number // (2 * OPERATIONS), saved
    ahead = lab.files().records[-1]["step"] - max(saved, default=0)
    lab.train("run", *KEEP_ALL, faults=faults)
    lab.require_same_end()
    return ahead


def test_a_kill_while_a_thread_writes_loses_nothing(lab: Lab) -> None:
    lab.train("whole", *KEEP_ALL, "background_save=false")
    numbers = range(3 * OPERATIONS)
    chosen = sorted(lab.rng.choice(numbers, lab.cases(quick=6, long=60), replace=False))
    furthest = 0
    for turn, number in enumerate(chosen):
        furthest = max(furthest, kill_while_writing(lab, int(number)))
        (lab.folder / "run").rename(lab.folder / f"killed {turn}")
    assert furthest > 3, "training went on during a write"
    said = f"{len(chosen)} kills of a thread that writes, training up to {furthest} steps ahead"
    lab.tally(f"{said}: the same bits as with saves that halt it", kills=len(chosen), losses=0)


@pytest.mark.parametrize("mutant", mutants.params("write_the_living"))
def test_tensors_that_are_not_copied_are_noticed(lab: Lab, mutant: Fault) -> None:
    lab.train("whole", *KEEP_ALL, "background_save=false")
    with pytest.raises(AssertionError, match="other bits"):
        kill_while_writing(lab, 2 * OPERATIONS, mutant)


def fill_disk_while_writing(lab: Lab, kind: str, number: int, *faults: Fault) -> None:
    """Let the write of step 9 fail on the first of two ranks, and require both to end with its
    error, in one line, and the older checkpoints to be good.
    """
    strike = partial(strike_beside_training, lab.folder / "run", kind, number)
    ranks = lab.start_ranks(2, "run", *KEEP_ALL, faults={0: [*faults, strike]})
    codes = [child.wait() for child in ranks]
    assert codes == [EXIT_CHECKPOINT] * 2, (codes, ranks[0].err)
    for child in ranks:
        assert "step_9: could not be saved: " in child.error_line
        assert "Traceback" not in child.err
    assert require_good(lab) == [3, 6]
    assert set(lab.files().leftovers()) == set()
    assert lab.files().records[-1]["step"] >= 11


def test_a_disk_that_is_full_while_a_thread_writes(lab: Lab) -> None:
    lab.train("run", *KEEP_ALL, "max_steps=6")
    kept = lab.copy(lab.folder / "run", "kept")
    kinds = [("ENOSPC", 3), ("EIO", 12)]
    for turn, (kind, number) in enumerate(kinds):
        fill_disk_while_writing(lab, kind, number)
        (lab.folder / "run").rename(lab.folder / f"full {turn}")
        lab.copy(kept, "run")
    said = f"{len(kinds)} failing writes beside training on 2 ranks: both end with the error"
    lab.tally(f"{said}, older checkpoints intact", failing_operations=len(kinds), losses=0)


@pytest.mark.parametrize("mutant", mutants.params("forget_failed_writes"))
def test_a_forgotten_failure_is_noticed(lab: Lab, mutant: Fault) -> None:
    lab.train("run", *KEEP_ALL, "max_steps=6")
    with pytest.raises(AssertionError, match=r"\[0, 0\]"):
        fill_disk_while_writing(lab, "EIO", 12, mutant)


def require_one_at_a_time(lab: Lab, *faults: Fault) -> None:
    """Save each step, each in more time than a step takes, up to a SIGTERM while step 6 is written;
    resume. Require writes one after the other, and the checkpoints of a run without threads.
    """
    record = lab.folder / "writes"
    often = (*KEEP_ALL, "checkpoint_interval=1", "max_steps=11")
    lab.train("whole", *often, "background_save=false")
    noted = partial(note_writes, record, 0.1, signal.SIGTERM, 6)
    child = lab.run("run", *often, faults=[*faults, noted])
    lines = record.read_text().split("\n")[:-1]
    assert child.wait() == EXIT_PREEMPTED, child.err
    words = [line.split() for line in lines]
    begun, ended = words[::2], words[1::2]
    assert {word for word, *_ in begun} == {"begin"}, "two writes at once"
    assert [rest for _, *rest in begun] == [rest for _, *rest in ended], "two writes at once"
    assert {where for *_, where in words} == {"beside"}
    stopped = lab.files().steps[-1]
    assert f"saved at step {stopped};" in child.err
    assert lab.files().steps == list(range(1, stopped + 1))
    lab.train("run", *often)
    for step in range(1, 12):
        for path in sorted((lab.folder / f"whole/step_{step}").glob("*.safetensors")):
            mine = lab.folder / "run" / path.parent.name / path.name
            assert mine.read_bytes() == path.read_bytes(), f"step {step}: other bits"
    lab.require_same_end()


def test_saves_in_a_hurry_wait_for_each_other(lab: Lab) -> None:
    require_one_at_a_time(lab)
    lab.tally("11 saves in a hurry and a SIGTERM during one: one at a time, the same bits")


@pytest.mark.parametrize("mutant", mutants.params("wait_for_no_write"))
def test_two_writes_at_once_are_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="two writes at once"):
        require_one_at_a_time(lab, mutant)


def run_short_of_memory(lab: Lab, *faults: Fault) -> None:
    """Require a run without memory for a copy to say so once, and to save as without threads."""
    record: Path = lab.folder / "writes"
    short = [partial(leave_memory, 1e5), partial(note_writes, record, 0.0)]
    child = lab.train("run", faults=[*short, *faults])
    assert child.err.count("warning: training halts while a checkpoint is written: ") == 1
    assert "beside" not in record.read_text()
    lab.require_same_end()


def test_without_memory_for_a_copy_training_waits(lab: Lab) -> None:
    lab.train("whole")
    run_short_of_memory(lab)
    lab.tally("no memory for a copy: one warning, saves that halt training, the same bits")


@pytest.mark.parametrize("mutant", mutants.params("copy_without_memory"))
def test_a_copy_without_memory_is_noticed(lab: Lab, mutant: Fault) -> None:
    lab.train("whole")
    with pytest.raises(AssertionError, match="assert 0 == 1"):
        run_short_of_memory(lab, mutant)
