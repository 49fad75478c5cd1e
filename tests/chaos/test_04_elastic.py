"""Row 4: with `reduction=exact` a run may lose ranks and change their number.

Random ranks are killed at random instants, and the run goes on with a random number of ranks. It
ends in the bits of a whole run on a single rank.
"""

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Fault, kill_at_random
from harness.steps import compile_quickly

from training.checkpoint.store import list_steps


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """Return a lab with evaluation batches that the test set does not fill."""
    return lab.plus("reduction=exact", "eval_batch_size=12")


def test_lost_ranks_and_other_numbers_of_ranks_change_no_bit(lab: Lab) -> None:
    lab.train_ranks(1, "whole")
    wanted = lab.cases(quick=20, long=300)
    kills = runs = moves = 0
    steps: set[int] = set()
    while kills < wanted:
        name, before, done = f"moved {runs}", None, False
        while not done:
            world_size = int(lab.rng.choice((1, 2, 4)))
            moves += before not in (None, world_size)
            before = world_size
            if kills == wanted:
                first, *_ = lab.train_ranks(world_size, name)
                assert "not bit for bit" not in first.out
                break
            done = not kill_at_random(lab.start_ranks(world_size, name), lab.rng, within=2.0)
            kills += not done
            steps.add(max(list_steps(lab.folder / name), default=0))
        runs += 1
        lab.require_same_end(name)
    said = f"{kills} ranks killed in {runs} runs at {len(steps)} steps, {moves} changes between"
    lab.tally(f"{said} 1, 2 and 4 ranks: the same bits as one rank", kills=kills, wrong_ends=0)


def test_compiled_steps_have_the_same_bits_on_two_ranks(lab: Lab) -> None:
    for world_size in (1, 2):
        compiled = (f"on {world_size}", "compile=true", "max_steps=4")
        lab.train_ranks(world_size, *compiled, faults=[compile_quickly])
    assert lab.files("on 1").state(4)["environment"]["compiled"]
    lab.require_same_end("on 2", "on 1")
    lab.tally("compiled on 1 and 2 ranks: the same bits")


@pytest.mark.parametrize("mutant", mutants.params("add_by_rank", "draw_by_rank"))
def test_bits_that_depend_on_the_number_of_ranks_are_noticed(lab: Lab, mutant: Fault) -> None:
    for world_size in (1, 2):
        lab.train_ranks(world_size, f"on {world_size}", "max_steps=9", faults=[mutant])
    with pytest.raises(AssertionError, match="other bits"):
        lab.require_same_end("on 2", "on 1")
