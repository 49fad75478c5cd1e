"""Row 1: a run that is killed at random instants and resumed ends in the bits of a whole run."""

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Fault, kill_at_random, pretrain

from training.checkpoint.store import list_steps


def test_kills_change_no_bit(lab: Lab) -> None:
    lab.train("whole")
    wanted = lab.cases(quick=100, long=3000)
    kills = runs = 0
    while kills < wanted:
        name, newest = f"killed {runs}", 0
        while kills < wanted and kill_at_random(
            [lab.server.start(pretrain, *lab.settings(name))], lab.rng, within=0.5
        ):
            kills += 1
            steps = list_steps(lab.folder / name)
            assert max(steps, default=0) >= newest, f"{name}: {newest} was saved, left: {steps}"
            newest = max(steps, default=0)
        lab.train(name)
        runs += 1
        lab.require_same_end(name)
    said = f"{kills} kills of {runs} runs, none ended in other bits, none lost a saved step"
    lab.tally(said, kills=kills, wrong_ends=0)


@pytest.mark.parametrize(
    "omit", mutants.params("omit_carry", "omit_optimizer", "omit_random_state")
)
def test_each_part_of_a_checkpoint_is_needed(lab: Lab, omit: Fault) -> None:
    for run in (["whole"], ["parts", "max_steps=10"], ["parts"]):
        lab.train(*run, faults=[omit])
    with pytest.raises(AssertionError, match="other bits"):
        lab.require_same_end("parts")
