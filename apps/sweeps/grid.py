"""Run all jobs of a sweep once, in order; what an earlier start has finished is not run again."""

from collections.abc import Callable, Mapping, Sequence

from apps.sweeps.folder import JobRecord, SweepFolder
from apps.sweeps.jobs import Job
from runtime.errors import EXIT_PREEMPTED


class Grid:
    """Gives out the jobs that have not finished yet.

    Args:
        jobs: all of them.
        settings: a digest of the settings of each; a job that finished with others is not finished.
        folder: knows what has become of them.
        has_result: returns whether what a job has written is still there.
        score: returns the metric that people look for, as text, "" where there is none.
        say: prints a line.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        settings: Mapping[str, str],
        folder: SweepFolder,
        has_result: Callable[[str], bool],
        score: Callable[[str], str],
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._folder, self._score, self._say = settings, folder, score, say
        self._places = {
            job.name: f"[{number}/{len(jobs)}] {job.name}: "
            for number, job in enumerate(jobs, start=1)
        }
        self._left: list[Job] = []
        folder.expect(jobs)
        for job in jobs:
            known = folder.jobs[job.name]
            if (known.state, known.settings) != ("finished", settings[job.name]):
                self._left.append(job)
            elif not has_result(job.name):
                say(f"{self._places[job.name]}finished before, but its result is gone")
                self._left.append(job)
        if done := len(jobs) - len(self._left):
            say(f"{done} of {len(jobs)} jobs have finished before")

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """What has become of the jobs, by name."""
        return self._folder.jobs

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
        self._folder.note(job, state, code, self._settings[job.name])
        more = self._score(job.name) if code == 0 else ""
        if state == "failed":
            # Who is killed says nothing.
            said = f": {self._folder.last_words(job.name)}" if code < 128 else ""
            more = f" with exit code {code}{said} (see {self._folder.log(job.name)})"
        self._say(f"{self._places[job.name]}{state}{more}")

    def is_hopeless(self, job: Job) -> bool:
        """Every job of a grid is run to its end."""
        return False
