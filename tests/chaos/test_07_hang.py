"""Row 7: a rank that hangs is named, with the collective and the step, within the timeout; one that
is merely slow is waited for.
"""

import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from harness import mutants
from harness.processes import Child, Fault, ForkServer, pretrain, until
from harness.ranks import SleepAt, SlowEvaluation, SlowSave

from runtime.errors import EXIT_RANK

TIMEOUT = 2.0
PLACE = r"in [a-z_ ]+, (step|saving step) \d+"

Start = Callable[..., list[Child]]


@pytest.fixture
def start_ranks(fork_server: ForkServer, start_child: object, full_settings: list[str]) -> Start:
    """Start two ranks of a run."""

    def start(*settings: str, faults: Mapping[int, list[Fault]] | None = None) -> list[Child]:
        common = [*full_settings, "log_interval=1", f"rank_timeout={TIMEOUT}"]
        return fork_server.start_ranks(2, pretrain, *common, *settings, faults=faults)

    return start


@pytest.fixture
def wait_for_training(tmp_path: Path) -> Callable[[], None]:
    """Wait until the run has made some steps."""
    metrics = tmp_path / "run" / "metrics.jsonl"
    return lambda: until(
        lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 4, "it trains"
    )


def last_words(child: Child, pattern: str) -> None:
    """Require a rank to end with one line of this form."""
    assert child.wait(10 * TIMEOUT) == EXIT_RANK, child.err
    assert "Traceback" not in child.err
    assert re.fullmatch(rf"pretrain\.py: {pattern}", child.error_line), child.err


@pytest.mark.row(7)
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_is_named_in_time(
    start_ranks: Start,
    wait_for_training: Callable[[], None],
    rng: np.random.Generator,
    tally: Callable[..., None],
    stopped: int,
) -> None:
    children = start_ranks("epochs=12000")
    wait_for_training()
    time.sleep(rng.uniform(0.0, 0.3))
    children[stopped].signal(signal.SIGSTOP)
    began = time.monotonic()
    waited = f"rank {1 - stopped} has waited \\d s, {PLACE}"
    last_words(children[1 - stopped], f"rank {stopped} does not answer.*; {waited}")
    seconds = time.monotonic() - began
    assert TIMEOUT - 1 < seconds < 3 * TIMEOUT
    # Once it goes on, it finds that the other has left.
    children[stopped].signal(signal.SIGCONT)
    last_words(children[stopped], f"rank .*{PLACE}.*")
    tally(f"rank {stopped} stopped: named after {seconds:.1f} s of {TIMEOUT:g} s")


@pytest.mark.row(7)
def test_a_rank_whose_heart_beats_but_does_not_come_is_named(
    start_ranks: Start, tally: Callable[..., None]
) -> None:
    children = start_ranks(faults={1: [SleepAt(7, 4 * TIMEOUT)]})
    waited = f"rank 0 has waited \\d s, {PLACE}"
    last_words(children[0], f"rank 1 has not come on since [a-z_ ]+, after saving step 6; {waited}")
    last_words(children[1], f"rank 0 .*{PLACE}.*")
    tally("a rank that hangs alive: named")


@pytest.mark.row(7)
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_named_at_once(
    start_ranks: Start,
    wait_for_training: Callable[[], None],
    tally: Callable[..., None],
    killed: int,
) -> None:
    children = start_ranks("epochs=12000")
    wait_for_training()
    children[killed].kill()
    last_words(
        children[1 - killed], f"rank {killed} (has died|does not answer any more), {PLACE}.*"
    )
    tally(f"rank {killed} killed: named")


SLOW: Mapping[int, list[Fault]] = {
    0: [SlowSave(1.5 * TIMEOUT)],
    1: [SleepAt(3, TIMEOUT / 2), SlowEvaluation(TIMEOUT / 2)],
}


@pytest.mark.row(7)
def test_a_rank_that_is_slow_is_waited_for(start_ranks: Start, tally: Callable[..., None]) -> None:
    for child in start_ranks("epochs=12", faults=SLOW):
        assert child.wait() == 0, child.err
    tally("half the timeout late, a save of 1.5 and an evaluation of 1.5: no alarm")


@pytest.mark.row(7, mutant=f"{mutants.say_nothing_is_long.__doc__}")
def test_silence_about_what_takes_long_is_noticed(start_ranks: Start) -> None:
    faults = {rank: [*slow, mutants.say_nothing_is_long] for rank, slow in SLOW.items()}
    codes = [child.wait() for child in start_ranks("epochs=12", faults=faults)]
    assert EXIT_RANK in codes
