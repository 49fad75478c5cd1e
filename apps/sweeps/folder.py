"""A sweep's folder: what the sweep is, what has become of each job, and the table of results.

SWEEP/sweep.json      the jobs, their states, and what was decided for this machine
SWEEP/results.json    and .csv: the table
SWEEP/NAME/           a job's run; of an evaluation NAME.json and what else it writes
SWEEP/logs/NAME.log   what a job printed
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from apps.sweeps.jobs import Job
from runtime.errors import CheckpointError, ConfigError
from runtime.files import read_bounded, write_atomically
from runtime.schema import Schema
from runtime.text import shown

SWEEP_FILE = "sweep.json"
_MAX_BYTES = 64 * 2**20
_TAIL_BYTES = 4096

State = Literal["waiting", "running", "finished", "failed", "stopped", "pruned"]


class Machine(Schema):
    """What the bits of a job depend on, decided once for all jobs of a sweep.

    Attributes:
        num_threads: CPU threads of a process; None: left to torch, where GPUs do the work.
    """

    device: Literal["cpu", "cuda"]
    num_threads: int | None
    compile: Literal["auto"] | bool


class JobRecord(Schema):
    """What has become of a job.

    Attributes:
        values: the swept settings.
        exit_code: of its last start; None before it has ended once.
        result: of a search, the value of the objective.
        settings: a digest of all its settings, None where these are told by `values`.
    """

    values: dict[str, str]
    state: State = "waiting"
    exit_code: int | None = None
    result: float | None = None
    settings: str | None = None


class SweepRecord(Schema):
    """The content of `sweep.json`."""

    version: Literal[1] = 1
    command: list[str]
    machine: Machine
    jobs: dict[str, JobRecord] = {}


class SweepFolder:
    """Keeps a sweep's record on disk; one process at a time, which holds the folder's lock.

    Args:
        path: the folder.
        command: the command line, for people who find the folder.
        decide: decides on the machine where the folder has no record yet.
    Raises:
        ConfigError: the folder cannot be written.
        CheckpointError: its record is damaged.
    """

    def __init__(self, path: Path, command: list[str], decide: Callable[[], Machine]) -> None:
        self.path = path
        self._record = self._recorded() or SweepRecord(command=command, machine=decide())
        self._write()

    def _recorded(self) -> SweepRecord | None:
        file = self.path / SWEEP_FILE
        try:
            return SweepRecord.model_validate_json(read_bounded(file, _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{file}: {reason}; delete it to begin the sweep again") from None

    @property
    def machine(self) -> Machine:
        """What was decided when the sweep began."""
        return self._record.machine

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """The jobs by name."""
        return self._record.jobs

    def expect(self, jobs: Iterable[Job]) -> None:
        """Record jobs that are to come, where they are not known yet."""
        new = {job.name: JobRecord(values=job.values) for job in jobs}
        self._record = self._record.model_copy(update={"jobs": new | self._record.jobs})
        self._write()

    def log(self, name: str) -> Path:
        """Return the file that takes what a job prints."""
        return self.path / "logs" / f"{name}.log"

    def last_words(self, name: str) -> str:
        """Return the last line that a job has printed, where its error is."""
        try:
            with open(self.log(name), "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return "it has printed nothing"
        return next((shown(line, 300) for line in reversed(lines) if line.strip()), "")

    def note(
        self, job: Job, state: State, exit_code: int | None = None, settings: str | None = None
    ) -> None:
        """Record what has become of a job, before anything is built on it."""
        record = JobRecord(values=job.values, state=state, exit_code=exit_code, settings=settings)
        jobs = {**self._record.jobs, job.name: record}
        self._record = self._record.model_copy(update={"jobs": jobs})
        self._write()

    def _write(self) -> None:
        try:
            content = self._record.model_dump_json(indent=1)
            write_atomically(self.path / SWEEP_FILE, content + os.linesep)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
