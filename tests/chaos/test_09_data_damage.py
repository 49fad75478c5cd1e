"""Row 9: damaged data are noticed, by the name of the file, before torch is loaded and before more
memory is asked for than the files justify.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import builds, data_damage, mutants
from harness.data_damage import ANYWHERE, IN_ARRAYS, wrong_fact, wrong_offset
from harness.processes import IMPORTS, ForkServer, pretrain

Damage = Callable[..., dict[str, Any]]


@pytest.fixture
def damage(run_python: Callable[..., Any], tmp_path: Path) -> Damage:
    """Damage data sets in a process of its own; returns what `data_damage.Account` says."""

    def run(cases: int, mutant: str | None = None) -> dict[str, Any]:
        seed = int(os.environ.get("CHAOS_SEED", "0"))
        order = {"seed": [seed, 9], "cases": cases, "folder": str(tmp_path), "mutant": mutant}
        finished = run_python(
            "-m", "harness.data_damage", json.dumps(order), env=IMPORTS, timeout=60.0 + cases
        )
        assert finished.code == 0, f"CHAOS_SEED={seed}: {finished.err}"
        return json.loads(finished.out)

    return run


def require_noticed(account: dict[str, Any]) -> None:
    """Fail unless every damage that can be seen was."""
    assert (account["silent"], account["wrong"], account["torch"]) == ([], [], False)


@pytest.mark.row(9)
def test_damage_is_noticed_before_torch_is_loaded(
    damage: Damage, cases: Callable[..., int], tally: Callable[..., None]
) -> None:
    number = cases(quick=500, long=20_000)
    account = damage(number)
    require_noticed(account)
    noticed, valid, untouched = (account[name] for name in ("noticed", "valid", "untouched"))
    assert noticed + valid + untouched == number
    assert noticed > 0.9 * number
    assert account["named"] > 0.85 * noticed
    tally(
        f"{number} damages of 8 sets: {noticed} noticed, 0 silent, torch never loaded",
        f"not counted as silent: {valid} in sets without a manifest that were valid sets again, "
        f"{untouched} that changed nothing that is read",
        damages=number,
        silent=0,
    )


@pytest.mark.row(9, mutant=f"{mutants.hash_not_compared.__doc__}")
def test_hashes_that_are_not_compared_are_missed(damage: Damage) -> None:
    account = damage(200, "hash_not_compared")
    with pytest.raises(AssertionError):
        require_noticed(account)
    assert account["silent"] != []


@pytest.mark.row(9)
def test_a_run_on_damaged_data_ends_before_its_model_is_built(
    fork_server: ForkServer, tmp_path: Path, rng: np.random.Generator, tally: Callable[..., None]
) -> None:
    sources = builds.write_sources(tmp_path / "sources")
    assert builds.main_of("maze")(builds.flags("maze", sources, tmp_path / "kept")) == 0
    settings = [f"data_path={tmp_path / 'set'}", f"checkpoint_path={tmp_path / 'run'}"]
    places = {"all__puzzle_indices.npy": (*ANYWHERE, *IN_ARRAYS, wrong_offset)}
    places["dataset.json"] = (wrong_fact,)
    codes = []
    for name, kinds in places.items():
        for kind in kinds:
            shutil.rmtree(tmp_path / "set", ignore_errors=True)
            shutil.copytree(tmp_path / "kept", tmp_path / "set")
            kind(tmp_path / "set" / "train" / name, rng)
            child = fork_server.run(pretrain, *settings, faults=[data_damage.no_model])
            codes.append(child.wait())
            assert codes[-1] == 3, f"{kind.__name__}: {child.err}"
            assert str(tmp_path / "set") in child.err
            assert child.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
    tally(f"{len(codes)} runs: exit code 3, one line, no model")
