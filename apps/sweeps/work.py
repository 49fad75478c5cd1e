"""Start jobs, as many at a time as there is room for, and wait for them."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from apps.sweeps.folder import JobRecord
from apps.sweeps.jobs import Job
from runtime.errors import EXIT_LOCKED
from training.stop_signals import StopSignals

_LOCKED_SECONDS = 60.0


class Source(Protocol):
    """Where jobs come from, and where their ends are told."""

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """What has become of the jobs, by name."""
        ...

    @property
    def num_left(self) -> int:
        """How many jobs are still to be started."""
        ...

    def next(self) -> Job | None:
        """Return a job to start, or None when there is none, perhaps only for now."""
        ...

    def ended(self, job: Job, code: int) -> None:
        """Take note that a job has ended with an exit code."""
        ...

    def is_hopeless(self, job: Job) -> bool:
        """Return whether a job that is at work should be stopped for lack of promise."""
        ...


class Process(Protocol):
    """A job at work."""

    def poll(self) -> int | None:
        """Return the exit code, None while the job is at work."""
        ...

    def stop(self) -> None:
        """Ask the job to save and end; may be called more than once."""
        ...


class Launcher(Protocol):
    """Starts jobs.

    Attributes:
        max_jobs: how many may be at work at a time.
        poll_seconds: how often to look at them.
    """

    max_jobs: int
    poll_seconds: float

    def start(self, job: Job) -> Process:
        """Start a job and return at once."""
        ...


def run_jobs(
    source: Source, launcher: Launcher, advance: Callable[[int], object] = lambda jobs: None
) -> bool:
    """Run what `source` gives until it has no more and all have ended.

    SIGTERM and Ctrl-C ask all jobs to save and end, and are waited for. A job whose folder is
    locked is started again for a minute: a job of a sweep that was killed may still be saving.

    Args:
        advance: called with the number of jobs that have ended since the last call.
    Returns:
        whether it was stopped by a signal.
    """
    at_work: dict[str, tuple[Job, Process]] = {}
    patience: dict[str, float] = {}
    try:
        with StopSignals() as stop:
            while True:
                while not stop.requested and len(at_work) < launcher.max_jobs:
                    if (job := source.next()) is None:
                        break
                    at_work[job.name] = job, launcher.start(job)
                    patience[job.name] = time.monotonic() + _LOCKED_SECONDS
                if not at_work:
                    return stop.requested
                time.sleep(launcher.poll_seconds)
                for name, (job, process) in list(at_work.items()):
                    code = process.poll()
                    is_asked = stop.requested or source.is_hopeless(job)
                    if code is None:
                        if is_asked:
                            process.stop()
                    elif code == EXIT_LOCKED and not is_asked and time.monotonic() < patience[name]:
                        at_work[name] = job, launcher.start(job)
                    else:
                        del at_work[name]
                        source.ended(job, code)
                        advance(1)
    finally:
        for _, process in at_work.values():  # After a second Ctrl-C, or an error of ours.
            process.stop()
