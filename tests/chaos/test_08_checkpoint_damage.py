"""Row 8: a checkpoint whose files were changed in any way is refused with the name of a file, and a
run goes on from the one before.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import evaluate, pretrain

from runtime.errors import CheckpointError
from training.checkpoint.store import checkpoint_path, list_steps, load_checkpoint, newest_good

Damage = Callable[[Path, Path, np.random.Generator], None]


@pytest.fixture(scope="module")
def made() -> list[Path]:
    """Where the run of this module lies, once it has been made."""
    return []


@pytest.fixture
def checkpoints(lab: Lab, made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the checkpoints of steps 6 and 9. Not to be changed."""
    if not made:
        folder = tmp_path_factory.mktemp("checkpoints")
        lab.server.finish(pretrain, *lab.overrides, f"checkpoint_path={folder}", "max_steps=9")
        made.append(folder)
    assert list_steps(made[0]) == [6, 9]
    return made[0]


def flip(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Flip a bit."""
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def cut(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Cut the file somewhere."""
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def lengthen(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Append something."""
    path.write_bytes(path.read_bytes() + rng.bytes(rng.integers(1, 99)))


def blank(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Put zeros in the place of a block that was not zero."""
    content = bytearray(path.read_bytes())
    start = int(rng.choice(np.flatnonzero(content)))
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content)


def remove(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Delete the file."""
    path.unlink()


def swap(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Put a file of another name, or of the older checkpoint, in its place."""
    others = [p for p in (*path.parent.iterdir(), *older.iterdir()) if p != path]
    others = [p for p in sorted(others) if p.read_bytes() != path.read_bytes()]
    shutil.copy(others[rng.integers(len(others))], path)


def empty(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Leave nothing in it."""
    path.write_bytes(b"")


def replace_all(path: Path, older: Path, rng: np.random.Generator) -> None:
    """Put the whole older checkpoint in the place of this one."""
    shutil.rmtree(path.parent)
    shutil.copytree(older, path.parent)


DAMAGES = (flip, flip, flip, cut, lengthen, blank, remove, swap, empty, replace_all)


def silent_cases(lab: Lab, checkpoints: Path, number: int, damages: Sequence[Damage]) -> list[str]:
    """Damage copies of the newest checkpoint; returns the cases that nobody noticed."""
    silent = []
    names = sorted(path.name for path in checkpoint_path(checkpoints, 9).iterdir())
    for case in range(number):
        folder = lab.copy(checkpoints, "run")
        newest, older = checkpoint_path(folder, 9), checkpoint_path(folder, 6)
        damage = damages[case % len(damages)]
        path = newest / names[lab.rng.integers(len(names))]
        damage(path, older, lab.rng)
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


@pytest.mark.row(8)
def test_no_damage_is_silent(lab: Lab, checkpoints: Path) -> None:
    number = lab.cases(quick=1000, long=10000)
    assert silent_cases(lab, checkpoints, number, DAMAGES) == []
    lab.tally(f"{number} damages, all noticed", damages=number, unnoticed=0)


@pytest.mark.row(8)
def test_runs_and_evaluations_name_the_file(lab: Lab, checkpoints: Path) -> None:
    path = lab.copy(checkpoints, "run") / "step_9" / "model.safetensors"
    flip(path, path, lab.rng)
    for target, overrides in (
        (pretrain, lab.settings("run", "resume=9")),
        (evaluate, [f"checkpoint={path.parent}", "device=cpu"]),
    ):
        child = lab.server.run(target, *overrides)
        assert child.wait() == 4, child.err
        assert str(path) in child.error_line
        assert "sha256" in child.error_line
    assert path.exists()

    child = lab.train()
    assert "warning: skipping a damaged checkpoint" in child.err
    assert "resumed exactly from" in child.out
    assert "step_6 at step 6" in child.out
    lab.tally("a step asked for by name is refused, `resume=auto` goes on from the one before")


@pytest.mark.row(8, mutant=f"{mutants.no_hash.__doc__}")
def test_without_hashes_damage_is_silent(
    lab: Lab, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.checkpoint.store.sha256", mutants.any_hash)
    assert silent_cases(lab, checkpoints, 30, (flip,))
