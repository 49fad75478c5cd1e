"""Jobs that submitit gives to SLURM."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import submitit
from submitit.slurm.slurm import SlurmInfoWatcher

from apps.sweeps.config import SlurmConfig
from apps.sweeps.folder import log_of
from apps.sweeps.jobs import Job, digest
from apps.sweeps.machine import JobProcess
from runtime.errors import EXIT_PREEMPTED, ConfigError
from runtime.files import write_atomically

_GONE_SECONDS = 15.0
_MAX_TIMEOUTS = 10_000
# Ask sacct about jobs without a result every 30 s; submitit's default is ten minutes.
submitit.SlurmJob.watcher = SlurmInfoWatcher(delay_s=30)


class Command:
    """Runs the command of a job on a SLURM node.

    On SIGTERM, which scancel sends, the command saves and ends. Shortly before the time limit SLURM
    sends another signal, and submitit calls `checkpoint`: the command saves, ends and goes back
    into the queue. On most clusters only this process gets the signals, on some its children too.
    The arguments are those of `JobProcess`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.arguments = command, environment, log
        self._process: JobProcess | None = None
        self._stopping = False

    def __call__(self) -> int:
        code_file = _code_file(self.arguments[-1])
        code_file.unlink(missing_ok=True)
        # submitit's own handler ignores SIGTERM. Its other signal would kill the command.
        signal.signal(signal.SIGTERM, lambda number, frame: self._stop())
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        self._process = JobProcess(*self.arguments, own_group=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        code = self._process.wait()
        if self._stopping and code == EXIT_PREEMPTED:
            sys.exit(code)  # Without a result: SLURM may start this job again.
        write_atomically(code_file, str(code))
        return code

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Let the command save and end, then queue it again."""
        self._stop()
        if self._process is not None:
            self._process.wait()
        return submitit.helpers.DelayedSubmission(Command(*self.arguments))

    def _stop(self) -> None:
        if self._process is None:
            sys.exit(EXIT_PREEMPTED)
        self._stopping = True
        self._process.stop()


class SlurmProcess:
    """A job that waits in the queue or runs.

    Args:
        job: the job of submitit.
        note: the file with the job's number; removed when the exit code is known.
    """

    def __init__(self, job: submitit.Job[int], note: Path) -> None:
        self._job, self._note = job, note
        self._stopping = False
        self._gone_since: float | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while the job waits or runs."""
        if not self._job.done():
            self._gone_since = None
            return None
        code = self._code()
        if code is not None:
            self._note.unlink(missing_ok=True)
        return code

    def _code(self) -> int | None:
        """Return the exit code of a job that left the queue. None while it may still appear: the
        file system may be slow, or the job may start again.
        """
        # Not submitit's own result, because that is a pickle.
        with contextlib.suppress(FileNotFoundError):
            return int(_code_file(self._note).read_text())
        if self._stopping:
            return EXIT_PREEMPTED
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since < _GONE_SECONDS:
            return None
        # A person cancelled it, or its node was lost.
        return 1 if self._job.state in ("FAILED", "OUT_OF_MEMORY") else EXIT_PREEMPTED

    def stop(self) -> None:
        """Cancel the job; a running one saves and ends."""
        if not self._stopping:
            self._job.cancel(check=False)
        self._stopping = True


class SlurmLauncher:
    """Submits jobs to SLURM. Takes over jobs of a killed sweep that wait, run or left an exit code.
    The arguments are those of `LocalLauncher`.

    Raises:
        ConfigError: SLURM is not installed here, or refuses the resources.
    """

    poll_seconds = 2.0

    def __init__(
        self,
        config: SlurmConfig,
        command: Callable[[Job], list[str]],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.max_jobs = config.max_jobs
        self._command, self._folder, self._environment = command, folder, environment
        self._submitted = log_of(folder, "submitit").with_suffix("")
        self._submitted.mkdir(parents=True, exist_ok=True)
        resources = {
            "timeout_min": config.timeout_min,
            "cpus_per_task": config.cpus and config.cpus * config.ranks,
            "gpus_per_node": config.gpus * config.ranks or None,
            "mem_gb": config.mem_gb,
            "slurm_partition": config.partition,
            "slurm_account": config.account,
            "slurm_additional_parameters": config.additional,
        }
        try:
            self._executor = submitit.AutoExecutor(
                self._submitted, "slurm", slurm_max_num_timeout=_MAX_TIMEOUTS
            )
            given = {key: value for key, value in resources.items() if value is not None}
            self._executor.update_parameters(**given)
        except RuntimeError as error:
            raise ConfigError(f"hydra/launcher=slurm: {error}") from None

    def start(self, job: Job) -> SlurmProcess:
        """Submit a job as one task; the task starts its ranks itself.

        Raises:
            ConfigError: SLURM refuses it.
        """
        log = log_of(self._folder, job.name)
        note = log.with_suffix(".job")
        arguments = self._command(job)
        identity = digest(arguments)
        if note.exists():
            number, _, noted = note.read_text().partition(" ")
            earlier = submitit.SlurmJob[int](self._submitted, number)
            has_ended = earlier.done(force_check=True)
            is_usable = _code_file(log).exists() if has_ended else earlier.state != "UNKNOWN"
            if is_usable and noted == identity:
                return SlurmProcess(earlier, note)
        self._executor.update_parameters(name=job.name[:60])
        try:
            _code_file(log).unlink(missing_ok=True)  # Of an earlier job.
            command = Command(arguments, self._environment, log)
            submitted = self._executor.submit(command)
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"hydra/launcher=slurm: {error}") from None
        note.write_text(f"{submitted.job_id} {identity}")
        return SlurmProcess(submitted, note)


def _code_file(beside: Path) -> Path:
    """Return the file for a job's exit code; it lies beside its log and its note."""
    return beside.with_suffix(".code")
