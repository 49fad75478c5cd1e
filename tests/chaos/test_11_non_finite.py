"""Row 11: a number that is not finite, on any rank, stops all ranks at that step.

Nothing is updated from it, and nothing is saved.
"""

import itertools
import json
import math
from functools import partial

import pytest
from harness import mutants
from harness.builds import contents
from harness.lab import Lab
from harness.processes import Fault
from harness.steps import PARTS, PLACES, observe, poison, spoil_save

VALUES = (math.nan, math.inf, -math.inf)
RANKS = ((1, 0), (2, 0), (2, 1))  # The number of ranks, and the struck rank.
SAVED, STRUCK = 9, 11
# Before step 11 a slot has made at most 10 ACT steps. The halting noise depends only on the seed;
# on each of two ranks it lets some slot go on for 11 steps, so that step 11 reads its carry.
UNHALTED = ("arch.halt_exploration_prob=1.0", "arch.halt_max_steps=16")


def begin(lab: Lab, *more: str) -> Lab:
    """Train up to a checkpoint at step 9 with some slots that go on, and return a lab for it."""
    lab = lab.plus(*UNHALTED, *more)
    lab.train("begun", f"max_steps={SAVED}")
    return lab


def require_stop(lab: Lab, name: str, case: tuple[str, float, int, int], *faults: Fault) -> None:
    """Strike a copy of the begun run, and require all ranks to stop with the state unchanged."""
    place, value, num_ranks, struck = case
    folder = lab.copy(lab.folder / "begun", name)
    seen = [folder.with_name(f"{name} seen {rank}") for rank in range(num_ranks)]
    armed = {rank: [*faults, partial(observe, STRUCK, seen[rank])] for rank in range(num_ranks)}
    armed[struck].append(partial(poison, place, value, STRUCK))
    if num_ranks == 1:
        children = [lab.run(name, faults=armed[0])]
    else:
        children = lab.start_ranks(num_ranks, name, faults=armed)
    assert [child.wait() for child in children] == [5] * num_ranks, (case, children[0].err)
    for child, file in zip(children, seen, strict=True):
        assert f"step {STRUCK}: " in child.error_line, case
        found = json.loads(file.read_bytes())
        assert found["before"] == found["after"], case
        assert f"step {STRUCK}: " in found["refused"], case
    require_same_checkpoints(lab, name)
    assert lab.files(name).records[-1]["step"] == STRUCK, case


def require_same_checkpoints(lab: Lab, name: str) -> None:
    """Require a run to have the same checkpoints as the begun run."""
    assert lab.files(name).steps == [6, SAVED]
    for step in ("step_6", f"step_{SAVED}"):
        assert contents(lab.folder / name / step) == contents(lab.folder / "begun" / step)


def require_same_end(lab: Lab, struck: str) -> None:
    """Require a stopped run to resume to the same bits as a whole one."""
    lab.copy(lab.folder / "begun", "whole")
    for name in ("whole", struck):
        lab.train(name)
    lab.require_same_end(struck)


def test_all_ranks_stop_at_that_step(lab: Lab) -> None:
    lab = begin(lab)
    per_place = lab.cases(quick=2, long=len(VALUES) * len(RANKS))
    struck = []
    for place in PLACES:
        mixed = sorted(itertools.product(VALUES, RANKS), key=lambda _: lab.rng.random())
        # One process first, then two ranks: so even two cases cover both.
        first = next(case for case in mixed if case[1][0] == 1)
        drawn = sorted(mixed, key=lambda case: (case != first, case[1][0] == 1))
        struck += [(place, value, *ranks) for value, ranks in drawn[:per_place]]
    for number, case in enumerate(struck):
        require_stop(lab, f"struck {number}", case)
    require_same_end(lab, f"struck {len(struck) - 1}")
    ranks = sum(num_ranks for _, _, num_ranks, _ in struck)
    said = f"{len(struck)} numbers at {len(PLACES)} places: all {ranks} ranks stopped there with"
    said += " exit code 5, 0 bytes changed, all saves refused"
    lab.tally(said, numbers=len(struck), changed_bytes=0)


def test_both_ranks_stop_with_exact_reduction_and_one_goes_on(lab: Lab) -> None:
    lab = begin(lab, "reduction=exact")
    for place in PLACES:
        case = (place, float(lab.rng.choice(VALUES)), 2, int(lab.rng.integers(2)))
        require_stop(lab, place, case)
    require_same_end(lab, PLACES[-1])
    said = f"{len(PLACES)} with reduction=exact on 2 ranks, one resumed to the same bits"
    lab.tally(said, numbers=len(PLACES))


@pytest.mark.parametrize("part", PARTS)
def test_state_that_is_not_finite_is_not_saved(lab: Lab, part: str) -> None:
    lab = begin(lab)
    lab.copy(lab.folder / "begun", "run")
    child = lab.run(faults=[partial(spoil_save, part, 12)])
    assert child.wait() == 5, child.err
    assert "step 12: " in child.error_line
    assert "is not finite; nothing is saved" in child.error_line
    require_same_checkpoints(lab, "run")
    lab.tally(f"a save with NaN in the {part} refused")


@pytest.mark.parametrize("mutant", mutants.params("omit_sparse_check"))
def test_a_missing_check_of_the_puzzle_embedding_is_noticed(lab: Lab, mutant: Fault) -> None:
    lab = begin(lab)
    case = ("gradient of the puzzle embedding", math.nan, 1, 0)
    require_stop(lab, "sound", case)
    with pytest.raises(AssertionError):
        require_stop(lab, "run", case, mutant)
