"""Jobs as processes of this machine: one after the other, or several at a time."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runtime.process import ENDS_WITH
from sweeps.jobs import Job


class LocalProcess:
    """A job in a process group of its own, which a Ctrl-C at the terminal does not reach."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._asked = False

    def poll(self) -> int | None:
        """Return the exit code (128 + N after signal N), None while the job is at work."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the job to save and end."""
        if not self._asked and self._process.poll() is None:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)


class LocalLauncher:
    """Starts jobs on this machine.

    Args:
        command: returns the command line of a job.
        logs: folder of the files NAME.log, which take what the jobs print.
        max_jobs: how many at a time.
        gpus: names for CUDA_VISIBLE_DEVICES, shared out among the jobs; empty: none.
        ranks: processes of each job, a GPU each.
        environment: variables to add for every job.
    """

    def __init__(
        self,
        command: Callable[[Job], list[str]],
        logs: Path,
        max_jobs: int,
        gpus: Sequence[str],
        ranks: int,
        environment: Mapping[str, str],
    ) -> None:
        self.max_jobs = max_jobs
        self._command, self._logs, self._environment = command, logs, environment
        self._gpus = [gpus[i * ranks : (i + 1) * ranks] for i in range(max_jobs)]
        self._at_work: dict[int, LocalProcess] = {}

    def start(self, job: Job) -> LocalProcess:
        """Start a job in a free place."""
        place = next(i for i in range(self.max_jobs) if self._is_free(i))
        environment = {**os.environ, **self._environment, ENDS_WITH: str(os.getpid())}
        if self._gpus[place]:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[place])
        log = self._logs / f"{job.name}.log"
        self._at_work[place] = LocalProcess(self._command(job), environment, log)
        return self._at_work[place]

    def _is_free(self, place: int) -> bool:
        return place not in self._at_work or self._at_work[place].poll() is not None
