"""Jobs as processes of this machine, and the device settings that they share."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from apps.sweeps.config import LauncherConfig, PoolConfig, SlurmConfig
from apps.sweeps.folder import Machine, log_of
from apps.sweeps.jobs import Job
from runtime.errors import EXIT_PREEMPTED
from runtime.process import PARENT_PID, num_processors
from runtime.schema import MachineSettings

_LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch.py"


def decide_machine(settings: MachineSettings, launcher: LauncherConfig) -> Machine:
    """Return the device settings of all jobs, from the user's settings and this machine."""
    if isinstance(launcher, SlurmConfig):
        threads, is_cuda = launcher.cpus or 1, launcher.gpus > 0
    elif settings.device == "cpu" and settings.num_threads is not None:
        threads, is_cuda = settings.num_threads, False  # No need to load torch.
    else:
        threads, gpus = threads_and_gpus()
        is_cuda = bool(gpus) and settings.device != "cpu"
        threads = max(1, threads // (places(launcher, 0) * launcher.ranks))
    device = settings.device
    if device == "auto":
        device = "cuda" if is_cuda else "cpu"
    num_threads = None if device == "cuda" else threads
    return Machine(device=device, num_threads=num_threads, compile=device == "cuda" or "auto")


def machine_overrides(machine: Machine, settings: MachineSettings) -> list[str]:
    """Return overrides for the device settings that the user left open."""
    fixed = {key: value for key, value in machine if getattr(settings, key) in ("auto", None)}
    return [f"{key}={str(value).lower()}" for key, value in fixed.items() if value is not None]


def places(launcher: LauncherConfig, gpus: int) -> int:
    """Return the number of jobs that a launcher runs at a time on this machine."""
    if not isinstance(launcher, PoolConfig):
        return 1
    return launcher.max_jobs or max(1, (gpus or num_processors() // 2) // launcher.ranks)


def job_command(script: Path, ranks: int) -> list[str]:
    """Return the command that runs an entry point; with several ranks it uses torchrun."""
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, str(_LAUNCH), "--standalone", f"--nproc-per-node={ranks}", str(script)]


@functools.cache
def threads_and_gpus() -> tuple[int, list[str]]:
    """Return torch's default number of threads and the names of the GPUs for CUDA_VISIBLE_DEVICES;
    a separate process asks torch.
    """
    code = "import torch; print(torch.get_num_threads(), torch.cuda.device_count())"
    probe = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    threads, count = map(int, probe.stdout.split())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else map(str, range(count))
    return threads, list(names)


class JobProcess:
    """A running job: a command without input that appends its output to `log`.

    Args:
        environment: variables to add.
        own_group: run the job in its own session, so that Ctrl-C at the terminal does not reach it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        own_group: bool = True,
    ) -> None:
        self._stopping = False
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, PARENT_PID: str(os.getpid())},
                start_new_session=own_group,
            )

    def poll(self) -> int | None:
        """Return the exit code as a shell counts it, 128 + N after signal N; None while the job
        runs. A job that `stop` ended before it could handle SIGTERM counts as EXIT_PREEMPTED.
        """
        code = self._process.poll()
        if self._stopping and code == -signal.SIGTERM:
            return EXIT_PREEMPTED
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the job to save and end; further calls do nothing."""
        if not self._stopping and self._process.poll() is None:
            self._stopping = True
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until the job has ended; return its exit code."""
        # Not `self._process.wait`: a signal handler that calls this could deadlock on its lock.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        code = self.poll()
        assert code is not None, "it has ended"
        return code


class LocalLauncher:
    """Starts jobs on this machine. They end when this process ends.

    Args:
        command: returns the command line of a job.
        folder: of the sweep.
        gpus: names for CUDA_VISIBLE_DEVICES; empty: the jobs run on the CPU. Each job gets one for
            each rank, and jobs share them if there are too few.
        environment: variables to add for every job.
    """

    poll_seconds = 0.2

    def __init__(
        self,
        config: LauncherConfig,
        command: Callable[[Job], list[str]],
        folder: Path,
        gpus: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self.max_jobs, ranks = places(config, len(gpus)), config.ranks
        self._command, self._folder, self._environment = command, folder, environment
        self._gpus = [gpus[i : i + ranks] for i in range(0, len(gpus) - ranks + 1, ranks)]
        self._at_work: dict[int, JobProcess] = {}

    def start(self, job: Job) -> JobProcess:
        """Start a job in a free place; return at once."""
        taken = {i for i, process in self._at_work.items() if process.poll() is None}
        place = min(set(range(self.max_jobs)) - taken)
        environment = dict(self._environment)
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[place % len(self._gpus)])
        log = log_of(self._folder, job.name)
        self._at_work[place] = JobProcess(self._command(job), environment, log)
        return self._at_work[place]
