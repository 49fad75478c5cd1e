"""Row 9: damaged data are refused by the name of the file, before torch is loaded.

They never make the reader allocate more memory than the files justify.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import builds, data_damage
from harness.damage import ANYWHERE
from harness.data_damage import IN_ARRAYS, wrong_fact, wrong_offset
from harness.lab import Lab
from harness.processes import IMPORTS

Damage = Callable[..., dict[str, Any]]


@pytest.fixture
def damage(run_python: Callable[..., Any], tmp_path: Path) -> Damage:
    """Return a function that runs `harness.data_damage` and requires that no damage is silent."""

    def run(cases: int, mutant: str | None = None) -> dict[str, Any]:
        seed = int(os.environ.get("CHAOS_SEED", "0"))
        order = {"seed": [seed, 9], "cases": cases, "folder": str(tmp_path), "mutant": mutant}
        command = ("-m", "harness.data_damage", json.dumps(order))
        finished = run_python(*command, env=IMPORTS, timeout=60.0 + cases)
        assert finished.code == 0, finished.err
        account = json.loads(finished.out)
        assert (account["silent"], account["wrong"], account["torch"]) == ([], [], False)
        return account

    return run


def test_damage_is_noticed_before_torch_is_loaded(lab: Lab, damage: Damage) -> None:
    number = lab.cases(quick=500, long=20_000)
    account = damage(number)
    noticed, valid, untouched = (account[name] for name in ("noticed", "valid", "untouched"))
    assert noticed + valid + untouched == number
    assert noticed > 0.9 * number
    assert account["named"] > 0.85 * noticed
    lab.tally(
        f"{number} damages of 8 sets: {noticed} noticed, 0 silent, torch never loaded",
        f"not counted as silent: {valid} that left a valid set without a manifest, "
        f"{untouched} that changed only unread bytes",
        damages=number,
        silent=0,
    )


@pytest.mark.mutant("hash_not_compared")
def test_hashes_that_are_not_compared_are_missed(damage: Damage) -> None:
    with pytest.raises(AssertionError, match="sudoku: "):
        damage(200, "hash_not_compared")


def test_a_run_on_damaged_data_ends_before_its_model_is_built(lab: Lab) -> None:
    sources, kept = builds.write_sources(lab.folder / "sources"), lab.folder / "kept"
    assert builds.build_here("maze", *builds.flags("maze", sources, kept)) == 0
    kinds = dict.fromkeys((*ANYWHERE, *IN_ARRAYS, wrong_offset), "all__puzzle_indices.npy")
    kinds |= {wrong_fact: "dataset.json"}
    for kind, name in kinds.items():
        folder = lab.copy(kept, kind.__name__)
        kind(folder / "train" / name, lab.rng)
        child = lab.run("run", f"data_path={folder}", faults=[data_damage.no_model])
        child.require_refusal(3, str(folder))
    assert not (lab.folder / "run").exists()
    lab.tally(f"{len(kinds)} runs: exit code 3, one line, no model")
