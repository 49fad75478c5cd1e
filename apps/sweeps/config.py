"""Schemas of launchers and searches: `hydra/launcher=...`, `hydra/sweeper=...`. No torch."""

from typing import Literal, get_args

from runtime.schema import Count, CountOrZero, Schema, StrictBool


class SerialConfig(Schema):
    """One job after the other, on this machine."""

    name: Literal["serial"] = "serial"
    ranks: Count = 1
    """processes of each job, started by torchrun"""


class PoolConfig(Schema):
    """Several jobs at a time on this machine, each with GPUs of its own where there are any."""

    name: Literal["pool"] = "pool"
    max_jobs: Count | None = None
    """jobs at a time; null: as many as there are GPUs for, without GPUs one for each two CPUs"""
    ranks: Count = 1
    """processes of each job, started by torchrun"""


class SlurmConfig(Schema):
    """Jobs of SLURM, by submitit."""

    name: Literal["slurm"] = "slurm"
    max_jobs: Count = 64
    """jobs in the queue at a time"""
    ranks: Count = 1
    """processes of each job, started by torchrun; a GPU each where gpus is set"""
    timeout_min: Count = 60
    """minutes after which SLURM ends a job; it saves, and is queued again"""
    cpus: Count | None = None
    """CPUs of each rank"""
    gpus: CountOrZero = 0
    """GPUs of each rank; 0: jobs run on CPUs"""
    mem_gb: Count | None = None
    """memory of a job"""
    partition: str | None = None
    """where the jobs go"""
    account: str | None = None
    """who pays"""
    additional: dict[str, str | int | bool] | None = None
    """other options of sbatch, {qos: high}"""


LauncherConfig = SerialConfig | PoolConfig | SlurmConfig
LAUNCHERS = {"serial": SerialConfig, "pool": PoolConfig, "slurm": SlurmConfig}


class GridConfig(Schema):
    """Every combination of the values on the command line."""

    name: Literal["grid"] = "grid"
    objective: str | None = None
    """the metric by which the table is ordered; null: ARC's pass@2, the share that a search solved,
    or the exact accuracy"""
    direction: Literal["maximize", "minimize"] = "maximize"
    params: dict[str, str] | None = None
    """swept settings, as on the command line, which comes first"""


Sampler = Literal["tpe", "gp", "random"]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)


class SamplerConfig(Schema):
    """How Optuna chooses values."""

    name: Sampler = "tpe"
    seed: CountOrZero | None = None
    """null: another one at each start"""
    n_startup_trials: Count = 10
    """random trials before tpe or gp learns from them"""


class OptunaConfig(Schema):
    """A search."""

    name: Literal["optuna"] = "optuna"
    objective: str | None = None
    """the metric to improve; null: exact accuracy"""
    direction: Literal["maximize", "minimize"] = "maximize"
    n_trials: Count = 20
    """trials in all, those of earlier starts included"""
    sampler: SamplerConfig = SamplerConfig()
    params: dict[str, str | StrictBool | int | float] | None = None
    """searched settings, as on the command line, which comes first"""


SweeperConfig = GridConfig | OptunaConfig
SWEEPERS = {"grid": GridConfig, "optuna": OptunaConfig}
