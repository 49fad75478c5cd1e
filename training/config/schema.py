"""Schema of a training run. Imports no torch: a configuration is checked before torch is loaded."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dataset.kinds import AnyBuilder, AnyEvaluator, EvaluatorConfig
from models import former
from models.architectures import ArchConfig
from models.config import OutputField
from runtime.errors import ConfigError
from runtime.registry import PLUGINS, Registry, imported
from runtime.schema import (
    Count,
    CountOrZero,
    FolderName,
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

Rate = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]

# With `reduction=exact` every global batch is cut into so many shards on any number of ranks, and
# their gradients are added in shard order.
CANONICAL_SHARDS = 4


class ParamGroupConfig(Schema):
    """Parameters that share their hyperparameters."""

    params: list[str] = Field(min_length=1)
    """shell-style patterns (*.lm_head.*); each parameter belongs to exactly one group"""
    lr: NonNegativeFloat | None = None
    """peak learning rate; null: the run's lr"""
    weight_decay: NonNegativeFloat | None = None
    """decoupled weight decay, never of learned loss weights; null: the run's weight_decay"""
    decay_vectors: StrictBool = True
    """also decay parameters of less than two dimensions: biases, and the scales of norms"""
    max_grad_norm: PositiveFloat | None = None
    """L2 norm to which the group's gradient is clipped; null: no clipping"""
    optional: StrictBool = False
    """true: the group is left out when no parameter matches"""


class OptimizerConfig(Schema):
    """Optimizer of everything but the puzzle embedding."""

    name: str = "adam_atan2"
    """adam_atan2 | adamw | muon"""
    kernel: Literal["ours", "package"] = "ours"
    """of adam_atan2; package: that of the package adam-atan2, which needs CUDA"""
    groups: Annotated[dict[str, ParamGroupConfig], Field(min_length=1)] = {
        "all": ParamGroupConfig(params=["*"])
    }
    """the parameters by group; the names are free"""

    @model_validator(mode="after")
    def _has_kernel(self) -> "OptimizerConfig":
        if self.kernel == "package" and self.name != "adam_atan2":
            raise ValueError(f"kernel=package is a kernel of adam_atan2, not of {self.name}")
        return self


OPTIMIZERS = Registry("optimizer", OptimizerConfig, "adam_atan2", "optimizer")
"""Behind each name stands a function that takes its settings, torch's parameter groups and the two
betas, and returns an optimizer with an attribute `skip` (while that bool [] is true, its steps
change nothing) or one of torch's that are fused. Its schema is an `OptimizerConfig`.
"""


class MuonConfig(OptimizerConfig):
    """Muon for the matrices of some groups, AdamW for all other parameters."""

    muon_groups: Annotated[list[str], Field(min_length=1)] = ["trunk"]
    """groups whose matrices take Muon's step"""
    momentum: Rate = 0.95
    """of Muon"""
    newton_schulz_steps: Count = 5
    """of the iteration that makes a step orthogonal"""
    rate_scale: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """match_rms_adamw: rates as AdamW's; original: as in the first Muon, about 0.02"""

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
    """Where MLflow keeps the run."""

    tracking_uri: str | None = None
    """a server; null: MLFLOW_TRACKING_URI, or mlflow.db in the run's folder"""


class WandbConfig(Schema):
    """Weights & Biases."""

    name: Literal["wandb", "jsonl"] = "wandb"
    mode: Literal["auto", "online", "offline"] = "auto"
    """auto: online when logged in and the server answers within 10 s, otherwise offline"""


class LoggerConfig(WandbConfig):
    """Where metrics go beside `metrics.jsonl`."""

    tensorboard: StrictBool = False
    mlflow: MLflowConfig | None = None


DEFAULT_DATA = "arc"  # As in HRM's published configuration.


class DataConfig(Schema):
    """A data set by name: its folder, how to build it, and its evaluators."""

    name: str
    path: str
    builder: AnyBuilder | None = None
    """what `scripts/build_dataset.py data=NAME` runs"""
    evaluators: list[AnyEvaluator] = []

    @property
    def how_to_build(self) -> str:
        """The command that builds the set, if it has a builder."""
        settings = f"data={self.name} {shlex.quote(f'data.path={self.path}')}"
        settings += f" plugins=[{','.join(PLUGINS)}]" if PLUGINS else ""
        return f"python scripts/build_dataset.py {settings}"


class DataSettings(Schema):
    """Data. `data=NAME` sets the path and knows how to build it; data_path=FOLDER works too."""

    data_path: str | None = None
    """the training folder, which usually holds the test split too"""
    data_paths: list[str] | None = None
    """several training folders: [a,b]"""
    data_paths_test: list[str] | None = None
    """test folders, when they differ from the training folders"""
    evaluators: list[AnyEvaluator] | None = None
    """[]: none; null: those of the data set when it is known by name"""
    data: DataConfig | None = None

    @property
    def train_paths(self) -> list[str]:
        """Folders to train on. `data_paths` comes before `data_path`, as in TRM."""
        return self.data_paths or ([self.data_path] if self.data_path else [])

    @property
    def test_paths(self) -> list[str]:
        return self.data_paths_test or self.train_paths

    def data_folders(self, split: str) -> list[str]:
        """Return the folders that hold a split, as they were named; empty when none was."""
        return self.train_paths if split == "train" else self.test_paths

    @property
    def active_evaluators(self) -> list[EvaluatorConfig]:
        """The evaluators asked for; without such, those of `data` if that alone is evaluated."""
        if self.evaluators is not None:
            return [*self.evaluators]
        return self.data.evaluators if self.data and self.test_paths == [self.data.path] else []

    @property
    def inherited_evaluators(self) -> list[EvaluatorConfig]:
        """The evaluators of a data set chosen by name, where another folder is evaluated in its
        place: they measure it if it is of their kind. The default set brings none, for nobody has
        chosen it.
        """
        if self.evaluators is not None or not self.data or self.data.name == DEFAULT_DATA:
            return []
        return self.data.evaluators if self.test_paths != [self.data.path] else []


class TrainingSettings(Schema):
    """Training. Batches count sequences over all ranks, intervals count epochs over the groups."""

    global_batch_size: Count = 768
    """sequences per optimizer step"""
    micro_batch_size: Count | None = None
    """rows that pass through the model at once on a rank, to save memory; null: all it has"""
    epochs: Count = 100000
    """passes over the groups of puzzles"""
    eval_interval: Count | None = 10000
    """epochs between evaluations; null: evaluate at the end only"""
    seed: Seed = 0
    """of all random draws"""


class EvaluationSettings(Schema):
    """Evaluations during training."""

    eval_split: Literal["test", "selection"] | None = "test"
    """selection: puzzles in neither training nor test (docs/protocol.md); null: none, and nothing
    is evaluated"""
    min_eval_interval: CountOrZero = 0
    """evaluations to leave out at the start; the last one is always made"""
    eval_batch_size: Size | None = None
    """null: global_batch_size"""
    eval_max_examples: Count | None = None
    """the first rows of each test set only; null: all"""
    eval_save_outputs: list[OutputField] = []
    """what is written to eval_step_N/ in the run's folder"""


class OptimizationSettings(Schema):
    """Learning rates: linear warm-up, then cosine down to lr_min_ratio of the peak."""

    lr: NonNegativeFloat = 1e-4
    """peak learning rate, after the warm-up"""
    lr_min_ratio: Probability = 1.0
    """learning rate at the end, as a share of the peak; 1: it does not fall"""
    lr_warmup_steps: CountOrZero = 2000
    """optimizer steps in which the learning rate rises to its peak"""
    beta1: Rate = 0.9
    """how slowly the mean of the gradients moves"""
    beta2: Rate = 0.95
    """how slowly the mean of their squares moves"""
    weight_decay: NonNegativeFloat = 0.1
    """decoupled: a step takes lr times this share off each weight"""
    puzzle_emb_lr: NonNegativeFloat = 1e-2
    """peak learning rate of the puzzle embedding"""
    puzzle_emb_weight_decay: NonNegativeFloat = 0.1
    """weight decay of the puzzle embedding"""
    ema: StrictBool = False
    """true: keep an exponential moving average of the weights, and evaluate that"""
    ema_rate: Rate = 0.999
    """share of the average that a step keeps"""
    freeze_weights: StrictBool = False
    """true: train the puzzle embedding only"""
    reduction: Literal["fast", "exact"] = "fast"
    """exact: the same bits on 1, 2 and 4 ranks, and when a run moves between them, but slower"""


class RunFolderSettings(Schema):
    """The run's folder and what is kept in it."""

    project_name: FolderName | None = None
    """null: from the data set's name"""
    run_name: FolderName | None = None
    """null: a random name"""
    checkpoint_path: str | None = None
    """null: checkpoints/PROJECT/RUN"""
    load_checkpoint: str | None = None
    """start weights: a run, a checkpoint, or a published step_N file; resume comes first"""
    resume: Literal["auto", "never"] | CountOrZero = "auto"
    """or the step to go on from; auto: the newest checkpoint in the run's folder"""
    resume_changed: StrictBool = False
    """true: resume although settings that change the result differ"""
    checkpoint_interval: Count | None = 1000
    """optimizer steps between saves, and a save before each evaluation; null: neither"""
    checkpoint_every_eval: StrictBool = False
    """true: save and keep a checkpoint at every evaluation"""
    keep_last: Annotated[int, Field(strict=True, ge=2)] = 2
    """checkpoints of checkpoint_interval that stay"""
    keep_best: CountOrZero = 0
    """checkpoints with the best evaluation that stay"""


class ProgressSettings(Schema):
    """What is told of a run while it goes on, and where it stops."""

    log_interval: Count = 10
    """steps whose metrics are gathered on the device before they are written"""
    diagnose_interval: Count | None = 100
    """steps between diagnoses (diagnose/... in the metrics, warnings in words); null: none"""
    max_steps: Count | None = None
    """save and stop after this step; the schedule does not change"""
    profile: StrictBool = False
    """true: write a trace of steps 5 to 7 of this start, and name the dearest operations"""


# The last section comes first: this is how pydantic orders the fields.
class TrainConfig(
    ProgressSettings,
    MachineSettings,
    RunFolderSettings,
    OptimizationSettings,
    EvaluationSettings,
    TrainingSettings,
    DataSettings,
):
    """Everything a training run is told; names and defaults as published, where those exist."""

    arch: ArchConfig
    optimizer: Annotated[OptimizerConfig, OPTIMIZERS]
    logger: LoggerConfig = LoggerConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainConfig":
        if not self.train_paths:
            raise ValueError("no training data: set data_path=FOLDER (or data_paths=[FOLDER,...])")
        if self.freeze_weights and not self.arch.puzzle_emb_ndim:
            raise ValueError(
                "freeze_weights=true trains the puzzle embedding only, and there is none "
                "(arch.puzzle_emb_ndim=0)"
            )
        if self.eval_interval is not None and self.epochs % self.eval_interval:
            nearest = max(1, round(self.epochs / self.eval_interval)) * self.eval_interval
            raise ValueError(
                f"eval_interval={self.eval_interval} must divide epochs={self.epochs}: try "
                f"epochs={nearest}, or eval_interval=null for one evaluation at the end"
            )
        return self

    @property
    def epochs_per_iteration(self) -> int:
        """Epochs between two evaluations."""
        return self.eval_interval or self.epochs

    @property
    def num_iterations(self) -> int:
        """Number of evaluations."""
        return self.epochs // self.epochs_per_iteration

    def num_shards(self, world_size: int) -> int:
        """Return the number of shards that each rank works on, one after the other."""
        return CANONICAL_SHARDS // world_size if self.reduction == "exact" else 1

    def num_parts(self, world_size: int) -> int:
        """Return the number of parts in which a rank's rows pass through the model: the shards, or
        their micro-batches.
        """
        shards = self.num_shards(world_size)
        size = self.global_batch_size // world_size // shards
        return shards * (size // min(self.micro_batch_size or size, size))

    def check_world_size(self, world_size: int) -> None:
        """Raise ConfigError when batches cannot be cut into equal parts, for ranks, for shards or
        for micro-batches.
        """
        divisor, what = world_size, f"the number of ranks, {world_size}"
        if self.reduction == "exact":
            if CANONICAL_SHARDS % world_size:
                raise ConfigError(
                    f"reduction=exact: there are {world_size} ranks, which must divide "
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
        """Raise ConfigError when restarts would not go on from the newest checkpoint."""
        if max_restarts and self.resume != "auto":
            asked = f"resume={self.resume}: with --max-restarts each restart would obey it too"
            raise ConfigError(f"{asked}; start without restarts, then go on with resume=auto")


# Settings that change nothing of what a run computes; all others must match when it is resumed. The
# content of the data decides, which has its own fingerprint.
_NEUTRAL = [DataSettings, EvaluationSettings, RunFolderSettings, MachineSettings, ProgressSettings]
# Micro-batches change the rounding only: a run that resumes with others says so.
_ALSO = ("logger", "data", "micro_batch_size")
NEUTRAL_KEYS = frozenset(_ALSO).union(*(part.model_fields for part in _NEUTRAL))


def changed_keys(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return 'key: saved -> present' for each setting that differs and changes the result."""
    saved, present = dict(flatten(saved)), dict(flatten(present))
    changes = []
    for key in sorted(saved.keys() | present.keys()):
        before, after = saved.get(key, "(not set)"), present.get(key, "(not set)")
        if before != after and key.split(".")[0] not in NEUTRAL_KEYS:
            changes.append(f"{shown(key)}: {shown(before)} -> {shown(after)}")
    return changes


# Settings that are gone (docs/log/removed.md) and changed no result.
_GONE = {"data_on_device", "batches_ahead", "cuda_graph", "arc_vote_across_evaluations", "report"}


def in_present_terms(saved: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
    """Return the settings of a saved run in the terms of this version, without those that are gone.
    For `training` a setting that changed the run stays, so that it is reported as a difference.
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
