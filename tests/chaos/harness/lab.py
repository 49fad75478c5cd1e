"""What a test of a row works with."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.processes import Child, Fault, ForkServer, pretrain


@dataclass(frozen=True)
class Lab:
    """Runs in a folder of the test's own, and an account of what was counted.

    Attributes:
        server: starts processes. folder: the test's own.
        overrides: of every run. rng: random numbers, from CHAOS_SEED.
        long: whether this is the programme's long form.
        look: returns what a run left in a folder (`RunFiles` of tests/conftest.py).
        note: keeps an account for the report.
    """

    server: ForkServer
    folder: Path
    overrides: Sequence[str]
    rng: np.random.Generator
    long: bool
    look: Callable[[Path], Any]
    note: Callable[[str, object], None]

    def plus(self, *overrides: str) -> "Lab":
        """Return a lab whose runs have further overrides."""
        return dataclasses.replace(self, overrides=[*self.overrides, *overrides])

    def settings(self, name: str = "run", *more: str) -> list[str]:
        """Return the overrides of a run in a folder of this name."""
        return [*self.overrides, f"checkpoint_path={self.folder / name}", *more]

    def files(self, name: str = "run") -> Any:
        """Return what the run in the folder of this name left behind."""
        return self.look(self.folder / name)

    def digest(self, name: str = "run") -> dict[str, Any]:
        """Return what must be the same in the bits of two runs."""
        return self.files(name).digest()

    def train(self, name: str = "run", *more: str, faults: Sequence[Fault] = ()) -> Child:
        """Train to the end, and require exit code 0."""
        return self.server.finish(pretrain, *self.settings(name, *more), faults=faults)

    def train_ranks(
        self, world_size: int, name: str = "run", *more: str, faults: Sequence[Fault] = ()
    ) -> list[Child]:
        """Train to the end on several ranks, each with these faults; require exit codes 0."""
        armed = dict.fromkeys(range(world_size), faults)
        children = self.start_ranks(world_size, name, *more, faults=armed)
        for child in children:
            assert child.wait() == 0, child.err
        return children

    def start_ranks(
        self,
        world_size: int,
        name: str = "run",
        *more: str,
        faults: Mapping[int, Sequence[Fault]] | None = None,
    ) -> list[Child]:
        """Start a run on several ranks, with faults by rank."""
        return self.server.start_ranks(
            world_size, pretrain, *self.settings(name, *more), faults=faults
        )

    def copy(self, source: Path, name: str) -> Path:
        """Copy a folder to one of this name."""
        return shutil.copytree(source, self.folder / name, symlinks=True)

    def cases(self, *, quick: int, long: int) -> int:
        """Return the number of cases in the present form."""
        return long if self.long else quick

    def tally(self, *sentences: str, **numbers: int) -> None:
        """Report what the test counted; see `report_to`."""
        report_to(self.note, *sentences, **numbers)


def report_to(note: Callable[[str, object], None], *sentences: str, **numbers: int) -> None:
    """Report what a test counted, once, after its assertions.

    Args:
        note: pytest's `record_property`.
        sentences: what was seen, for the text below the table.
        numbers: for the table, by unit; those of a row's tests are added up.
    """
    note("figures", json.dumps({"sentences": sentences, "numbers": numbers}))
