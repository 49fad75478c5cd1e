"""Row 2: killed at any file operation of a save, a run goes on from the last step that was saved or
from the one that was being saved, and ends in the bits of one that nobody disturbed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import builds, mutants
from harness.processes import Fault, ForkServer, evaluate, pretrain
from harness.saves import AtEachOperation, struck

from training.checkpoint.store import list_steps, newest_good

# Which save is struck (None: the last one, of a step that is there), and what else is the matter.
SAVES: dict[str, tuple[int | None, list[Fault]]] = {
    "a further step": (2, []),
    "the last step again": (None, []),
    "the last step again, two names cannot be swapped": (None, [builds.no_exchange]),
}


@pytest.fixture
def strike(
    fork_server: ForkServer, full_settings: list[str], tmp_path: Path
) -> Callable[..., list[tuple[Path, str]]]:
    """Kill a save at each of its operations; returns the folders left behind, and where."""

    def run(saves_before: int | None, *faults: Fault) -> list[tuple[Path, str]]:
        copies = tmp_path / "copies"
        copies.mkdir()
        at = AtEachOperation(saves_before, ("kill", "tear"), copies)
        settings = [*full_settings, f"checkpoint_path={tmp_path / 'struck'}"]
        fork_server.finish(pretrain, *settings, faults=(*faults, at))
        return list(struck(copies))

    return run


def good_step(folder: Path, saved: int) -> int:
    """Return the step from which a run in `folder` would go on; it must not be before `saved`."""
    checkpoint = newest_good(folder, lambda message: None)
    assert checkpoint is not None
    assert checkpoint.step >= saved
    return checkpoint.step


def evaluated(server: ForkServer, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Return what an evaluation finds, of a checkpoint or of the newest good one of a run."""
    output = folder / "evaluation.json"
    server.finish(
        evaluate, f"checkpoint={checkpoint}", f"output={output}", "device=cpu", "num_threads=1"
    )
    found = json.loads(output.read_bytes())
    del found["checkpoint"]
    return found


@pytest.mark.row(2)
@pytest.mark.parametrize("which", SAVES)
def test_a_kill_at_any_operation_loses_nothing(
    fork_server: ForkServer,
    strike: Callable[..., list[tuple[Path, str]]],
    full_settings: list[str],
    files_of: Any,
    tmp_path: Path,
    rng: np.random.Generator,
    cases: Callable[..., int],
    tally: Callable[..., None],
    which: str,
) -> None:
    fork_server.finish(
        pretrain, *full_settings, f"checkpoint_path={tmp_path / 'whole'}", "keep_last=99"
    )
    whole = files_of(tmp_path / "whole")
    number, faults = SAVES[which]
    left = strike(number, *faults)
    saved = list_steps(tmp_path / "struck")[-1]
    outcomes = {good_step(folder, saved) for folder, _ in left}
    if number is None:
        assert outcomes == {saved}
    else:
        assert len(outcomes) == 2
    expected = {
        step: evaluated(fork_server, whole.folder / f"step_{step}", tmp_path) for step in outcomes
    }
    for folder, operation in left:
        found = evaluated(fork_server, folder, tmp_path)
        assert found == expected[found["step"]], operation
        child = fork_server.run(pretrain, *full_settings, f"checkpoint_path={folder}")
        assert child.wait() == 0, (operation, child.err)
        files = files_of(folder)
        assert files.digest() == whole.digest(), operation
        assert files.leftovers() == [], operation
    tally(
        f"{which}: {len(left)} kills, all operations",
        "0 evaluated otherwise",
        "0 ended in other bits",
    )


@pytest.mark.parametrize(
    "mutant", mutants.params(2, mutants.save_in_place, mutants.delete_before_replacing)
)
def test_an_unsafe_save_is_caught(
    strike: Callable[..., list[tuple[Path, str]]], tmp_path: Path, mutant: Fault
) -> None:
    left = strike(None, mutant)
    saved = list_steps(tmp_path / "struck")[-1]

    def lost(folder: Path) -> bool:
        checkpoint = newest_good(folder, lambda message: None)
        return checkpoint is None or checkpoint.step < saved

    assert any(lost(folder) for folder, _ in left)
