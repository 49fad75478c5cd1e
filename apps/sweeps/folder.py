"""A sweep's folder, and the record of its jobs.

SWEEP/sweep.json      the jobs, their states, and the device settings of all jobs
SWEEP/results.json    the table of results, also as results.csv
SWEEP/NAME/           the run of a job; for an evaluation NAME.json and its other files
SWEEP/logs/NAME.log   the output of a job
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
    """The device settings that a job's bits depend on, decided once for all jobs of a sweep.

    Attributes:
        num_threads: CPU threads of a process; None on GPUs: torch decides.
    """

    device: Literal["cpu", "cuda"]
    num_threads: int | None
    compile: Literal["auto"] | bool


class JobRecord(Schema):
    """The state of a job.

    Attributes:
        values: the swept settings.
        exit_code: of the job's last start; None until it has ended once.
        result: value of the objective; None in a grid.
        settings: a digest of all settings of the job; None in a study.
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
    """Return the record of a sweep, None if it has none yet; CheckpointError if it is damaged."""
    file = folder / SWEEP_FILE
    try:
        return SweepRecord.model_validate_json(read_bounded(file, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{file}: {reason}; delete it to start the sweep again") from None


def write_record(folder: Path, record: SweepRecord) -> None:
    """Write the record of a sweep; ConfigError if it cannot be written."""
    with disk_errors(folder / SWEEP_FILE, ConfigError):
        write_atomically(folder / SWEEP_FILE, record.model_dump_json(indent=1) + "\n")


def log_of(folder: Path, name: str) -> Path:
    """Return the file that takes the output of a job."""
    return folder / "logs" / f"{name}.log"


def _last_line(log: Path) -> str:
    """Return the last line that a job printed: usually its error."""
    text = log.read_text(errors="replace").rstrip() if log.exists() else ""
    return shown(text.rpartition("\n")[2], 300) or "it printed nothing"


class GridJobs:
    """Gives out the unfinished jobs of a grid in order, and keeps the record of the sweep.

    Args:
        jobs: every job with a digest of its settings; a job that finished with another digest runs
            again.
        record: the states of the jobs so far.
        result: returns the file with the result of a job.
        score: returns the main metric of a job as text, "" if it has none.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, str]],
        folder: Path,
        record: SweepRecord,
        result: Callable[[str], Path],
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
            elif not result(job.name).exists():
                say(f"{self._places[job.name]}was finished, but its result is gone")
                self._left.append(job)
        if done := len(jobs) - len(self._left):
            say(f"{done} of {len(jobs)} jobs are already finished")

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """The jobs in this folder, including jobs of other commands."""
        return self._record.jobs

    @property
    def ends(self) -> list[JobRecord]:
        """The jobs of this command."""
        return [self.jobs[name] for name in self._places]

    @property
    def num_left(self) -> int:
        return len(self._left)

    def next(self) -> Job | None:
        """Return the next job, None if none is left."""
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
            said = f": {_last_line(log)}" if code < 128 else ""  # A killed job reports nothing.
            more = f" with exit code {code}{said} (see {log})"
        self._say(f"{self._places[job.name]}{state}{more}")

    def note(self, records: Mapping[str, JobRecord]) -> None:
        """Update the states of jobs and write the record."""
        self._record = self._record.model_copy(update={"jobs": {**self.jobs, **records}})
        write_record(self._folder, self._record)
