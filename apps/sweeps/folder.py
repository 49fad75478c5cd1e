"""A sweep's folder: what the sweep is, what has become of each job, and the table of results.

SWEEP/sweep.json      the jobs, their states, and what was decided for this machine
SWEEP/results.json    and .csv: the table
SWEEP/NAME/           a job's run; of an evaluation NAME.json and what else it writes
SWEEP/logs/NAME.log   what a job printed
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from apps.sweeps.jobs import Job
from runtime.errors import EXIT_PREEMPTED, CheckpointError, ConfigError, disk_errors
from runtime.files import read_bounded, write_atomically
from runtime.schema import Schema
from runtime.text import shown

SWEEP_FILE = "sweep.json"
_MAX_BYTES = 64 * 2**20

State = Literal["waiting", "running", "finished", "failed", "stopped"]


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


def read_record(folder: Path) -> SweepRecord | None:
    """Return a sweep's record, None before it has one; CheckpointError: it is damaged."""
    file = folder / SWEEP_FILE
    try:
        return SweepRecord.model_validate_json(read_bounded(file, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{file}: {reason}; delete it to begin the sweep again") from None


def write_record(folder: Path, record: SweepRecord) -> None:
    """Write a sweep's record; ConfigError: the disk refused."""
    with disk_errors(folder / SWEEP_FILE, ConfigError):
        write_atomically(folder / SWEEP_FILE, record.model_dump_json(indent=1) + "\n")


def log_of(folder: Path, name: str) -> Path:
    """Return the file that takes what a job prints."""
    return folder / "logs" / f"{name}.log"


def _last_words(log: Path) -> str:
    """Return the last line that a job has printed, where its error is."""
    text = log.read_text(errors="replace").rstrip() if log.exists() else ""
    return shown(text.rpartition("\n")[2], 300) or "it has printed nothing"


class Grid:
    """Gives out the jobs of a sweep that have not finished yet, in order, and keeps its record.

    Args:
        jobs: all of them, with a digest of the settings of each; a job that finished with others
            is not finished.
        folder: of the sweep.
        record: what has become of its jobs so far.
        has_result: returns whether what a job has written is still there.
        score: returns the metric that people look for, as text, "" where there is none.
        say: prints a line.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, str]],
        folder: Path,
        record: SweepRecord,
        has_result: Callable[[str], bool],
        score: Callable[[str], str],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._record, self._score, self._say = folder, record, score, say
        self._settings = {job.name: settings for job, settings in jobs}
        self._places = {
            job.name: f"[{number}/{len(jobs)}] {job.name}: "
            for number, (job, _) in enumerate(jobs, start=1)
        }
        self._left: list[Job] = []
        self.note({job.name: JobRecord(values=job.values) for job, _ in jobs} | record.jobs)
        for job, settings in jobs:
            known = self.jobs[job.name]
            if (known.state, known.settings) != ("finished", settings):
                self._left.append(job)
            elif not has_result(job.name):
                say(f"{self._places[job.name]}finished before, but its result is gone")
                self._left.append(job)
        if done := len(jobs) - len(self._left):
            say(f"{done} of {len(jobs)} jobs have finished before")

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """What has become of the jobs in this folder, those of other commands included."""
        return self._record.jobs

    @property
    def ends(self) -> list[JobRecord]:
        """What has become of this command's jobs."""
        return [self.jobs[name] for name in self._places]

    @property
    def num_left(self) -> int:
        return len(self._left)

    def next(self) -> Job | None:
        """Return the next job."""
        if not self._left:
            return None
        job = self._left.pop(0)
        self._say(f"{self._places[job.name]}started")
        return job

    def ended(self, job: Job, code: int) -> None:
        """Record the end of a job."""
        state = "finished" if code == 0 else "stopped" if code == EXIT_PREEMPTED else "failed"
        kept = JobRecord(values=job.values, settings=self._settings[job.name])
        self.note({job.name: kept.model_copy(update={"state": state, "exit_code": code})})
        more = self._score(job.name) if code == 0 else ""
        if state == "failed":
            log = log_of(self._folder, job.name)
            said = f": {_last_words(log)}" if code < 128 else ""  # A killed job reports nothing.
            more = f" with exit code {code}{said} (see {log})"
        self._say(f"{self._places[job.name]}{state}{more}")

    def note(self, records: Mapping[str, JobRecord]) -> None:
        """Record what has become of jobs, before anything is built on it."""
        self._record = self._record.model_copy(update={"jobs": {**self.jobs, **records}})
        write_record(self._folder, self._record)
