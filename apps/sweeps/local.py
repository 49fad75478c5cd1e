"""Jobs as processes of this machine: one after the other, or several at a time."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from apps.sweeps.jobs import Job
from runtime.errors import EXIT_PREEMPTED
from runtime.process import ENDS_WITH


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command that reads nothing, and whose words go to the end of `log`."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=start_new_session,
        )


def exit_code(code: int, *, asked: bool) -> int:
    """Return a code of `subprocess` as a shell counts it, 128 + N after signal N; of a job that was
    asked to save and end before it was prepared for that, and had nothing to save, EXIT_PREEMPTED.
    """
    if asked and code == -signal.SIGTERM:
        return EXIT_PREEMPTED
    return code if code >= 0 else 128 - code


class LocalProcess:
    """A job in a process group of its own, which a Ctrl-C at the terminal does not reach."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._process = start_process(command, environment, log, start_new_session=True)
        self._asked = False

    def poll(self) -> int | None:
        """Return the exit code, None while the job is at work."""
        code = self._process.poll()
        return None if code is None else exit_code(code, asked=self._asked)

    def stop(self) -> None:
        """Ask the job to save and end."""
        if not self._asked and self._process.poll() is None:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)


class LocalLauncher:
    """Starts jobs on this machine, which end with this process.

    Args:
        command: returns the command line of a job.
        log: returns the file that takes what a job prints.
        max_jobs: how many at a time.
        gpus: names for CUDA_VISIBLE_DEVICES, as many for each job as it has ranks; jobs share them
            when there are more jobs than that is enough for. Empty: none.
        ranks: processes of each job.
        environment: variables to add for every job.
    """

    poll_seconds = 0.2

    def __init__(
        self,
        command: Callable[[Job], list[str]],
        log: Callable[[str], Path],
        max_jobs: int,
        gpus: Sequence[str],
        ranks: int,
        environment: Mapping[str, str],
    ) -> None:
        self.max_jobs = max_jobs
        self._command, self._log = command, log
        self._environment = {**environment, ENDS_WITH: str(os.getpid())}
        self._gpus = [gpus[i : i + ranks] for i in range(0, len(gpus) - ranks + 1, ranks)]
        self._at_work: dict[int, LocalProcess] = {}

    def start(self, job: Job) -> LocalProcess:
        """Start a job in a free place."""
        place = next(i for i in range(self.max_jobs) if self._is_free(i))
        environment = {**os.environ, **self._environment}
        if self._gpus:
            own = self._gpus[place % len(self._gpus)]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        self._at_work[place] = LocalProcess(self._command(job), environment, self._log(job.name))
        return self._at_work[place]

    def _is_free(self, place: int) -> bool:
        return place not in self._at_work or self._at_work[place].poll() is not None
