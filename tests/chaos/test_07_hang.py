"""Row 7: a rank that hangs is named in time, with the collective and the step; a slow one never."""

import re
import signal
import time
from functools import partial

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Child, Fault, require_success
from harness.steps import before_call, sleep_at

from runtime.errors import EXIT_RANK

TIMEOUT = 2.0
PLACE = r"in [a-z_ ]+, (step|saving step) \d+"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """Return a lab with a record for each step and a short timeout."""
    return lab.plus("log_interval=1", f"rank_timeout={TIMEOUT}")


def start_two(lab: Lab) -> list[Child]:
    """Start two ranks, and wait for some steps."""
    children = lab.start_ranks(2, "run", "epochs=12000")
    lab.wait_for_training()
    return children


def require_last_line(child: Child, pattern: str) -> None:
    """Require a rank to end with one line of this form."""
    assert child.wait(10 * TIMEOUT) == EXIT_RANK, child.err
    assert "Traceback" not in child.err
    assert re.fullmatch(rf"pretrain\.py: {pattern}", child.error_line), child.err


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_is_named_in_time(lab: Lab, stopped: int) -> None:
    children = start_two(lab)
    time.sleep(lab.rng.uniform(0.0, 0.3))
    children[stopped].signal(signal.SIGSTOP)
    began = time.monotonic()
    waited = f"rank {1 - stopped} has waited \\d s, {PLACE}"
    require_last_line(children[1 - stopped], f"rank {stopped} does not answer.*; {waited}")
    seconds = time.monotonic() - began
    assert TIMEOUT - 1 < seconds < 3 * TIMEOUT
    # When it goes on, it finds that the other one has left.
    children[stopped].signal(signal.SIGCONT)
    require_last_line(children[stopped], f"rank .*{PLACE}.*")
    said = f"rank {stopped} stopped: named after {seconds:.1f} s (timeout {TIMEOUT:g} s)"
    lab.tally(said, named=1)


def test_a_rank_that_hangs_with_a_beating_heart_is_named(lab: Lab) -> None:
    children = lab.start_ranks(2, faults={1: [partial(sleep_at, 7, 4 * TIMEOUT)]})
    silence = "rank 1 has made no progress since [a-z_ ]+, after [a-z ]+ step 6"
    require_last_line(children[0], rf"{silence}; rank 0 has waited \d s, {PLACE}")
    require_last_line(children[1], f"rank 0 .*{PLACE}.*")
    lab.tally("a rank that is alive and hangs: named", named=1)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_named_at_once(lab: Lab, killed: int) -> None:
    children = start_two(lab)
    children[killed].kill()
    wanted = f"rank {killed} (has died|does not answer any more), {PLACE}.*"
    require_last_line(children[1 - killed], wanted)
    lab.tally(f"rank {killed} killed: named", named=1)


def start_slow(lab: Lab, *faults: Fault) -> list[Child]:
    """Start two ranks that are slow in different places."""
    long, half = 1.5 * TIMEOUT, TIMEOUT / 2
    save = partial(before_call, "training.checkpoint.store", "save_checkpoint", seconds=long)
    think = partial(before_call, "evaluation.think", "_all_steps", seconds=half, each=True)
    slow = {0: [save, *faults], 1: [partial(sleep_at, 3, half), think, *faults]}
    return lab.start_ranks(2, "run", "epochs=12", faults=slow)


def test_a_rank_that_is_slow_is_waited_for(lab: Lab) -> None:
    require_success(*start_slow(lab))
    said = "half a timeout late, a save and an evaluation of 1.5 timeouts: no alarm"
    lab.tally(said, false_alarms=0)


@pytest.mark.parametrize("mutant", mutants.params("say_nothing_is_long"))
def test_a_long_operation_without_announcement_is_noticed(lab: Lab, mutant: Fault) -> None:
    assert EXIT_RANK in [child.wait() for child in start_slow(lab, mutant)]
