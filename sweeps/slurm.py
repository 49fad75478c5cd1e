"""Jobs of SLURM, by submitit."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from runtime.errors import EXIT_PREEMPTED
from sweeps.config import SlurmConfig
from sweeps.jobs import Job


class Command:
    """Runs a job's command on the machine that SLURM gave it.

    Before its time is over SLURM sends a signal; submitit then calls `checkpoint`: the command
    saves and ends, and goes back into the queue.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command, self.environment, self.log = command, environment, log
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
            )
            return self._process.wait()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Let the command save, and queue it again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        again = Command(self.command, self.environment, self.log)
        return submitit.helpers.DelayedSubmission(again)


class SlurmProcess:
    """A job in the queue, or at work."""

    def __init__(self, job: submitit.Job[int]) -> None:
        self._job = job
        self._asked = False

    def poll(self) -> int | None:
        """Return the exit code, None while the job waits or is at work."""
        if not self._job.done():
            return None
        if self._asked:
            return EXIT_PREEMPTED
        error = self._job.exception()
        return 1 if error is not None else self._job.result()

    def stop(self) -> None:
        """Take the job out of the queue; one that is at work gets SIGTERM from SLURM."""
        if not self._asked:
            self._asked = True
            self._job.cancel()


class SlurmLauncher:
    """Submits jobs.

    Args:
        config: resources of a job.
        command: returns the command line of a job.
        logs: folder of the files NAME.log and of submitit's own.
        environment: variables to add for every job.
    """

    def __init__(
        self,
        config: SlurmConfig,
        command: Callable[[Job], list[str]],
        logs: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.max_jobs = config.max_jobs
        self._command, self._logs, self._environment = command, logs, environment
        logs.mkdir(parents=True, exist_ok=True)
        self._executor = submitit.AutoExecutor(folder=logs / "submitit", cluster=config.cluster)
        resources: dict[str, Any] = {
            "timeout_min": config.timeout_min,
            "cpus_per_task": config.cpus and config.cpus * config.ranks,
            "gpus_per_node": config.gpus * config.ranks,
            "mem_gb": config.mem_gb,
            "slurm_partition": config.partition,
            "slurm_account": config.account,
            "slurm_additional_parameters": config.additional or None,
        }
        self._executor.update_parameters(**{k: v for k, v in resources.items() if v is not None})

    def start(self, job: Job) -> SlurmProcess:
        """Submit a job: one task, which starts its ranks itself."""
        self._executor.update_parameters(name=job.name[:60])
        log = self._logs / f"{job.name}.log"
        command = Command(self._command(job), self._environment, log)
        return SlurmProcess(self._executor.submit(command))
