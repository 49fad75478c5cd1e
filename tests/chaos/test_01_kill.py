"""Row 1: a run that is killed at random instants, and resumed until it is done, ends in the bits of
one that nobody disturbed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import mutants
from harness.processes import Fault, ForkServer, kill_at_random, pretrain

from training.checkpoint.store import list_steps

Settings = Callable[..., list[str]]


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
    fork_server.finish(pretrain, *settings("whole"))
    whole = files_of(tmp_path / "whole").digest()
    wanted = cases(quick=100, long=3000)
    kills = runs = 0
    while kills < wanted:
        name, newest = f"killed {runs}", 0
        while kills < wanted and kill_at_random(
            [fork_server.start(pretrain, *settings(name))], rng, within=0.5
        ):
            kills += 1
            steps = list_steps(tmp_path / name)
            assert max(steps, default=0) >= newest, f"{name}: {newest} was saved, left are {steps}"
            newest = max(steps, default=0)
        fork_server.finish(pretrain, *settings(name))
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
    fork_server.finish(pretrain, *settings("whole"), faults=[omit])
    fork_server.finish(pretrain, *settings("parts", "max_steps=10"), faults=[omit])
    fork_server.finish(pretrain, *settings("parts"), faults=[omit])
    whole, parts = (files_of(tmp_path / name).digest() for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert whole != parts
