"""What the bits of a job depend on, decided once for a sweep; and who starts its jobs here."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from apps.sweeps.config import LauncherConfig, PoolConfig, SlurmConfig
from apps.sweeps.folder import Machine, SweepFolder
from apps.sweeps.jobs import Job
from apps.sweeps.local import LocalLauncher
from apps.sweeps.work import Launcher
from runtime.errors import ConfigError
from runtime.process import num_processors
from runtime.schema import MachineSettings

_LAUNCH = Path(__file__).resolve().parents[2] / "scripts" / "launch.py"


def decide_machine(settings: MachineSettings, launcher: LauncherConfig) -> Machine:
    """Decide what the bits of all jobs depend on: by what was asked for, and this machine.

    Raises:
        ConfigError: a job has more ranks than there are GPUs.
    """
    if isinstance(launcher, SlurmConfig):
        threads, is_cuda = launcher.cpus or 1, launcher.gpus > 0
    elif settings.device == "cpu" and settings.num_threads is not None:
        threads, is_cuda = settings.num_threads, False  # No need to load torch.
    else:
        threads, gpus = _threads_and_gpus()
        is_cuda = bool(gpus) and settings.device != "cpu"
        threads = max(1, threads // (places(launcher, 0) * launcher.ranks))
    device = settings.device
    if device == "auto":
        device = "cuda" if is_cuda else "cpu"
    num_threads = None if device == "cuda" else threads
    return Machine(device=device, num_threads=num_threads, compile=device == "cuda" or "auto")


def machine_overrides(machine: Machine, settings: MachineSettings) -> list[str]:
    """Return the overrides that fix what the user left open."""
    fixed = []
    if settings.device == "auto":
        fixed.append(f"device={machine.device}")
    if settings.num_threads is None and machine.num_threads is not None:
        fixed.append(f"num_threads={machine.num_threads}")
    if settings.compile == "auto":
        fixed.append(f"compile={str(machine.compile).lower()}")
    return fixed


def places(launcher: LauncherConfig, gpus: int) -> int:
    """Return how many jobs a launcher runs at a time on this machine."""
    if not isinstance(launcher, PoolConfig):
        return 1
    return launcher.max_jobs or max(1, (gpus or num_processors() // 2) // launcher.ranks)


def build_launcher(
    config: LauncherConfig, command: Callable[[Job], list[str]], folder: SweepFolder
) -> Launcher:
    """Build the launcher that the configuration names, for the GPUs that are there now.

    Raises:
        ConfigError: what it needs is not there.
    """
    environment = {"WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP", folder.path.name)}
    if isinstance(config, SlurmConfig):
        try:
            from apps.sweeps.slurm import SlurmLauncher
        except ImportError:
            raise ConfigError(
                "hydra/launcher=slurm needs submitit: pip install -e '.[slurm]'"
            ) from None
        return SlurmLauncher(config, command, folder.log, environment)
    gpus = _threads_and_gpus()[1] if folder.machine.device == "cuda" else []
    if folder.machine.device == "cuda" and len(gpus) < config.ranks:
        raise ConfigError(
            f"hydra.launcher.ranks={config.ranks}: of the GPUs that this sweep runs on, "
            f"{len(gpus)} are here"
        )
    max_jobs = places(config, len(gpus))
    return LocalLauncher(command, folder.log, max_jobs, gpus, config.ranks, environment)


def job_command(script: Path, ranks: int) -> list[str]:
    """Return the command that runs an entry point, by torchrun where a job has several ranks."""
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, str(_LAUNCH), "--standalone", f"--nproc-per-node={ranks}", str(script)]


@functools.cache
def _threads_and_gpus() -> tuple[int, list[str]]:
    """Return the number of threads that torch would take, and names of the GPUs for
    CUDA_VISIBLE_DEVICES. torch is asked in a process of its own.
    """
    code = "import torch; print(torch.get_num_threads(), torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    threads, count = map(int, asked.stdout.split())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else map(str, range(count))
    return threads, list(names)
