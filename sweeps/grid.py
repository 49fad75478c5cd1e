"""Run all jobs of a sweep once, in order; what an earlier start has finished is not run again."""

from collections.abc import Callable, Mapping, Sequence

from runtime.errors import EXIT_PREEMPTED
from sweeps.folder import JobRecord, SweepFolder
from sweeps.jobs import Job


class Grid:
    """Gives out the jobs that have not finished yet.

    Args:
        jobs: all of them.
        folder: knows what has become of them.
        say: prints a line.
    """

    def __init__(
        self, jobs: Sequence[Job], folder: SweepFolder, say: Callable[[str], None]
    ) -> None:
        self._folder, self._say = folder, say
        self._total = len(jobs)
        known = folder.jobs
        self._left = [j for j in jobs if j.name not in known or known[j.name].state != "finished"]
        self._number = {job.name: number for number, job in enumerate(jobs, start=1)}
        if done := len(jobs) - len(self._left):
            say(f"{done} of {len(jobs)} jobs have finished before")

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """What has become of the jobs, by name."""
        return self._folder.jobs

    def next(self) -> Job | None:
        """Return the next job."""
        if not self._left:
            return None
        job = self._left.pop(0)
        self._say(f"[{self._number[job.name]}/{self._total}] {job.name}: started")
        return job

    def ended(self, job: Job, code: int) -> None:
        """Record the end of a job."""
        state = "finished" if code == 0 else "stopped" if code == EXIT_PREEMPTED else "failed"
        self._folder.note(job, state, code)
        how = f"failed with exit code {code}" if state == "failed" else state
        log = f", see {self._folder.path / 'logs' / job.name}.log" if state == "failed" else ""
        self._say(f"[{self._number[job.name]}/{self._total}] {job.name}: {how}{log}")

    def is_hopeless(self, job: Job) -> bool:
        """Every job of a grid is run to its end."""
        return False
