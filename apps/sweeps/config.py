"""Schemas of launchers and sweepers: `hydra/launcher=...`, `hydra/sweeper=...`. No torch."""

from typing import Literal, get_args

from runtime.schema import Count, CountOrZero, Schema, StrictBool


class SerialConfig(Schema):
    """Runs one job after the other on this machine."""

    name: Literal["serial"] = "serial"
    ranks: Count = 1
    """number of processes of each job, started by torchrun"""


class PoolConfig(Schema):
    """Runs several jobs at a time on this machine, each on its own GPUs if there are enough."""

    name: Literal["pool"] = "pool"
    max_jobs: Count | None = None
    """most jobs at a time; null: GPUs (without GPUs: half the CPUs) divided by ranks"""
    ranks: Count = 1
    """number of processes of each job, started by torchrun"""


class SlurmConfig(Schema):
    """Submits the jobs to SLURM, with submitit."""

    name: Literal["slurm"] = "slurm"
    max_jobs: Count = 64
    """most jobs in the queue at a time"""
    ranks: Count = 1
    """number of processes of each job, started by torchrun"""
    timeout_min: Count = 60
    """time limit of a job in minutes; when it is reached, the job saves and is queued again"""
    cpus: Count | None = None
    """CPUs of each rank; null: SLURM's default, used with one thread"""
    gpus: CountOrZero = 0
    """GPUs of each rank; 0: the jobs run on CPUs"""
    mem_gb: Count | None = None
    """memory of a job in GB; null: SLURM's default"""
    partition: str | None = None
    """SLURM partition of the jobs; null: SLURM's default"""
    account: str | None = None
    """SLURM account that the jobs are charged to; null: SLURM's default"""
    additional: dict[str, str | int | bool] | None = None
    """other options of sbatch, for example {qos: high}"""


LauncherConfig = SerialConfig | PoolConfig | SlurmConfig
LAUNCHERS = {"serial": SerialConfig, "pool": PoolConfig, "slurm": SlurmConfig}


class GridConfig(Schema):
    """Runs every combination of the swept values."""

    name: Literal["grid"] = "grid"
    objective: str | None = None
    """the metric that orders the table; null: the headline (docs/evaluation.md)"""
    direction: Literal["maximize", "minimize"] = "maximize"
    params: dict[str, str] | None = None
    """swept settings with their values, for example {lr: "1e-3,1e-4"}; the command line wins"""


Sampler = Literal["tpe", "gp", "random"]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)


class SamplerConfig(Schema):
    """The sampler: how Optuna chooses values."""

    name: Sampler = "tpe"
    seed: CountOrZero | None = None
    """seed of the sampler; null: a new one at each start"""
    n_startup_trials: Count = 10
    """number of random trials before tpe or gp starts to learn from the results"""


class OptunaConfig(Schema):
    """Runs an Optuna study: each trial's values are chosen from the results of earlier trials."""

    name: Literal["optuna"] = "optuna"
    objective: str | None = None
    """the metric to optimize; null: the exact accuracy"""
    direction: Literal["maximize", "minimize"] = "maximize"
    n_trials: Count = 20
    """total number of trials; earlier starts count"""
    sampler: SamplerConfig = SamplerConfig()
    params: dict[str, str | StrictBool | int | float] | None = None
    """swept settings, for example {lr: "interval(1e-4,1e-2)"}; the command line wins"""


SweeperConfig = GridConfig | OptunaConfig
SWEEPERS = {"grid": GridConfig, "optuna": OptunaConfig}
