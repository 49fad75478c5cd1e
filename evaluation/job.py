"""What an evaluation is to do, checked as far as needs no torch: which model, on which puzzles, and
where the result goes.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

from dataset.kinds.base import Views, kind_named
from evaluation.config import EvalConfig, EvalSearchSettings
from evaluation.evaluators.base import Evaluator, build_evaluators
from evaluation.views import views_for
from models.config import DataFacts
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError, DatasetError
from runtime.process import env_world_size
from runtime.schema import Schema
from training.checkpoint.addresses import parse_address
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.data import data_facts, heads_without_field, require_folder
from training.tracking import warn


@dataclass(frozen=True)
class Job:
    """An evaluation that has been checked as far as needs no torch."""

    config: EvalConfig
    trained: TrainedModel
    dataset: PuzzleDataset
    facts: DataFacts
    evaluators: Mapping[str, Evaluator]
    batch_size: int  # Puzzles at a time, over all ranks; a CUDA device may get more.
    differs: list[str]  # What is measured otherwise than the run would, as names of files say it.
    output: Path  # The JSON file to write.
    views: Views | None  # Where chains see the puzzles in several.


def prepare(config: EvalConfig) -> Job:
    """Find the model, open the data, and check that they fit and that the result can be written.

    Raises:
        CheckpointError, ConfigError, DatasetError: names what is wrong.
    """
    trained = find_trained_model(Path(config.checkpoint), warn)
    arch = trained.run.arch
    if config.search.chains and not arch.searches:
        raise ConfigError(
            f"search.chains: {trained.weights} is of arch={arch.name}, which neither strikes "
            "candidates nor guesses; breadth=8 gives it several chains"
        )
    asked = config.arch_overrides.model_dump(exclude_none=True).keys()
    if unknown := asked - type(arch).model_fields:
        raise ConfigError(f"arch_overrides.{min(unknown)}: arch={arch.name} has no such setting")
    require_thinking(config, trained, trained.may_halt)
    dataset = open_dataset(config, trained)
    kind = kind_named(dataset.kind) if dataset.kind else None
    views = views_for(config, kind, isqrt(dataset.metadata.seq_len))
    facts = data_facts(dataset.metadata, dataset.fields, dataset.kind)
    trained.require_fit(facts, str(dataset.split_dirs[0]))
    evaluators = {}
    if not (config.thinks_longer or config.search.chains):
        asked, run = config.evaluators, trained.run
        evaluators = build_evaluators(run.active_evaluators if asked is None else asked, dataset)
        if asked is None:
            evaluators |= build_evaluators(run.inherited_evaluators, dataset, warn)
    batch_size = global_batch_size(config, trained, dataset, env_world_size())
    differs = what_differs(config, trained, dataset)
    output = output_path(config, trained, differs)
    require_writable(output)
    return Job(config, trained, dataset, facts, evaluators, batch_size, differs, output, views)


def require_thinking(config: EvalConfig, trained: TrainedModel, halts: bool) -> None:
    """Raise ConfigError where the model cannot think as it is asked to; `halts`: whether a head
    says when a puzzle is done.
    """
    if config.halting != "steps" and not halts:
        raise ConfigError(
            f"halting: no head of {trained.weights} says when a puzzle is done; use halting=steps"
        )
    config.require_model(trained.run.arch, halts=halts, name=trained.weights)


def open_dataset(config: EvalConfig, trained: TrainedModel) -> PuzzleDataset:
    """Open the data asked for, or the run's, with the label fields that the heads read; warns of
    heads whose field the data do not have.

    Raises:
        ConfigError: neither names a folder.
        DatasetError: names the folder or file at fault.
    """
    folders = config.data_folders or trained.run.data_folders(config.split)
    if not folders:
        unsaid = f"{trained.weights} does not say what it was trained on"
        raise ConfigError(f"{unsaid}: set data_path=FOLDER")
    try:
        for folder in folders:
            require_folder(folder, trained.run.data)
        heads = trained.run.arch.heads
        missing = heads_without_field(heads, folders, config.split)
        for head, reason in missing.items():
            warn(f"{reason}: nothing is reported of {head}")
        fields = [field for head, field in heads.fields.items() if head not in missing]
        numbered_as = trained.run.data_folders("train")
        return PuzzleDataset(folders, config.split, fields=fields, numbered_as=numbered_as)
    except DatasetError as error:
        hint = "" if config.data_folders else " (the run's own; data_path=FOLDER names another)"
        raise DatasetError(f"{error}{hint}") from None


def global_batch_size(
    config: EvalConfig,
    trained: TrainedModel,
    dataset: PuzzleDataset,
    world_size: int,
    fits: int = 0,
) -> int:
    """Return the batch size asked for; or the run's, or `fits` rows on each rank if that is more,
    rounded up to a multiple of the ranks.

    Without one asked for it is no more than the largest set needs, because further rows would be
    padding. With halting=q it is at most a sixteenth of the set, but 32 rows are always allowed: at
    the end of the set slots stand empty until the last row has halted.

    Raises:
        ConfigError: the one asked for is no multiple of the ranks.
    """
    size = config.global_batch_size
    if size is None:
        largest = max((arrays.num_examples for arrays in dataset.sets.values()), default=1)
        if config.halting == "q":
            largest = min(largest, max(32, largest // 16))
        size = min(max(trained.run.global_batch_size, fits * world_size), max(1, largest))
        return -(-size // world_size) * world_size
    if size % world_size:
        near = max(world_size, round(size / world_size) * world_size)
        raise ConfigError(
            f"global_batch_size={size} must be a multiple of the number of ranks, {world_size}: "
            f"try {near}"
        )
    return size


def what_differs(config: EvalConfig, trained: TrainedModel, dataset: PuzzleDataset) -> list[str]:
    """Return what is measured otherwise than the run would by itself, as names of files say it:
    other data or another split, a sample, the halt, thinking longer, and what changes the model or
    a search. A setting that changes nothing is left out.
    """
    own = {Path(folder).resolve() for folder in trained.run.data_folders(config.split)}
    asked = {Path(folder).resolve(): None for folder in config.data_folders}
    largest = max((arrays.num_examples for arrays in dataset.sets.values()), default=0)
    sample, breadth = config.max_examples, max(config.breadth)
    perturb = f"{config.perturb}{config.noise if config.perturb == 'noise' else ''}"
    parts = [
        *((folder.name, own and own != asked.keys()) for folder in asked),
        (config.split, config.split != "test"),
        ("at_halt", config.halting == "q"),
        ("thinking", config.thinks_longer),
        (f"depth{_several(config.depth or [])}", config.depth is not None),
        (f"breadth{_several(config.breadth)}", breadth > 1),
        (perturb, breadth > 1),
        ("-".join(dict.fromkeys(config.select)), config.select != ["q"]),
        ("last_weights", config.weights == "last" and trained.has_average),
        (f"first{sample}", sample is not None and sample < largest),
        *_values_that_differ(config.arch_overrides, trained.run.arch),
    ]
    if config.search.chains:
        names = {"backtrack", "caution", "control"}
        parts += _values_that_differ(config.search, EvalSearchSettings(), names)
    return [part for part, is_so in parts if is_so]


def _several(numbers: Sequence[int]) -> str:
    return "-".join(map(str, sorted(set(numbers))))


def _values_that_differ(
    asked: Schema, usual: object, names: set[str] | None = None
) -> list[tuple[str, bool]]:
    """Return NAME-VALUE of the settings that are given, and whether it is another value."""
    values = asked.model_dump(include=names, exclude_none=True)
    return [
        (f"{name}-{str(value).lower()}", value != getattr(usual, name))
        for name, value in values.items()
    ]


def output_path(config: EvalConfig, trained: TrainedModel, differs: Sequence[str]) -> Path:
    """Return where the result goes: by default eval_step_N.json in the run's folder (of a model on
    the Hub in outputs/OWNER--NAME), where anything differs with that in its name, and with a
    search, evaluators of its own and a seed.
    """
    if config.output is not None:
        return Path(config.output)
    parts = ["eval", trained.weights.name, *differs]
    if config.search.chains:
        parts.append(f"search{config.search.chains}x{config.search.rounds}")
    usual = trained.run.active_evaluators or trained.run.inherited_evaluators
    if config.evaluators is not None and config.evaluators != usual:
        names = [evaluator.name for evaluator in config.evaluators]
        parts.append("-".join(["evaluators", *(names or ["none"])]))
    if config.seed:
        parts.append(f"seed{config.seed}")
    folder = trained.weights.parent
    if (address := parse_address(config.checkpoint)) is not None:
        folder = Path("outputs", address.folder_name)  # The Hub's cache is not ours to write into.
    return folder / f"{'_'.join(parts)}.json"


def require_writable(output: Path) -> None:
    """Raise ConfigError when a file cannot be written at `output`; creates its folder."""
    try:
        if output.is_dir():
            raise ConfigError(f"output={output}: is a folder, expected a file's name")
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=output.name):
            pass
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error.strerror}") from None


def beside(output: Path, ending: str) -> Path:
    """Return where a further file of the result `output` goes: x.json -> x and the ending. Names
    that end otherwise stay whole: files of a.v1 and a.v2 differ.
    """
    return output.with_name(output.name.removesuffix(".json") + ending)
