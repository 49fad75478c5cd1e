"""Row 8: a damaged checkpoint is refused by the name of a file, and a run resumes before it."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from harness import mutants
from harness.damage import ANYWHERE, Rng, flip
from harness.hostile import seal
from harness.lab import Lab
from harness.processes import Child, Fault, evaluate, pretrain
from safetensors.torch import load_file, save_file

from runtime.errors import CheckpointError
from training.checkpoint.store import checkpoint_path, list_steps, load_checkpoint, newest_good


@pytest.fixture
def checkpoints(lab: Lab) -> Path:
    """Return a run's folder with the checkpoints of steps 6 and 9; copy it, do not change it."""
    lab.train("made", "max_steps=9")
    assert list_steps(lab.folder / "made") == [6, 9]
    return lab.folder / "made"


def replace_all(path: Path, rng: Rng) -> None:
    """Replace the checkpoint by a whole older one."""
    shutil.rmtree(path.parent)
    shutil.copytree(path.parent.with_name("step_6"), path.parent)


def silent_cases(lab: Lab, checkpoints: Path, number: int, damages: Sequence[Any]) -> list[str]:
    """Damage copies of the newest checkpoint, and return the cases that were not noticed."""
    silent = []
    names = sorted(path.name for path in checkpoint_path(checkpoints, 9).iterdir())
    for case in range(number):
        folder = lab.copy(checkpoints, "run")
        newest, damage = checkpoint_path(folder, 9), damages[case % len(damages)]
        path = newest / names[lab.rng.integers(len(names))]
        damage(path, lab.rng)
        warnings: list[str] = []
        good = newest_good(folder, warnings.append)
        assert good is not None
        if good.step == 6:
            with pytest.raises(CheckpointError, match=re.escape(f"{newest}/")) as caught:
                load_checkpoint(newest)
            assert [warning.partition(": ")[2] for warning in warnings] == [str(caught.value)]
        else:
            silent.append(f"{damage.__name__} {path.name}")
        shutil.rmtree(folder)
    return silent


def test_no_damage_is_silent(lab: Lab, checkpoints: Path) -> None:
    number = lab.cases(quick=1000, long=10000)
    damages = (flip, flip, *ANYWHERE, replace_all)
    assert silent_cases(lab, checkpoints, number, damages) == []
    lab.tally(f"{number} damages, all noticed", damages=number, unnoticed=0)


def test_runs_and_evaluations_name_the_file(lab: Lab, checkpoints: Path) -> None:
    path = lab.copy(checkpoints, "run") / "step_9" / "model.safetensors"
    flip(path, lab.rng)
    for target in (
        (pretrain, *lab.settings("run", "resume=9")),
        (evaluate, f"checkpoint={path.parent}", "device=cpu"),
    ):
        lab.server.run(*target).require_refusal(4, str(path), "sha256")
    assert path.exists()
    child = lab.train()
    assert "warning: skipping a damaged checkpoint" in child.err
    assert "resumed exactly from" in child.out
    assert "step_6 at step 6" in child.out
    lab.tally("`resume=STEP` is refused, `resume=auto` goes on from the checkpoint before")


def with_one_byte(lab: Lab, checkpoints: Path, *faults: Fault) -> tuple[Child, Path]:
    """Resume from random states that are all the same byte, with right hashes."""
    path = lab.copy(checkpoints, "run") / "step_9" / "rng.safetensors"
    save_file({key: torch.full_like(value, 7) for key, value in load_file(path).items()}, path)
    seal(path.parent)
    return lab.run(faults=faults), path


def test_invalid_random_states_are_named(lab: Lab, checkpoints: Path) -> None:
    child, path = with_one_byte(lab, checkpoints)
    child.require_refusal(4, f"{path}: random state: ")
    lab.tally("an invalid random state: named")


@pytest.mark.parametrize("mutant", mutants.params("explain_nothing"))
def test_without_the_explanation_there_is_a_traceback(
    lab: Lab, checkpoints: Path, mutant: Fault
) -> None:
    child, _ = with_one_byte(lab, checkpoints, mutant)
    assert child.wait() == 1
    assert "Traceback" in child.err


@pytest.mark.parametrize("mutant", mutants.params("no_hash"))
def test_without_hashes_damage_is_silent(lab: Lab, checkpoints: Path, mutant: Fault) -> None:
    mutant()
    try:
        assert silent_cases(lab, checkpoints, 30, (flip,))
    finally:
        patch.stopall()
