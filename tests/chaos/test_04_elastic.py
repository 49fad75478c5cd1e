"""Row 4: with `reduction=exact` a run that loses a random rank at random instants, and goes on with
a random number of ranks, ends in the bits of one that a single rank made undisturbed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import mutants
from harness.processes import Fault, ForkServer, kill_at_random, pretrain
from harness.ranks import compile_quickly

from training.checkpoint.store import list_steps

WORLD_SIZES = (1, 2, 4)
Settings = Callable[..., list[str]]


@pytest.fixture
def settings(full_settings: list[str], tmp_path: Path) -> Settings:
    """The overrides of a run in a folder of this name; with evaluations in pieces that the test set
    does not fill.
    """
    common = [*full_settings, "reduction=exact", "eval_batch_size=12"]
    return lambda name, *more: [*common, f"checkpoint_path={tmp_path / name}", *more]


def finish(server: ForkServer, world_size: int, settings: list[str], *faults: Fault) -> str:
    """Run to the end on this number of ranks; returns what the first one said."""
    children = server.start_ranks(
        world_size, pretrain, *settings, faults=dict.fromkeys(range(world_size), faults)
    )
    for child in children:
        assert child.wait() == 0, child.err
    return children[0].out


@pytest.mark.row(4)
def test_runs_that_lose_ranks_and_change_their_number_end_in_the_same_bits(
    fork_server: ForkServer,
    start_child: Any,
    settings: Settings,
    files_of: Any,
    tmp_path: Path,
    rng: np.random.Generator,
    cases: Callable[..., int],
    tally: Callable[..., None],
) -> None:
    finish(fork_server, 1, settings("whole"))
    whole = files_of(tmp_path / "whole").digest()
    wanted = cases(quick=20, long=300)
    kills = runs = moves = 0
    stood_at: set[int] = set()
    while kills < wanted:
        name, before = f"moved {runs}", None
        done = False
        while kills < wanted and not done:
            world_size = int(rng.choice(WORLD_SIZES))
            children = fork_server.start_ranks(world_size, pretrain, *settings(name))
            done = not kill_at_random(children, rng, within=2.0)
            kills += not done
            stood_at.add(max(list_steps(tmp_path / name), default=0))
            moves += before not in (None, world_size)
            before = world_size
        if not done:
            world_size = int(rng.choice(WORLD_SIZES))
            moves += before != world_size
            said = finish(fork_server, world_size, settings(name))
            assert "not bit for bit" not in said
        runs += 1
        files = files_of(tmp_path / name)
        assert files.digest() == whole, name
        assert files.leftovers() == []
    tally(
        f"{kills} ranks killed in {runs} runs",
        f"{moves} changes between 1, 2 and 4 ranks",
        f"{len(stood_at)} different steps to go on from",
        "0 ended in other bits than one rank",
    )


@pytest.mark.row(4)
def test_compiled_steps_have_the_same_bits_on_two_ranks(
    fork_server: ForkServer,
    settings: Settings,
    files_of: Any,
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    for world_size in (1, 2):
        compiled = settings(f"on {world_size}", "compile=true", "max_steps=4")
        finish(fork_server, world_size, compiled, compile_quickly)
    one, two = (files_of(tmp_path / f"on {world_size}") for world_size in (1, 2))
    assert one.state(4)["environment"]["compiled"]
    assert two.digest() == one.digest()
    tally("compiled on 1 and 2 ranks: the same bits")


@pytest.mark.parametrize("mutant", mutants.params(4, mutants.add_by_rank, mutants.draw_by_rank))
def test_what_depends_on_the_number_of_ranks_is_noticed(
    fork_server: ForkServer, settings: Settings, files_of: Any, tmp_path: Path, mutant: Fault
) -> None:
    for world_size in (1, 2):
        finish(fork_server, world_size, settings(f"on {world_size}", "max_steps=9"), mutant)
    one, two = (files_of(tmp_path / f"on {world_size}").digest() for world_size in (1, 2))
    assert one.keys() == two.keys()
    assert one != two
