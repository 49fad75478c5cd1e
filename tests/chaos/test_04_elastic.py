"""Row 4: with `reduction=exact` a run that loses a random rank at random instants, and goes on with
a random number of ranks, ends in the bits of one that a single rank made undisturbed.
"""

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Fault, kill_at_random
from harness.ranks import compile_quickly

from training.checkpoint.store import list_steps

WORLD_SIZES = (1, 2, 4)


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """With evaluations in pieces that the test set does not fill."""
    return lab.plus("reduction=exact", "eval_batch_size=12")


@pytest.mark.row(4)
def test_runs_that_lose_ranks_and_change_their_number_end_in_the_same_bits(lab: Lab) -> None:
    lab.train_ranks(1, "whole")
    whole = lab.digest("whole")
    wanted = lab.cases(quick=20, long=300)
    kills = runs = moves = 0
    stood_at: set[int] = set()
    while kills < wanted:
        name, before = f"moved {runs}", None
        done = False
        while kills < wanted and not done:
            world_size = int(lab.rng.choice(WORLD_SIZES))
            done = not kill_at_random(lab.start_ranks(world_size, name), lab.rng, within=2.0)
            kills += not done
            stood_at.add(max(list_steps(lab.folder / name), default=0))
            moves += before not in (None, world_size)
            before = world_size
        if not done:
            world_size = int(lab.rng.choice(WORLD_SIZES))
            moves += before != world_size
            first, *_ = lab.train_ranks(world_size, name)
            assert "not bit for bit" not in first.out
        runs += 1
        files = lab.files(name)
        assert files.digest() == whole, name
        assert files.leftovers() == []
    lab.tally(
        f"{kills} ranks killed in {runs} runs, with {moves} changes between 1, 2 and 4 ranks, at "
        f"{len(stood_at)} different steps: none ended in other bits than one rank",
        kills=kills,
        wrong_ends=0,
    )


@pytest.mark.row(4)
def test_compiled_steps_have_the_same_bits_on_two_ranks(lab: Lab) -> None:
    for world_size in (1, 2):
        compiled = (f"on {world_size}", "compile=true", "max_steps=4")
        lab.train_ranks(world_size, *compiled, faults=[compile_quickly])
    assert lab.files("on 1").state(4)["environment"]["compiled"]
    assert lab.digest("on 2") == lab.digest("on 1")
    lab.tally("compiled on 1 and 2 ranks: the same bits")


@pytest.mark.parametrize("mutant", mutants.params(4, mutants.add_by_rank, mutants.draw_by_rank))
def test_what_depends_on_the_number_of_ranks_is_noticed(lab: Lab, mutant: Fault) -> None:
    for world_size in (1, 2):
        lab.train_ranks(world_size, f"on {world_size}", "max_steps=9", faults=[mutant])
    one, two = lab.digest("on 1"), lab.digest("on 2")
    assert one.keys() == two.keys()
    assert one != two
