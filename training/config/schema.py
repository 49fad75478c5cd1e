"""Schema of a training run, and the sentences that explain what is wrong with one.

Imports no torch: a configuration is checked, and refused, before torch is loaded.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from models.config import (
    PUBLISHED_ARCHITECTURES,
    TOKEN_HEADS,
    ArchConfig,
    EvaluatorName,
    OutputField,
)
from runtime.errors import ConfigError
from runtime.schema import (
    Count,
    CountOrZero,
    NonNegativeFloat,
    PositiveFloat,
    Probability,
    Schema,
    Seconds,
    StrictBool,
)
from runtime.text import shown

SchemaT = TypeVar("SchemaT", bound=Schema)
_LM_PATH = ["arch", "heads", "lm"]
_ARCH_NAMES = tuple(dict.fromkeys(PUBLISHED_ARCHITECTURES.values()))
Rate = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
Device = Literal["auto", "cpu", "cuda"]

# Parts of the global batch with `reduction=exact`, and the numbers of ranks that share them evenly.
CANONICAL_SHARDS = 4
EXACT_WORLD_SIZES = (1, 2, 4)


class ParamGroupConfig(Schema):
    """Parameters that share their hyperparameters.

    Attributes:
        params: shell-style patterns on parameter names (`*.lm_head.*`); a parameter belongs to
            exactly one group.
        lr: peak learning rate; None takes the run's `lr`.
        weight_decay: decoupled weight decay; None takes the run's `weight_decay`. The learned
            weights of losses never decay.
        decay_vectors: whether it is also for parameters of less than two dimensions: biases, and
            the scales of norms.
        max_grad_norm: L2 norm to which the group's gradient is clipped; None does not clip.
        optional: whether the group may match nothing; it is left out then.
    """

    params: list[str] = Field(min_length=1)
    lr: NonNegativeFloat | None = None
    weight_decay: NonNegativeFloat | None = None
    decay_vectors: StrictBool = True
    max_grad_norm: PositiveFloat | None = None
    optional: StrictBool = False


class OptimizerConfig(Schema):
    """Optimizer of everything but the puzzle embedding."""

    name: Literal["adam_atan2", "adamw"] = "adam_atan2"
    groups: dict[str, ParamGroupConfig] = Field(min_length=1)


class LoggerConfig(Schema):
    """Where metrics go beside `metrics.jsonl`.

    `mode` (W&B): `auto` is online when logged in and the server answers within 10 s, otherwise
    offline.
    """

    name: Literal["wandb", "jsonl"] = "wandb"
    mode: Literal["auto", "online", "offline"] = "auto"


class DataConfig(Schema):
    """A data set by name: where it is expected, the command that builds it, and what it is
    evaluated with.
    """

    name: str
    path: str
    build_command: str
    evaluators: list[EvaluatorName] = []


class TrainConfig(Schema):
    """Everything a training run is told. Names and defaults are the published ones where those
    exist.

    Attributes:
        data_path, data_paths: training folders (one or several); data_paths_test: test folders when
            they differ.
        global_batch_size: sequences per optimizer step, over all ranks.
        epochs: epochs over the groups; eval_interval: epochs between evaluations (None: only at the
            end).
        lr_warmup_steps: optimizer steps; lr_min_ratio: share of `lr` at the end of the cosine.
        min_eval_interval: evaluations to leave out at the start (the last one is always made).
        eval_save_outputs: what evaluations write to eval_step_N/ in the run's folder.
        evaluators: what is measured besides; None: what the named data set is evaluated with, where
            that is what the run evaluates on.
        arc_vote_across_evaluations: votes on ARC tasks add up from evaluation to evaluation (of
            one process: a resumed run starts to count anew); otherwise each counts its own.
        ema: keep an exponential moving average of the weights, and evaluate that; `ema_rate` is the
            share of it that a step leaves.
        freeze_weights: train the puzzle embedding only.
        checkpoint_path: the run's folder; None gives checkpoints/PROJECT/RUN.
        load_checkpoint: start weights; `resume` looks in the run's folder and comes first.
        checkpoint_interval: optimizer steps between saves, with one more before each evaluation;
            keep_last and keep_best say how many stay.
        rank_timeout: seconds that a rank waits for another one before the run ends; see
            `runtime.watch`.
        log_interval: steps whose metrics are gathered on the device before they are written.
        diagnose_interval: optimizer steps between diagnoses; None: none.
        reduction: `exact` cuts every global batch into `CANONICAL_SHARDS` shards, whatever the
            number of ranks, and adds their gradients in shard order: 1, 2 and 4 ranks, and any
            sequence of them, end in the same bits. `fast` lets each rank work on all its rows at
            once, and promises equal bits for one number of ranks.
        max_steps: stop and save after this step; the schedule does not change.
    """

    arch: ArchConfig
    optimizer: OptimizerConfig
    logger: LoggerConfig = LoggerConfig()
    data: DataConfig | None = None

    data_path: str | None = None
    data_paths: list[str] | None = None
    data_paths_test: list[str] | None = None

    global_batch_size: Count = 768
    epochs: Count = 100000
    eval_interval: Count | None = None
    min_eval_interval: CountOrZero = 0
    eval_batch_size: Count | None = None
    eval_max_examples: Count | None = None
    eval_save_outputs: list[OutputField] = []
    evaluators: list[EvaluatorName] | None = None
    arc_vote_across_evaluations: StrictBool = False

    lr: NonNegativeFloat = 1e-4
    lr_min_ratio: Probability = 1.0
    lr_warmup_steps: CountOrZero = 2000
    beta1: Rate = 0.9
    beta2: Rate = 0.95
    weight_decay: NonNegativeFloat = 0.1
    puzzle_emb_lr: NonNegativeFloat = 1e-2
    puzzle_emb_weight_decay: NonNegativeFloat = 0.1
    ema: StrictBool = False
    ema_rate: Rate = 0.999
    freeze_weights: StrictBool = False
    reduction: Literal["fast", "exact"] = "fast"

    project_name: str | None = None
    run_name: str | None = None
    checkpoint_path: str | None = None
    load_checkpoint: str | None = None
    resume: Literal["auto", "never"] | CountOrZero = "auto"
    resume_changed: StrictBool = False
    checkpoint_interval: Count | None = 1000
    checkpoint_every_eval: StrictBool = False
    keep_last: Annotated[int, Field(strict=True, ge=2)] = 2
    keep_best: CountOrZero = 0

    seed: Annotated[int, Field(strict=True, ge=0, lt=2**64)] = 0
    device: Device = "auto"
    compile: Literal["auto"] | StrictBool = "auto"
    num_threads: Count | None = None
    rank_timeout: Seconds = 600.0
    log_interval: Count = 10
    diagnose_interval: Count | None = 100
    max_steps: Count | None = None

    @field_validator("project_name", "run_name")
    @classmethod
    def _plain_name(cls, name: str | None) -> str | None:
        if name is not None and (
            not name.strip()
            or "/" in name
            or "\\" in name
            or not name.isprintable()
            or name in (".", "..")
        ):
            raise ValueError(
                f"{shown(repr(name))} is used as a folder's name: it must not be empty, '.', '..' "
                f"or contain a slash or control characters"
            )
        return name

    @field_validator("run_name", "project_name", mode="before")
    @classmethod
    def _number_as_name(cls, name: object) -> object:
        # `run_name=42` reaches us as an integer.
        return str(name) if isinstance(name, int | float) and not isinstance(name, bool) else name

    @model_validator(mode="after")
    def _data_is_named(self) -> "TrainConfig":
        if not self.train_paths:
            raise ValueError("no training data: set data_path=FOLDER (or data_paths=[FOLDER,...])")
        return self

    @model_validator(mode="after")
    def _something_is_trained(self) -> "TrainConfig":
        if self.freeze_weights and not self.arch.puzzle_emb_ndim:
            raise ValueError(
                "freeze_weights=true trains the puzzle embedding only, and there is none "
                "(arch.puzzle_emb_ndim=0)"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_divide_the_epochs(self) -> "TrainConfig":
        if self.eval_interval is not None and self.epochs % self.eval_interval:
            nearest = max(1, round(self.epochs / self.eval_interval))
            raise ValueError(
                f"eval_interval={self.eval_interval} must divide epochs={self.epochs}: "
                f"try epochs={nearest * self.eval_interval}, or eval_interval=null for one "
                "evaluation at the end"
            )
        return self

    @property
    def train_paths(self) -> list[str]:
        """Folders to train on. `data_paths` comes before `data_path`, as in TRM."""
        return self.data_paths or ([self.data_path] if self.data_path else [])

    @property
    def test_paths(self) -> list[str]:
        """Folders to evaluate on."""
        return self.data_paths_test or self.train_paths

    @property
    def active_evaluators(self) -> list[EvaluatorName]:
        """Evaluators of this run."""
        return chosen_evaluators(self.evaluators, self.data, self.test_paths)

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

    def check_world_size(self, world_size: int) -> None:
        """Raise ConfigError when a batch cannot be cut into equal slices for the ranks, or into
        the shards of `reduction=exact`.
        """
        divisor, what = world_size, f"the number of ranks, {world_size}"
        if self.reduction == "exact":
            if world_size not in EXACT_WORLD_SIZES:
                accepted = ", ".join(map(str, EXACT_WORLD_SIZES))
                raise ConfigError(
                    f"reduction=exact: there are {world_size} ranks, accepted are {accepted}; "
                    "reduction=fast takes any number"
                )
            divisor, what = CANONICAL_SHARDS, f"{CANONICAL_SHARDS} with reduction=exact"
        for name in ("global_batch_size", "eval_batch_size"):
            size = getattr(self, name)
            if size is not None and size % divisor:
                near = max(divisor, round(size / divisor) * divisor)
                raise ConfigError(f"{name}={size} must be a multiple of {what}: try {near}")

    def check_restarts(self, max_restarts: int) -> None:
        """Raise ConfigError when a launcher would start the run again from an older checkpoint than
        its newest, or not at all.
        """
        if max_restarts and self.resume != "auto":
            raise ConfigError(
                f"resume={self.resume}: with --max-restarts {max_restarts} each restart would obey "
                f"it too; start once without restarts, then go on with resume=auto"
            )


def chosen_evaluators(
    asked: list[EvaluatorName] | None, data: DataConfig | None, test_paths: list[str]
) -> list[EvaluatorName]:
    """Return the evaluators asked for, or, where none are named, those of the data set `data` if
    that alone is evaluated.
    """
    if asked is not None:
        return asked
    return data.evaluators if data is not None and test_paths == [data.path] else []


# Settings that change nothing of what a run computes; all others must match when it is resumed.
NEUTRAL_KEYS = frozenset(
    {
        "logger",
        # The content of the data decides, which has its own fingerprint.
        "data",
        "data_path",
        "data_paths",
        "project_name",
        "run_name",
        "checkpoint_path",
        "load_checkpoint",
        "resume",
        "resume_changed",
        "checkpoint_interval",
        "checkpoint_every_eval",
        "keep_last",
        "keep_best",
        "min_eval_interval",
        "eval_batch_size",
        "eval_max_examples",
        "eval_save_outputs",
        "evaluators",
        "arc_vote_across_evaluations",
        "data_paths_test",
        "device",
        "compile",
        "num_threads",
        "rank_timeout",
        "log_interval",
        "diagnose_interval",
        "max_steps",
    }
)


def changed_keys(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return 'key: saved -> present' for each setting that differs and changes the result."""
    flat_saved, flat_present = dict(_flatten(saved)), dict(_flatten(present))
    changes = []
    for key in sorted(flat_saved.keys() | flat_present.keys()):
        if key.split(".")[0] in NEUTRAL_KEYS:
            continue
        before, after = flat_saved.get(key, "(not set)"), flat_present.get(key, "(not set)")
        if before != after:
            changes.append(f"{shown(key)}: {shown(before)} -> {shown(after)}")
    return changes


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def validate(schema: type[SchemaT], composed: Mapping[str, Any]) -> SchemaT:
    """Turn a composed configuration into `schema`.

    Raises:
        ConfigError: one clause for each fault: the path, the value, what is accepted, the nearest
            valid name.
    """
    try:
        return schema.model_validate(composed)
    except ValidationError as error:
        faults = [_describe(schema, fault) for fault in _of_one_arch(schema, error.errors())]
        raise ConfigError("; ".join(dict.fromkeys(faults))) from None


def _of_one_arch(schema: type[BaseModel], faults: list[Any]) -> list[Any]:
    """Put the settings that belong to another architecture than `arch.name` into one fault."""
    foreign = [
        fault
        for fault in faults
        if fault["type"] == "extra_forbidden"
        and fault["loc"][0] == "arch"
        and is_setting(".".join(("arch", *map(str, fault["loc"][2:]))), schema)
    ]
    if len(foreign) < 2:
        return faults
    name = foreign[0]["loc"][1]
    keys = ", ".join(str(fault["loc"][-1]) for fault in foreign)
    message = f"{name} has no {keys}: choose an architecture with its settings, arch={name}"
    merged = {"loc": ("arch", "name"), "type": "value_error", "ctx": {"error": message}}
    return [merged, *(fault for fault in faults if fault not in foreign)]


def unknown_key(
    schema: type[BaseModel], path: str, value: object = None, groups: Iterable[str] = ()
) -> str:
    """Say that `path` is no setting, nor one of the `groups`, and which name comes nearest."""
    named = shown(path, 100)
    said = named if value is None else f"{named}={shown(value)}"
    hint = suggest(path, [*setting_paths(schema), *groups])
    return f"unknown setting {said}" + (f"; did you mean {hint}?" if hint else "")


def suggest(path: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate nearest to `path`: one that a single slip of the finger makes of it (of
    several, all: "a or b"); else one of the same section, else anywhere.

    A `*` in a candidate stands for a free name, such as a parameter group's.
    """
    candidates = list(dict.fromkeys(_with_free_names(known, path) for known in candidates))
    slips = [candidate for candidate in candidates if _is_one_edit(path, candidate)]
    if slips:
        return " or ".join(slips)
    section, _, leaf = path.rpartition(".")
    siblings = {c.rpartition(".")[2]: c for c in candidates if c.rpartition(".")[0] == section}
    leaves = {c.rpartition(".")[2]: c for c in reversed(candidates)}
    for wanted, pool in ((leaf, siblings), (path, {c: c for c in candidates}), (leaf, leaves)):
        near = difflib.get_close_matches(wanted, pool, n=1, cutoff=0.6)
        if near:
            return pool[near[0]]
    # `hiden` is far from `hidden_size` by ratio but nearly its first word.
    first_words = {name.split("_")[0]: full for name, full in reversed(siblings.items())}
    near = difflib.get_close_matches(leaf, first_words, n=1, cutoff=0.7)
    return first_words[near[0]] if near else None


def _is_one_edit(a: str, b: str) -> bool:
    """Return whether one inserted, missing, wrong or transposed character makes `a` of `b`."""
    start = len(os.path.commonprefix([a, b]))
    a, b = a[start:], b[start:]
    end = len(os.path.commonprefix([a[::-1], b[::-1]]))
    a, b = a[: len(a) - end], b[: len(b) - end]
    return max(len(a), len(b)) <= 1 or (len(a) == 2 and a == b[::-1])


def is_setting(path: str, schema: type[BaseModel]) -> bool:
    """Return whether `path` names a setting or a section of `schema`."""
    return any(_with_free_names(known, path) == path for known in setting_paths(schema))


def setting_paths(schema: type[BaseModel], prefix: str = "") -> list[str]:
    """List the dotted paths of all settings of `schema`, sections included; `*` is a free name.

    Where a section can be of several kinds, those of all kinds.
    """
    paths: list[str] = []
    for name, field in schema.model_fields.items():
        paths.append(f"{prefix}{name}")
        for nested, inside in _schemas_in(field.annotation):
            if inside:
                paths.append(f"{prefix}{name}{inside}")
            paths += setting_paths(nested, f"{prefix}{name}{inside}.")
    return list(dict.fromkeys(paths))


def _schemas_in(annotation: Any, inside: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, inside
    for argument in get_args(annotation):
        yield from _schemas_in(argument, ".*" if get_origin(annotation) is dict else inside)


def _with_free_names(candidate: str, path: str) -> str:
    parts = path.split(".")
    return ".".join(
        parts[i] if part == "*" and i < len(parts) else part
        for i, part in enumerate(candidate.split("."))
    )


def _describe(schema: type[BaseModel], fault: Any) -> str:
    # Tags of a union appear in pydantic's location but are not part of the path.
    parts = [
        str(part) for part in fault["loc"] if not str(part).startswith(("literal[", "constrained-"))
    ]
    arch = _pop_tag(parts, ["arch"], _ARCH_NAMES)
    lm = _pop_tag(parts, _LM_PATH, TOKEN_HEADS)
    path = ".".join(parts)
    kind, value = fault["type"], fault.get("input")
    if kind == "extra_forbidden":
        if arch is not None and is_setting(path, schema):
            kinds = f"arch.name={arch}" if lm is None else f"arch.heads.lm.name={lm}"
            return f"{path}={shown(value)}: {kinds} has no such setting"
        return unknown_key(schema, path, value)
    if kind == "union_tag_invalid" and parts == _LM_PATH:
        return (
            f"{path}.name={shown(fault['ctx']['tag'])}: there is no such token head; accepted: "
            f"{', '.join(TOKEN_HEADS)}"
        )
    if kind == "union_tag_invalid":
        return (
            f"{path}.name={shown(fault['ctx']['tag'])}: there is no such architecture; accepted: "
            f"{', '.join(_ARCH_NAMES)}, or a published class name"
        )
    if kind == "value_error":
        message = str(fault["ctx"]["error"])
        return f"{path}: {message}" if path else message
    if kind == "missing":
        return f"{path} is not set"
    return f"{path}={shown(value)}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _pop_tag(parts: list[str], section: list[str], tags: tuple[str, ...]) -> str | None:
    """Take the tag that stands behind a section's path out of a location."""
    place = len(section)
    if parts[:place] == section and parts[place : place + 1] and parts[place] in tags:
        return parts.pop(place)
    return None
