"""Row 20: the same seed gives the same bytes for any hash seed of Python and any order of files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import builds
from harness.builds import contents
from harness.lab import Lab
from harness.processes import IMPORTS

TRIES = 5
ARC = "--num-aug=3"
SETS = {
    "sudoku": ["sudoku"],
    "maze": ["maze"],
    "arc": ["arc", ARC],
    "arc-materialized": ["arc", ARC, "--materialize"],
}

Run = Callable[..., Path]


@pytest.fixture
def run(lab: Lab, run_python: Callable[..., Any]) -> Run:
    """Return a function that builds the sets and trains in another process, in the nth disorder."""
    sources = builds.write_sources(lab.folder / "sources")

    def start(number: int, sets: list[str], *train: str, mutant: str | None = None) -> Path:
        folder = lab.folder / f"{number}"
        flags = {name: [f"{sources}", f"{folder / name}", *SETS[name][1:]] for name in sets}
        order = {
            "seed": number,
            "mutant": mutant,
            "builds": [[SETS[name][0], *flags[name]] for name in sets],
            "train": [*train, f"checkpoint_path={folder / 'run'}"] if train else [],
        }
        environment = {**IMPORTS, "PYTHONHASHSEED": str(lab.rng.integers(2**32))}
        command = ("-m", "harness.disorder", json.dumps(order))
        finished = run_python(*command, env=environment, timeout=120.0)
        assert finished.code == 0, finished.err
        return folder

    return start


def test_the_same_seed_gives_the_same_bytes(lab: Lab, run: Run) -> None:
    folders = [run(number, list(SETS), *lab.overrides, "max_steps=8") for number in range(TRIES)]
    for name in SETS:
        built = [contents(folder / name) for folder in folders]
        assert len(built[0]) > 10
        assert [files == built[0] for files in built] == [True] * TRIES, name
    digests = [lab.look(folder / "run").digest() for folder in folders]
    assert digests[0]["step"] == 8
    assert [digest == digests[0] for digest in digests] == [True] * TRIES
    said = f"{TRIES} builds of {len(SETS)} sets and {TRIES} runs of 8 steps, all the same bytes"
    lab.tally(said, builds=TRIES * len(SETS), runs=TRIES)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(n, marks=pytest.mark.mutant(n)) for n in ("in_directory_order", "by_hash")],
)
def test_a_dependence_on_the_machine_is_noticed(run: Run, mutant: str) -> None:
    folders = [run(number, ["arc"], mutant=mutant) for number in range(2)]
    assert contents(folders[0] / "arc") != contents(folders[1] / "arc")
