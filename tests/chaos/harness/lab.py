"""The tools that a test of the chaos programme works with."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.processes import ByRank, Child, Fault, ForkServer, pretrain, require_success, until


@dataclass(frozen=True)
class Lab:
    """Runs in the test's own folder, and a way to report counts.

    Attributes:
        overrides: settings of every run. rng: random numbers, from CHAOS_SEED.
        long: whether this is the programme's long form.
        look: returns the files of a run (`RunFiles` of tests/conftest.py).
        note: pytest's `record_property`.
    """

    server: ForkServer
    folder: Path
    overrides: Sequence[str]
    rng: np.random.Generator
    long: bool
    look: Callable[[Path], Any]
    note: Callable[[str, object], None]

    def plus(self, *overrides: str) -> "Lab":
        """Return a lab with further overrides for its runs."""
        return dataclasses.replace(self, overrides=[*self.overrides, *overrides])

    def settings(self, name: str = "run", *more: str) -> list[str]:
        """Return the overrides of a run in a folder of this name."""
        return [*self.overrides, f"checkpoint_path={self.folder / name}", *more]

    def files(self, name: str = "run") -> Any:
        """Return the files of the run with this name."""
        return self.look(self.folder / name)

    def require_same_end(self, name: str = "run", whole: str = "whole") -> None:
        """Require the same bits as another run, and no temporary files."""
        mine, other = self.files(name).digest(), self.files(whole).digest()
        assert mine.keys() == other.keys()
        assert self.files(name).leftovers() == []
        assert mine == other, f"{name}: other bits than {whole}"

    def run(self, name: str = "run", *more: str, faults: Sequence[Fault] = ()) -> Child:
        """Train, and wait for the end."""
        return self.server.run(pretrain, *self.settings(name, *more), faults=faults)

    def train(self, name: str = "run", *more: str, faults: Sequence[Fault] = ()) -> Child:
        """Train to the end, and require exit code 0."""
        return require_success(self.run(name, *more, faults=faults))[0]

    def start_ranks(
        self, world_size: int, name: str = "run", *more: str, faults: ByRank | None = None
    ) -> list[Child]:
        """Start a run on several ranks; `faults` are given by rank."""
        settings = self.settings(name, *more)
        return self.server.start_ranks(world_size, pretrain, *settings, faults=faults)

    def train_ranks(
        self, world_size: int, name: str = "run", *more: str, faults: Sequence[Fault] = ()
    ) -> Sequence[Child]:
        """Train to the end on several ranks, all with these faults; require exit codes 0."""
        armed = dict.fromkeys(range(world_size), faults)
        return require_success(*self.start_ranks(world_size, name, *more, faults=armed))

    def wait_for_training(self, since: int = 0) -> None:
        """Wait until the run has logged some steps after this one."""
        log = self.folder / "run" / "metrics.jsonl"
        until(lambda: log.exists() and log.read_text().count('train/lr"') > since + 2, "it trains")

    def copy(self, source: Path, name: str) -> Path:
        """Copy a folder to one of this name."""
        return shutil.copytree(source, self.folder / name, symlinks=True)

    def cases(self, *, quick: int, long: int) -> int:
        """Return the number of cases for the present form."""
        return long if self.long else quick

    def tally(self, *sentences: str, **numbers: int) -> None:
        """Report the test's counts; call it once, after all assertions.

        Sentences go into the details, numbers (by unit) into the table, summed by row.
        """
        self.note("figures", json.dumps({"sentences": sentences, "numbers": numbers}))
