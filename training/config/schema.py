"""The schema of a training run, which imports no torch: settings are checked before it loads."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dataset.kinds import AnyBuilder, AnyEvaluator, EvaluatorConfig
from models import former
from models.architectures import ArchConfig
from models.config import OutputField
from runtime.errors import ConfigError
from runtime.registry import PLUGINS, Registry, import_all, imported
from runtime.schema import (
    Count,
    CountOrZero,
    Duration,
    FolderName,
    FolderPath,
    MachineSettings,
    NonNegativeFloat,
    PositiveFloat,
    Probability,
    Schema,
    Seed,
    Size,
    StrictBool,
)
from runtime.text import shown
from training.callbacks.base import AnyCallback
from training.optim.schedules import LR_SCHEDULES, PUBLISHED, ScheduleConfig

import_all("training.callbacks", "[!_]*.py")

ROOT = Path(__file__).resolve().parents[2]
Rate = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]

# With `reduction=exact` every global batch is cut into this many shards at any number of ranks, and
# their gradients are added in the order of the shards.
CANONICAL_SHARDS = 4


def command(name: str, script: str) -> str:
    """Return the start of a command line: the command of an installed wheel, or else the script."""
    is_wheel = not (ROOT / "pyproject.toml").is_file()
    return f"recursive-reasoning {name}" if is_wheel else f"python {script}"


class ParamGroupConfig(Schema):
    """A group of parameters that share their hyperparameters."""

    params: list[str] = Field(min_length=1)
    """shell-style patterns of names (*.lm_head.*); each parameter must be in exactly one group"""
    lr: NonNegativeFloat | None = None
    """peak learning rate; null: the run's lr"""
    weight_decay: NonNegativeFloat | None = None
    """decoupled weight decay; learned loss weights have none; null: the run's weight_decay"""
    decay_vectors: StrictBool = True
    """true: also decay parameters with fewer than two dimensions: biases, norm scales"""
    max_grad_norm: PositiveFloat | None = None
    """the group's gradient is clipped to this L2 norm; null: no clipping"""
    optional: StrictBool = False
    """true: leave the group out if no parameter matches"""


class OptimizerConfig(Schema):
    """The optimizer of all parameters but the puzzle embedding."""

    name: str = "adam_atan2"
    """adam_atan2 | adamw | muon"""
    kernel: Literal["ours", "package"] = "ours"
    """for adam_atan2; package: the CUDA kernel of the package adam-atan2"""
    groups: Annotated[dict[str, ParamGroupConfig], Field(min_length=1)] = {
        "all": ParamGroupConfig(params=["*"])
    }
    """groups of parameters, under names of your choice"""

    @model_validator(mode="after")
    def _has_kernel(self) -> "OptimizerConfig":
        if self.kernel == "package" and self.name != "adam_atan2":
            raise ValueError(f"kernel=package needs name=adam_atan2, not {self.name}")
        return self


OPTIMIZERS = Registry("optimizer", OptimizerConfig, "adam_atan2", "optimizer")
"""The code of each is a function of its settings (an `OptimizerConfig`), torch's parameter groups
and the two betas. It returns a fused optimizer of torch's, or one with an attribute `skip`: while
that bool [] is true, its steps change nothing.
"""


class MuonConfig(OptimizerConfig):
    """Muon for the matrices of some groups, AdamW for all other parameters."""

    muon_groups: Annotated[list[str], Field(min_length=1)] = ["trunk"]
    """groups whose matrices Muon updates"""
    momentum: Rate = 0.95
    """Muon's momentum"""
    newton_schulz_steps: Count = 5
    """iterations that make an update orthogonal"""
    rate_scale: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """match_rms_adamw: set lr as for AdamW; original: as for the first Muon, about 0.02"""

    @model_validator(mode="after")
    def _knows_its_groups(self) -> "MuonConfig":
        if unknown := [name for name in self.muon_groups if name not in self.groups]:
            raise ValueError(f"muon_groups: there is no group {', '.join(unknown)}")
        return self


for _name, _schema, _file in (
    ("adam_atan2", OptimizerConfig, "adam_atan2"),
    ("adamw", OptimizerConfig, "muon"),
    ("muon", MuonConfig, "muon"),
):
    OPTIMIZERS.add(_name, _schema, imported(f"training.optim.{_file}", _name))


class MLflowConfig(Schema):
    """The place where MLflow keeps the run."""

    tracking_uri: str | None = None
    """address of a server; null: MLFLOW_TRACKING_URI, or else mlflow.db in the run's folder"""


class WandbConfig(Schema):
    """Weights & Biases."""

    name: Literal["wandb", "jsonl"] = "wandb"
    mode: Literal["auto", "online", "offline"] = "auto"
    """auto: WANDB_MODE, else online when logged in and the server answers within 10 s, otherwise
    offline"""


class LoggerConfig(WandbConfig):
    """The places for metrics beside `metrics.jsonl`."""

    tensorboard: StrictBool = False
    mlflow: MLflowConfig | None = None


DEFAULT_DATA = "arc"  # As in HRM's published configuration.


class DataConfig(Schema):
    """A data set by name: its folder, how to build it, and its evaluators."""

    name: str
    path: str
    builder: AnyBuilder | None = None
    """the builder that `scripts/build_dataset.py data=NAME` runs"""
    evaluators: list[AnyEvaluator] = []

    @property
    def how_to_build(self) -> str:
        """The command that builds the set, if it has a builder."""
        settings = f"data={self.name} {shlex.quote(f'data.path={self.path}')}"
        settings += f" 'plugins=[{','.join(PLUGINS)}]'" if PLUGINS else ""
        return f"{command('build', 'scripts/build_dataset.py')} {settings}"


class DataSettings(Schema):
    """Data. `data=NAME` chooses a known data set; data_path=FOLDER takes any folder."""

    data_path: str | None = None
    """the training folder, which usually holds the test split too"""
    data_paths: list[str] | None = None
    """several training folders: [a,b]"""
    data_paths_test: list[str] | None = None
    """test folders; null: the training folders"""
    evaluators: list[AnyEvaluator] | None = None
    """[]: none; null: those of data=NAME"""
    data: DataConfig | None = None

    @property
    def train_paths(self) -> list[str]:
        """The training folders. `data_paths` overrules `data_path`, as in TRM."""
        return self.data_paths or ([self.data_path] if self.data_path else [])

    @property
    def test_paths(self) -> list[str]:
        return self.data_paths_test or self.train_paths

    def data_folders(self, split: str) -> list[str]:
        """Return the folders of a split as the settings name them; empty if they name none."""
        return self.train_paths if split == "train" else self.test_paths

    @property
    def active_evaluators(self) -> list[EvaluatorConfig]:
        """The evaluators asked for, or else those of `data` if only its folder is evaluated."""
        if self.evaluators is not None:
            return [*self.evaluators]
        return self.data.evaluators if self.data and self.test_paths == [self.data.path] else []

    @property
    def inherited_evaluators(self) -> list[EvaluatorConfig]:
        """The evaluators of data=NAME, to try on another folder that is evaluated instead. The
        default data set gives none, because nobody has chosen it.
        """
        if self.evaluators is not None or not self.data or self.data.name == DEFAULT_DATA:
            return []
        return self.data.evaluators if self.test_paths != [self.data.path] else []

    @property
    def usual_evaluators(self) -> list[EvaluatorConfig]:
        """The evaluators that an evaluation uses if it asks for none."""
        return self.active_evaluators or self.inherited_evaluators


class TrainingSettings(Schema):
    """Training. Batch sizes count sequences over all ranks, intervals count epochs over groups."""

    global_batch_size: Count = 768
    """sequences per optimizer step"""
    micro_batch_size: Count | None = None
    """rows that a rank passes through the model at once; fewer save memory; null: all"""
    epochs: Count = 100000
    """passes over the groups of puzzles"""
    eval_interval: Count | None = 10000
    """epochs between evaluations; null: evaluate at the end only"""
    limit_train_batches: Count | None = None
    """train on this many batches between evaluations; the schedule shortens with it; null: all"""
    overfit_batches: Count | None = None
    """train on this many first batches again and again, to see train/exact_accuracy rise; steps,
    schedule and evaluations (of the test split) stay as they are; null: train on all"""
    seed: Seed = 0
    """seed of all random draws"""


class EvaluationSettings(Schema):
    """Evaluations during training."""

    eval_split: Literal["test", "selection"] | None = "test"
    """selection: puzzles in neither training nor test (docs/protocol.md); null: evaluate nothing"""
    min_eval_interval: CountOrZero = 0
    """number of evaluations to skip at the start; the last one is always made"""
    eval_batch_size: Size | None = None
    """sequences per batch; null: global_batch_size"""
    eval_max_examples: Count | None = None
    """evaluate this many first rows of each test set; null: all"""
    limit_eval_batches: Count | None = None
    """the same in batches; the smaller of the two counts; null: all"""
    eval_save_outputs: list[OutputField] = []
    """arrays to write to eval_step_N/ in the run's folder"""


class OptimizationSettings(Schema):
    """Learning rates: linear warm-up, then lr_schedule=NAME down to lr_min_ratio of the peak."""

    lr: NonNegativeFloat = 1e-4
    """peak learning rate, after the warm-up"""
    lr_min_ratio: Probability = 1.0
    """learning rate at the schedule's end, as a share of the peak; 1: the peak until the end"""
    lr_warmup_steps: CountOrZero = 2000
    """optimizer steps in which the learning rate rises to its peak"""
    beta1: Rate = 0.9
    """decay of the mean of the gradients; higher: it moves more slowly"""
    beta2: Rate = 0.95
    """decay of the mean of their squares; higher: it moves more slowly"""
    weight_decay: NonNegativeFloat = 0.1
    """decoupled: each step shrinks the weights by lr times this"""
    puzzle_emb_lr: NonNegativeFloat = 1e-2
    """peak learning rate of the puzzle embedding"""
    puzzle_emb_weight_decay: NonNegativeFloat = 0.1
    """weight decay of the puzzle embedding"""
    ema: StrictBool = False
    """true: keep an exponential moving average of the weights, and evaluate it"""
    ema_rate: Rate = 0.999
    """share of the average that each step keeps; higher: it moves more slowly"""
    freeze_weights: StrictBool | Literal["trunk"] = False
    """true: train only the puzzle embedding; trunk: and the heads"""
    reduction: Literal["fast", "exact"] = "fast"
    """exact: slower, but the same bits on 1, 2 and 4 ranks, also when a run moves between them"""


class RunFolderSettings(Schema):
    """The run's folder and its checkpoints."""

    project_name: FolderName | None = None
    """null: from the data folder's name"""
    run_name: FolderName | None = None
    """null: a random name"""
    checkpoint_path: FolderPath | None = None
    """null: checkpoints/PROJECT/RUN"""
    load_checkpoint: str | None = None
    """start weights: a run, a checkpoint, or a published step_N file; not used to resume a run"""
    load_puzzle_rows: Literal["mean", "zero"] | CountOrZero | None = None
    """the first value of all rows of the puzzle embedding, with load_checkpoint: the mean of the
    trained rows, 0, or the trained row of this number; null: the trained rows, or their mean if
    their number differs"""
    resume: Literal["auto", "never"] | CountOrZero = "auto"
    """auto: go on from the newest checkpoint in the run's folder; a number: from that step"""
    resume_changed: StrictBool = False
    """true: resume even if settings that change the result differ"""
    checkpoint_interval: Count | None = 1000
    """optimizer steps between saves; a run also saves before each evaluation; null: neither"""
    checkpoint_every_eval: StrictBool = False
    """true: save a checkpoint at every evaluation, and keep it"""
    keep_last: Annotated[int, Field(strict=True, ge=2)] = 2
    """how many of the newest checkpoints to keep"""
    keep_best: CountOrZero = 0
    """how many checkpoints with the best evaluations to keep"""
    background_save: StrictBool = True
    """true: training goes on while a copy of its state is written; false: it waits"""


class ProgressSettings(Schema):
    """Reports on the run's progress, a trial of it, and early stops."""

    log_interval: Count = 10
    """steps between writes of the metrics; every step has a record"""
    diagnose_interval: Count | None = 100
    """steps between diagnoses (diagnose/... in the metrics, and warnings); null: none"""
    max_steps: Count | None = None
    """save and stop after this step; the learning rate schedule does not change"""
    max_time: Duration | None = None
    """8h, 30m, 1h30m, ...: save and stop, as after a signal (exit code 75), when this start has
    trained and evaluated so long; an evaluation must fit into it; null: no limit"""
    dry_run: StrictBool = False
    """true: try a step, a short evaluation, a save and a restore; print what the run would do; keep
    nothing"""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """if a loss or gradient is not finite; skip: leave out the update, and give new puzzles to the
    rows whose carry is not finite"""
    max_nonfinite: Count = 10
    """with on_nonfinite=skip: end the run after this many steps in a row without an update"""
    callbacks: list[AnyCallback] = []
    """each as NAME or {name: NAME, SETTING: ...}; training/callbacks/ has their settings"""
    profile: StrictBool = False
    """true: write a trace of steps 5 to 7 of this start, and list the slowest operations"""


# In reverse order, because pydantic takes the fields of the last base first.
class TrainConfig(
    ProgressSettings,
    MachineSettings,
    RunFolderSettings,
    OptimizationSettings,
    EvaluationSettings,
    TrainingSettings,
    DataSettings,
):
    """All settings of a training run. Published settings keep their names and defaults."""

    arch: ArchConfig
    optimizer: Annotated[OptimizerConfig, OPTIMIZERS]
    lr_schedule: Annotated[ScheduleConfig, LR_SCHEDULES] = PUBLISHED
    logger: LoggerConfig = LoggerConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainConfig":
        if not self.train_paths:
            raise ValueError("no training data: set data_path=FOLDER (or data_paths=[FOLDER,...])")
        if self.freeze_weights is True and not self.arch.puzzle_emb_ndim:
            raise ValueError(
                "freeze_weights=true needs a puzzle embedding: set arch.puzzle_emb_ndim"
            )
        if self.load_puzzle_rows is not None and not (
            self.load_checkpoint and self.arch.puzzle_emb_ndim
        ):
            raise ValueError("load_puzzle_rows needs load_checkpoint and arch.puzzle_emb_ndim")
        if self.lr_schedule.needs_end and self.lr_min_ratio == 1:
            name = f"lr_schedule={self.lr_schedule.name}"
            raise ValueError(f"{name} has no effect with lr_min_ratio=1: set lr_min_ratio=0")
        if self.eval_interval is not None and self.epochs % self.eval_interval:
            nearest = max(1, round(self.epochs / self.eval_interval)) * self.eval_interval
            raise ValueError(
                f"eval_interval={self.eval_interval} must divide epochs={self.epochs}: try "
                f"epochs={nearest}, or eval_interval=null for one evaluation at the end"
            )
        names = [callback.name for callback in self.callbacks]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"callbacks: {twice[0]} is there twice; name each callback once")
        return self

    @property
    def epochs_per_iteration(self) -> int:
        """Epochs between two evaluations."""
        return self.eval_interval or self.epochs

    @property
    def num_iterations(self) -> int:
        """Number of the stretches of training that may end with an evaluation."""
        return self.epochs // self.epochs_per_iteration

    @property
    def num_unevaluated(self) -> int:
        """Number of first iterations without an evaluation; the last iteration always has one."""
        return min(self.min_eval_interval, self.num_iterations - 1)

    def num_shards(self, world_size: int) -> int:
        """Return the number of shards of each rank, which it runs one after the other."""
        return CANONICAL_SHARDS // world_size if self.reduction == "exact" else 1

    def num_parts(self, world_size: int) -> int:
        """Return the number of parts in which a rank's rows pass through the model: shards, or
        micro-batches of them.
        """
        shards = self.num_shards(world_size)
        size = self.global_batch_size // world_size // shards
        return shards * (size // min(self.micro_batch_size or size, size))

    def check_world_size(self, world_size: int) -> None:
        """Raise ConfigError if ranks, shards or micro-batches cannot share a batch equally."""
        divisor, what = world_size, f"the number of ranks, {world_size}"
        if self.reduction == "exact":
            if CANONICAL_SHARDS % world_size:
                raise ConfigError(
                    f"reduction=exact: the number of ranks, {world_size}, must divide "
                    f"{CANONICAL_SHARDS}; reduction=fast takes any number"
                )
            divisor, what = CANONICAL_SHARDS, f"{CANONICAL_SHARDS} with reduction=exact"
        for name in ("global_batch_size", "eval_batch_size"):
            size = getattr(self, name)
            if size is not None and size % divisor:
                near = max(divisor, round(size / divisor) * divisor)
                raise ConfigError(f"{name}={size} must be a multiple of {what}: try {near}")
        rows = self.global_batch_size // divisor
        micro = min(self.micro_batch_size or rows, rows)
        if rows % micro:
            near = max(size for size in range(1, micro) if rows % size == 0)
            of = "shard" if self.reduction == "exact" else "rank"
            raise ConfigError(
                f"micro_batch_size={micro} must divide the {rows} rows of a {of}: try {near}"
            )
        for name, technique in self.arch.techniques.active.items():
            try:
                technique.require_rows(micro)
            except ValueError as error:
                raise ConfigError(f"arch.techniques.{name}: {error}") from None

    def check_restarts(self, max_restarts: int) -> None:
        """Raise ConfigError if restarts would not go on from the newest checkpoint of one run, or
        each would get all the time again.
        """
        if max_restarts and self.max_time is not None:
            raise ConfigError("max_time: with --max-restarts every restart would get this time")
        if max_restarts and self.resume != "auto":
            asked = f"resume={self.resume}: with --max-restarts every restart would do the same"
            raise ConfigError(f"{asked}; start without restarts, then go on with resume=auto")
        if max_restarts and self.run_name is None and self.checkpoint_path is None:
            raise ConfigError("--max-restarts: set run_name, or every restart begins a new run")


# Settings that do not change the result of a run. All others must be the same when it is resumed.
# The data is compared by the fingerprint of its content, not by its settings.
_NEUTRAL = [DataSettings, EvaluationSettings, RunFolderSettings, MachineSettings, ProgressSettings]
# Micro-batches change only the rounding. A run that resumes with other ones reports it.
_ALSO = ("logger", "data", "micro_batch_size")
NEUTRAL_KEYS = frozenset(_ALSO).union(*(part.model_fields for part in _NEUTRAL))


def changed_keys(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return 'key: saved -> present' for each changed setting that changes the result."""
    saved, present = dict(flatten(saved)), dict(flatten(present))
    changes = []
    for key in sorted(saved.keys() | present.keys()):
        before, after = saved.get(key, "(not set)"), present.get(key, "(not set)")
        if before != after and key.split(".")[0] not in NEUTRAL_KEYS:
            changes.append(f"{shown(key)}: {shown(before)} -> {shown(after)}")
    return changes


# Removed settings (docs/log/removed.md) that changed no result.
_GONE = {"data_on_device", "batches_ahead", "cuda_graph", "arc_vote_across_evaluations", "report"}


def in_present_terms(saved: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
    """Return the settings of a saved run under their present names, without removed ones. For
    `training`, a removed setting that changed the run stays, to be reported as a difference.
    """
    kept = {name: value for name, value in saved.items() if name not in _GONE}
    arch, data = kept.get("arch"), kept.get("data")
    if isinstance(arch, Mapping):
        kept["arch"] = former.in_present_terms(arch, training=training)
    if isinstance(data, Mapping):
        kept["data"] = {name: value for name, value in data.items() if name != "build_command"}
    return kept


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration with their dotted paths."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
