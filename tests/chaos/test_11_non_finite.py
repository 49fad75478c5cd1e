"""Row 11: a number that is not finite, anywhere on any rank, stops all ranks at that step; nothing
is updated from it and nothing is saved.
"""

import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import mutants
from harness.processes import Child, Fault, ForkServer, pretrain
from harness.steps import PLACES, Observe, Poison, SpoilSave

VALUES = (math.nan, math.inf, -math.inf)
# Of (ranks, the rank that is struck).
RANKS = ((1, 0), (2, 0), (2, 1))
SAVED, STRUCK = 9, 11
# Before step 11 a slot has made 10 ACT steps at most. The draws of the halting rule's noise are the
# seed's alone, and on either of two ranks they let some slot go on for 11 steps: its carry is read.
UNHALTED = ("arch.halt_exploration_prob=1.0", "arch.halt_max_steps=16")


@pytest.fixture
def begin(full_settings: list[str], fork_server: ForkServer, tmp_path: Path) -> Any:
    """Train up to a checkpoint at step 9; returns what gives the overrides of a run in a folder of
    some name that goes on from there.
    """

    def run(*more: str) -> Any:
        common = [*full_settings, *UNHALTED, *more]
        begun = f"checkpoint_path={tmp_path / 'begun'}"
        fork_server.finish(pretrain, *common, begun, f"max_steps={SAVED}")

        def overrides(name: str) -> list[str]:
            shutil.copytree(tmp_path / "begun", tmp_path / name)
            return [*common, f"checkpoint_path={tmp_path / name}"]

        return overrides

    return run


@pytest.fixture
def settings(begin: Any) -> Any:
    """`begin` with nothing else set."""
    return begin()


def start(
    server: ForkServer, settings: list[str], num_ranks: int, faults: dict[int, list[Fault]]
) -> list[Child]:
    """Run one process, or several ranks, to their end."""
    if num_ranks == 1:
        children = [server.start(pretrain, *settings, faults=faults[0])]
    else:
        children = server.start_ranks(num_ranks, pretrain, *settings, faults=faults)
    for child in children:
        child.wait()
    return children


def content(folder: Path) -> dict[str, bytes]:
    """All files of the checkpoints in a run's folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("step_*/*")
        if path.is_file()
    }


def require_stop(
    server: ForkServer,
    settings: list[str],
    folder: Path,
    case: tuple[str, float, int, int],
    *faults: Fault,
) -> None:
    """Strike, and demand that all ranks stop there with everything as it was."""
    place, value, num_ranks, struck = case
    saved = content(folder)
    seen = [folder.with_name(f"{folder.name} seen {rank}") for rank in range(num_ranks)]
    armed: dict[int, list[Fault]] = {
        rank: [*faults, Observe(STRUCK, seen[rank])] for rank in range(num_ranks)
    }
    armed[struck].append(Poison(place, value, STRUCK))
    children = start(server, settings, num_ranks, armed)
    assert [child.wait() for child in children] == [5] * num_ranks, (case, children[0].err)
    for child, file in zip(children, seen, strict=True):
        assert f"step {STRUCK}: " in child.error_line, case
        found = json.loads(file.read_bytes())
        assert found["before"] == found["after"], case
        assert f"step {STRUCK}: " in found["refused"], case
    assert content(folder) == saved, case
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == STRUCK, case


@pytest.mark.row(11)
def test_all_ranks_stop_at_that_step(
    fork_server: ForkServer,
    settings: Any,
    files_of: Any,
    tmp_path: Path,
    rng: np.random.Generator,
    cases: Callable[..., int],
    tally: Callable[..., None],
) -> None:
    per_place = cases(quick=2, long=len(VALUES) * len(RANKS))
    struck = []
    for index, place in enumerate(PLACES):
        # One process and two ranks by turns, so that few cases see both.
        mixed = sorted(itertools.product(VALUES, RANKS), key=lambda _: rng.random())
        alone = [case for case in mixed if case[1][0] == 1]
        among = [case for case in mixed if case[1][0] == 2]
        drawn = [*itertools.chain(*zip(alone, among, strict=False)), *among[len(alone) :]]
        for value, (num_ranks, rank) in drawn[:per_place]:
            case = (place, value, num_ranks, rank)
            name = f"{index} {value} {num_ranks} {rank}"
            require_stop(fork_server, settings(name), tmp_path / name, case)
            struck.append(case)
    whole, last = settings("whole"), tmp_path / name
    after = [*whole[:-1], f"checkpoint_path={last}"]
    for overrides in (whole, after):
        fork_server.finish(pretrain, *overrides)
    assert files_of(last).digest() == files_of(tmp_path / "whole").digest()
    ranks = sum(num_ranks for _, _, num_ranks, _ in struck)
    tally(
        f"{len(struck)} numbers at {len(PLACES)} places",
        f"{ranks} of {ranks} ranks stopped there with exit code 5",
        "0 bytes changed",
        "all saves refused",
    )


@pytest.mark.row(11)
def test_both_ranks_stop_with_exact_reduction_and_one_goes_on(
    fork_server: ForkServer,
    begin: Any,
    files_of: Any,
    tmp_path: Path,
    rng: np.random.Generator,
    tally: Callable[..., None],
) -> None:
    settings = begin("reduction=exact")
    for place in PLACES:
        case = (place, float(rng.choice(VALUES)), 2, int(rng.integers(2)))
        overrides = settings(place)
        require_stop(fork_server, overrides, tmp_path / place, case)
    for unpoisoned in (settings("whole"), overrides):
        fork_server.finish(pretrain, *unpoisoned)
    assert files_of(tmp_path / place).digest() == files_of(tmp_path / "whole").digest()
    tally(f"{len(PLACES)} with reduction=exact on 2 ranks, and one goes on in the same bits")


@pytest.mark.row(11)
@pytest.mark.parametrize("part", SpoilSave.parts)
def test_state_that_is_not_finite_is_not_saved(
    fork_server: ForkServer, settings: Any, tmp_path: Path, part: str, tally: Callable[..., None]
) -> None:
    overrides, saved = settings("run"), content(tmp_path / "begun")
    child = fork_server.run(pretrain, *overrides, faults=[SpoilSave(part, step=12)])
    assert child.wait() == 5, child.err
    assert "step 12: " in child.error_line
    assert "is not finite; nothing is saved" in child.error_line
    assert content(tmp_path / "run") == saved
    tally(f"a save of a spoilt {part} refused")


@pytest.mark.row(11, mutant=f"{mutants.omit_sparse_check.__doc__}")
def test_a_missing_check_of_the_puzzle_embedding_is_noticed(
    fork_server: ForkServer, settings: Any, tmp_path: Path
) -> None:
    case = ("gradient of the puzzle embedding", math.nan, 1, 0)
    require_stop(fork_server, settings("sound"), tmp_path / "sound", case)
    with pytest.raises(AssertionError):
        require_stop(
            fork_server, settings("run"), tmp_path / "run", case, mutants.omit_sparse_check
        )
