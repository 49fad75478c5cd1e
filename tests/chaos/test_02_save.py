"""Row 2: a run that is killed at any file operation of a save loses nothing.

It goes on from the last saved step, or the one being saved, and ends in the bits of a whole run.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness import builds, mutants
from harness.lab import Lab
from harness.processes import Fault, evaluate
from harness.saves import strike_saves

from training.checkpoint.store import newest_good

# The number of the struck save (None: the last one, of a step saved already), and other faults.
SAVES: dict[str, tuple[int | None, list[Fault]]] = {
    "a further step": (2, []),
    "the last step again": (None, []),
    "the last step again, where names cannot be swapped": (None, [builds.no_exchange]),
}


def good_step(folder: Path, saved: int) -> int:
    """Return the step from which a run in `folder` would go on; require `saved` or a later one."""
    checkpoint = newest_good(folder, lambda message: None)
    assert checkpoint is not None, "nothing is left"
    assert checkpoint.step >= saved, "a saved step is lost"
    return checkpoint.step


def listed(folder: Path) -> frozenset[tuple[str, int]]:
    """Return the names in a folder (without random parts), and the sizes of visible files."""
    found = set[tuple[str, int]]()
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        is_seen = path.is_file() and not name.startswith(".")
        found.add((re.sub(r"-[0-9a-f]{8}\b", "", name), path.stat().st_size if is_seen else 0))
    return frozenset(found)


def evaluated(lab: Lab, checkpoint: Path) -> dict[str, Any]:
    """Return the results of evaluating a checkpoint, or the newest good one of a run."""
    output = lab.folder / "evaluation.json"
    settings = (f"checkpoint={checkpoint}", f"output={output}", "device=cpu", "num_threads=1")
    lab.server.finish(evaluate, *settings)
    found = json.loads(output.read_bytes())
    del found["checkpoint"]
    return found


@pytest.mark.parametrize("which", SAVES)
def test_a_kill_at_any_operation_loses_nothing(lab: Lab, which: str) -> None:
    lab.train("whole", "keep_last=99")
    number, faults = SAVES[which]
    left, saved = strike_saves(lab, number, ("kill", "tear"), *faults)
    outcomes = {good_step(folder, saved) for folder, _ in left}
    assert outcomes == {saved} if number is None else len(outcomes) == 2
    expected = {step: evaluated(lab, lab.folder / f"whole/step_{step}") for step in outcomes}
    seen = set[frozenset[tuple[str, int]]]()
    for folder, operation in left:
        print(operation)  # noqa: T201
        if (content := listed(folder)) not in seen:
            seen.add(content)
            found = evaluated(lab, folder)
            assert found == expected[found["step"]]
        lab.train(f"copies/{folder.name}")
        lab.require_same_end(f"copies/{folder.name}")
    lab.tally(f"{which}: {len(left)} kills, one at each operation", kills=len(left), losses=0)


@pytest.mark.parametrize("mutant", mutants.params("save_in_place", "delete_before_replacing"))
def test_an_unsafe_save_is_caught(lab: Lab, mutant: Fault) -> None:
    left, saved = strike_saves(lab, None, ("kill", "tear"), mutant)
    with pytest.raises(AssertionError, match=r"nothing is left|is lost"):
        assert {good_step(folder, saved) for folder, _ in left}
