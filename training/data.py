"""Open the data sets of a run and check that they fit it, before torch is loaded."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.format.files import is_folder
from dataset.format.reading import load_metadata
from dataset.format.schema import PuzzleDatasetMetadata
from dataset.kinds import FIELDS_WRITTEN_BY
from models.architectures import ArchConfig
from models.config import DataFacts
from puzzle_dataset import EvalBatches, PuzzleDataset, TrainBatches
from runtime.errors import ConfigError, DatasetError
from training.config.schema import CANONICAL_SHARDS, DataConfig, TrainConfig

if TYPE_CHECKING:
    from runtime.ranks import Ranks


def open_data(
    config: TrainConfig, *, check_values: bool, warn: Callable[[str], None]
) -> tuple[PuzzleDataset, PuzzleDataset | None]:
    """Open the training split and the evaluation split. The latter is None if the run evaluates
    nothing, or (with a warning) if no folder has the split.

    Args:
        check_values: also check every token; one rank of a run is enough.
    Raises:
        ConfigError: a setting does not fit the data.
        DatasetError: names the folder or file, and the command that builds a missing data=NAME.
    """
    require_folders(config)
    require_fields(config.arch, config.train_paths, "train")
    # Checked before all tokens are read.
    trained_on = PuzzleDataset(config.train_paths[:1], "train", check_values=False)
    config.arch.require_data(data_facts(trained_on.metadata, kind=trained_on.kind))
    fields = list(config.arch.fields.values())
    opened = partial(PuzzleDataset, fields=fields, check_values=check_values)
    train_set = opened(config.train_paths, "train")
    require_batches(config, train_set)
    if (split := config.eval_split) is None:
        return train_set, None
    if not any(is_folder(Path(path) / split) for path in config.test_paths):
        warn(f"{', '.join(config.test_paths)}: there is no {split} split, so nothing is evaluated")
        return train_set, None
    require_fields(config.arch, config.test_paths, split)
    test_set = opened(config.test_paths, split, numbered_as=config.train_paths)
    train, test, folder = train_set.metadata, test_set.metadata, test_set.split_dirs[0]
    facts = [
        (name, getattr(train, name), getattr(test, name)) for name in ("vocab_size", "seq_len")
    ]
    facts += [(f"fields.{name}", train.fields[name], test.fields[name]) for name in fields]
    for fact, of_train, of_test in facts:
        if of_train != of_test:
            raise DatasetError(f"{folder}: {fact} is {of_test}, the training split has {of_train}")
    known, used = train.num_puzzle_identifiers, test.num_puzzle_identifiers
    if config.arch.puzzle_emb_ndim:
        if used > known:
            raise DatasetError(
                f"{folder}: num_puzzle_identifiers is {used}, the training split has {known}: the "
                f"others would have no puzzle embedding"
            )
        test_set.require_names_of(config.train_paths)
    size = config.eval_batch_size or config.global_batch_size
    batches = max(-(-arrays.num_examples // size) for arrays in test_set.sets.values())
    _require_within("limit_eval_batches", config.limit_eval_batches, batches)
    return train_set, test_set


def order_of_sets(config: TrainConfig, train_set: PuzzleDataset) -> str | None:
    """Return a warning if sets are learned one after the other, each for several epochs."""
    number, epochs = len(train_set.sets), config.epochs_per_iteration
    if number == 1 or epochs == 1:
        return None
    turns = "eval_interval=1 takes turns after each epoch"
    return f"the {number} sets are learned one after the other, each for {epochs} epochs; {turns}"


def train_batches(
    config: TrainConfig, train_set: PuzzleDataset, rank: int = 0, world_size: int = 1
) -> TrainBatches:
    """Return the training batches of a rank."""
    return TrainBatches(
        train_set,
        seed=config.seed,
        global_batch_size=config.global_batch_size,
        epochs_per_iter=config.epochs_per_iteration,
        rank=rank,
        world_size=world_size,
        max_batches=config.limit_train_batches,
        repeated=config.overfit_batches,
    )


def eval_batches(config: TrainConfig, test_set: PuzzleDataset, ranks: "Ranks") -> EvalBatches:
    """Return the test batches of this rank. With `reduction=exact` a rank's batch has the same
    number of rows at any number of ranks, so that the bits are the same.
    """
    size = config.eval_batch_size or config.global_batch_size
    if config.reduction == "exact":
        size = size // CANONICAL_SHARDS * ranks.world_size
    return EvalBatches(
        test_set,
        global_batch_size=size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        max_examples=eval_limit(config),
    )


def eval_limit(config: TrainConfig) -> int | None:
    """Return how many rows of each test set are evaluated at most; None: all."""
    size = config.eval_batch_size or config.global_batch_size
    limits = (config.eval_max_examples, size * (config.limit_eval_batches or 0))
    return min(filter(None, limits), default=None)


def ended_iterations(config: TrainConfig, steps: int) -> int:
    """Return how many iterations a run ends whose schedule has `steps`. At max_steps it stops
    before the evaluation that is due at that step.
    """
    limit, number = config.max_steps, config.num_iterations
    return number if limit is None or limit > steps else (limit * number - 1) // steps


def require_batches(config: TrainConfig, train_set: PuzzleDataset) -> None:
    """Raise ConfigError if there are no puzzles, if a set does not fill a batch in an iteration
    (incomplete batches are dropped), or if there are fewer than a limit.
    """
    if not train_set.metadata.total_groups:
        raise ConfigError(f"{train_set.split_dirs[0]}: there are no puzzles to train on")
    key = "epochs" if config.eval_interval is None else "eval_interval"
    for name in train_batches(config, train_set).sets_without_batch():
        of_set = f" of the set {name}" if len(train_set.sets) > 1 else ""
        groups = len(train_set.sets[name].group_indices) - 1
        raise ConfigError(
            f"global_batch_size={config.global_batch_size}: {key}={config.epochs_per_iteration} "
            f"over {groups} groups{of_set} does not fill one batch; use a smaller batch or a larger"
            f" {key}"
        )
    if config.limit_train_batches or config.overfit_batches:
        whole = config.model_copy(update={"limit_train_batches": None, "overfit_batches": None})
        number = train_batches(whole, train_set).steps_per_iteration(0)
        _require_within("limit_train_batches", config.limit_train_batches, number)
        number = min(number, config.limit_train_batches or number)
        _require_within("overfit_batches", config.overfit_batches, number)


def _require_within(name: str, limit: int | None, number: int) -> None:
    if limit is not None and limit > number:
        raise ConfigError(f"{name}={limit}: there are only {number} batches")


def require_fields(arch: ArchConfig, folders: Sequence[str], split: str) -> None:
    """Check an architecture against `dataset.json`. Raise ConfigError if the token head does not
    fit the vocabulary, DatasetError if a data set lacks a label field.
    """
    for folder in folders:
        vocab_size = load_metadata(Path(folder) / split).vocab_size
        try:
            arch.heads.lm.require_tokens(vocab_size)
        except ValueError as error:
            few = f"{folder} has only {vocab_size} tokens"
            raise ConfigError(f"arch.heads.lm.{error}: {few}") from None
    for part, reason in parts_without_field(arch.fields, folders, split).items():
        name = arch.fields[part]
        hint = f"; {FIELDS_WRITTEN_BY[name]}" if name in FIELDS_WRITTEN_BY else ""
        raise DatasetError(f"{reason}{hint}")


def parts_without_field(
    fields: Mapping[str, str], folders: Sequence[str], split: str
) -> dict[str, str]:
    """Return the parts of an architecture whose label field is missing in a data set, each with a
    message. `fields` is like `RecurrenceConfig.fields`.
    """
    missing = {}
    for folder, (part, name) in itertools.product(folders, fields.items()):
        metadata = load_metadata(Path(folder) / split)
        try:
            data_facts(metadata, metadata.fields).field(name, f"arch.{part}")
        except ValueError as error:
            missing[part] = f"{folder}: {error}"
    return missing


def require_folders(config: TrainConfig) -> None:
    """Raise DatasetError if a data folder, or the selection split to evaluate, is missing."""
    for path in [*config.train_paths, *config.test_paths]:
        require_folder(path, config.data)
    for path in config.test_paths if config.eval_split == "selection" else ():
        if not is_folder(Path(path) / "selection"):
            how = "build the set with --selection-size, as data=sudoku_held_out does"
            raise DatasetError(f"{path}: there is no split selection; {how}")


def require_folder(path: str, known: DataConfig | None) -> None:
    """Raise DatasetError if a data folder is missing, with the command that builds a known set."""
    if not is_folder(Path(path)):
        hint = ""
        if known and known.builder and path == known.path:
            hint = f"; build it with: {known.how_to_build}"
        raise DatasetError(f"{path}: no such data folder{hint}")


def data_facts(
    metadata: PuzzleDatasetMetadata, fields: Iterable[str] = (), kind: str | None = None
) -> DataFacts:
    """Return the facts of a data set that a model needs, with these label fields."""
    declared = {name: metadata.fields[name] for name in fields}
    return DataFacts(
        vocab_size=metadata.vocab_size,
        seq_len=metadata.seq_len,
        num_puzzle_identifiers=metadata.num_puzzle_identifiers,
        fields={name: (field.num_classes, field.channels) for name, field in declared.items()},
        kind=kind,
    )


def require_same_data(fingerprint: str, ranks: "Ranks") -> None:
    """Raise DatasetError, on all ranks, unless all of them have read the same data."""
    others = ", ".join(map(str, ranks.differing(fingerprint)))
    if others:
        raise DatasetError(f"rank {others} read other data than rank 0")


def published_total_steps(
    epochs: int, total_groups: int, mean_puzzle_examples: float, global_batch_size: int
) -> int:
    """Return the steps of the published schedule. It counts dropped incomplete batches too."""
    return int(epochs * total_groups * mean_puzzle_examples / global_batch_size)


def scheduled_steps(config: TrainConfig, metadata: PuzzleDatasetMetadata) -> int:
    """Return the steps of the learning rate's schedule. A limit of the batches shortens it to the
    steps that the limit leaves.
    """
    counted = (config.epochs, metadata.total_groups, metadata.mean_puzzle_examples)
    steps = published_total_steps(*counted, config.global_batch_size)
    limit = config.limit_train_batches
    return steps if limit is None else min(steps, limit * config.num_iterations)
