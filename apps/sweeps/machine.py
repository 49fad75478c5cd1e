"""Jobs as processes of this machine, and what their bits depend on, decided once for a sweep."""

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
    """Decide what the bits of all jobs depend on: by what was asked for, and this machine."""
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
    """Return the overrides that fix what the user left open."""
    fixed = {key: value for key, value in machine if getattr(settings, key) in ("auto", None)}
    return [f"{key}={str(value).lower()}" for key, value in fixed.items() if value is not None]


def places(launcher: LauncherConfig, gpus: int) -> int:
    """Return how many jobs a launcher runs at a time on this machine."""
    if not isinstance(launcher, PoolConfig):
        return 1
    return launcher.max_jobs or max(1, (gpus or num_processors() // 2) // launcher.ranks)


def job_command(script: Path, ranks: int) -> list[str]:
    """Return the command that runs an entry point, by torchrun where a job has several ranks."""
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, str(_LAUNCH), "--standalone", f"--nproc-per-node={ranks}", str(script)]


@functools.cache
def threads_and_gpus() -> tuple[int, list[str]]:
    """Return the number of threads that torch would take, and names of the GPUs for
    CUDA_VISIBLE_DEVICES. torch is asked in a process of its own.
    """
    code = "import torch; print(torch.get_num_threads(), torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    threads, count = map(int, asked.stdout.split())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else map(str, range(count))
    return threads, list(names)


class JobProcess:
    """A job at work: a command that reads nothing, and whose words go to the end of `log`.

    Args:
        environment: variables to add.
        own_group: keep a Ctrl-C at the terminal away from it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        own_group: bool = True,
    ) -> None:
        self._asked = False
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
        """Return the exit code as a shell counts it, 128 + N after signal N; None while the job is
        at work. EXIT_PREEMPTED also of a job that was asked to save before it was prepared for
        that, and had nothing to save.
        """
        code = self._process.poll()
        if self._asked and code == -signal.SIGTERM:
            return EXIT_PREEMPTED
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask the job to save and end; may be called more than once."""
        if not self._asked and self._process.poll() is None:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        # Not `wait` of the process: a handler that calls this may interrupt it, and share its lock.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        code = self.poll()
        assert code is not None, "it has ended"
        return code


class LocalLauncher:
    """Starts jobs on this machine, which end with this process.

    Args:
        config: how many jobs at a time, and the processes of each.
        command: returns the command line of a job.
        folder: of the sweep.
        gpus: names for CUDA_VISIBLE_DEVICES, as many for each job as it has ranks; jobs share them
            when there are more jobs than that is enough for. Empty: the jobs run on the CPU.
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
        """Start a job in a free place, and return at once."""
        taken = {i for i, process in self._at_work.items() if process.poll() is None}
        place = min(set(range(self.max_jobs)) - taken)
        own = dict(self._environment)
        if self._gpus:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[place % len(self._gpus)])
        log = log_of(self._folder, job.name)
        self._at_work[place] = JobProcess(self._command(job), own, log)
        return self._at_work[place]
