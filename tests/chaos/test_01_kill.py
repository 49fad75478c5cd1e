"""Row 1: a run that is killed at random instants, and resumed until it is done, ends in the bits of
one that nobody disturbed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import mutants
from harness.processes import Fault, ForkServer, pretrain, until

from training.checkpoint import list_steps

Settings = Callable[..., list[str]]


@pytest.fixture
def settings(full_settings: list[str], tmp_path: Path) -> Settings:
    """The overrides of a run in a folder of this name."""
    return lambda name, *more: [*full_settings, f"checkpoint_path={tmp_path / name}", *more]


def finish(server: ForkServer, settings: list[str], *faults: Fault) -> None:
    """Run to the end."""
    child = server.run(pretrain, *settings, faults=faults)
    assert child.wait() == 0, child.err


def kill_at_random(server: ForkServer, settings: list[str], rng: np.random.Generator) -> bool:
    """Start a run and kill it; returns False when it was done before."""
    child = server.start(pretrain, *settings)
    if rng.random() < 0.8:
        # Not always while it is still looking at its configuration.
        until(lambda: "run folder" in child.out or not child.alive, "the run begins")
    if not child.ended_within(rng.uniform(0.0, 0.5)):
        child.kill()
        return True
    assert child.wait() == 0, child.err
    return False


@pytest.mark.row(1)
def test_kills_change_no_bit(
    fork_server: ForkServer,
    settings: Settings,
    files_of: Any,
    tmp_path: Path,
    rng: np.random.Generator,
    cases: Callable[..., int],
    tally: Callable[..., None],
) -> None:
    finish(fork_server, settings("whole"))
    whole = files_of(tmp_path / "whole").digest()
    wanted = cases(quick=100, long=3000)
    kills = runs = 0
    while kills < wanted:
        name, newest = f"killed {runs}", 0
        while kills < wanted and kill_at_random(fork_server, settings(name), rng):
            kills += 1
            steps = list_steps(tmp_path / name)
            assert max(steps, default=0) >= newest, f"{name}: {newest} was saved, left are {steps}"
            newest = max(steps, default=0)
        finish(fork_server, settings(name))
        runs += 1
        files = files_of(tmp_path / name)
        assert files.digest() == whole, name
        assert files.leftovers() == []
    tally(f"{kills} kills of {runs} runs", "0 ended in other bits", "0 steps went backwards")


@pytest.mark.parametrize(
    "omit", mutants.params(1, mutants.omit_carry, mutants.omit_optimizer, mutants.omit_random_state)
)
def test_what_a_checkpoint_omits_is_missed(
    fork_server: ForkServer, settings: Settings, files_of: Any, tmp_path: Path, omit: Fault
) -> None:
    finish(fork_server, settings("whole"), omit)
    finish(fork_server, settings("parts", "max_steps=10"), omit)
    finish(fork_server, settings("parts"), omit)
    whole, parts = (files_of(tmp_path / name).digest() for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert whole != parts
