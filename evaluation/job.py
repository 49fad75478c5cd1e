"""The job of an evaluation: which model, which puzzles, and where the result goes. All of it is
checked without torch.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

from dataset.kinds.base import Views, known_kind
from evaluation.config import ArchOverrides, EnergySettings, EvalConfig, EvalSearchSettings
from evaluation.evaluators.base import Evaluator, build_evaluators
from evaluation.probes import ProbeConfig
from evaluation.views import views_for
from models.config import DataFacts, RecurrenceConfig
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError, DatasetError
from runtime.process import env_world_size
from runtime.schema import Schema
from training.checkpoint.addresses import parse_address
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.data import data_facts, parts_without_field, require_folder
from training.tracking import warn


@dataclass(frozen=True)
class Job:
    """An evaluation that has been checked without torch."""

    config: EvalConfig
    trained: TrainedModel
    dataset: PuzzleDataset
    facts: DataFacts
    evaluators: Mapping[str, Evaluator]
    batch_size: int  # Puzzles at a time, over all ranks; may grow on CUDA.
    differs: list[str]  # How it differs from the run's own evaluations; see `what_differs`.
    output: Path  # The JSON file to write.
    views: Views | None  # Views of the puzzles, if chains see several.
    energy_set: PuzzleDataset | None = None  # Puzzles from which `select=energy` learns.


def prepare(config: EvalConfig) -> Job:
    """Find the model, open the data, and check that they fit and that the result can be written.

    Raises:
        CheckpointError, ConfigError, DatasetError: one of these checks fails.
    """
    trained = find_trained_model(Path(config.checkpoint), warn)
    arch = trained.run.arch
    if config.search.chains and not arch.searches:
        raise ConfigError(
            f"search.chains: {trained.weights} has arch={arch.name}, which cannot search; use "
            "chains=8"
        )
    if config.probes and arch.searches:
        raise ConfigError(f"probes: {trained.weights} searches; probes follow models that do not")
    require_overrides(config.arch_overrides, arch)
    require_thinking(config, trained, trained.may_halt)
    dataset = open_dataset(config, trained)
    kind = known_kind(dataset.kind)
    views = views_for(config, kind, isqrt(dataset.metadata.seq_len))
    facts = data_facts(dataset.metadata, dataset.fields, dataset.kind)
    trained.require_fit(facts, str(dataset.split_dirs[0]))
    trained.require_names(dataset)
    evaluators = {}
    if not (config.thinks_longer or config.search.chains or config.probes):
        asked, run = config.evaluators, trained.run
        evaluators = build_evaluators(run.active_evaluators if asked is None else asked, dataset)
        if asked is None:
            evaluators |= build_evaluators(run.inherited_evaluators, dataset, warn)
    batch_size = global_batch_size(config, trained, dataset, env_world_size())
    differs = what_differs(config, trained, dataset)
    output = output_path(config, trained, differs)
    require_writable(output)
    settled = config, trained, dataset, facts, evaluators, batch_size, differs, output, views
    return Job(*settled, open_energy_set(config, trained, facts.seq_len))


def require_overrides(overrides: ArchOverrides, arch: RecurrenceConfig) -> None:
    """Raise ConfigError if an override does not change this architecture."""
    asked = overrides.model_dump(exclude_none=True).keys()
    if "H_cycles" in asked and not arch.has_cycles:
        raise ConfigError(f"arch_overrides.H_cycles: arch={arch.name} has no cycles")
    if unknown := asked - type(arch).model_fields.keys():
        raise ConfigError(f"arch_overrides.{min(unknown)}: arch={arch.name} has no such setting")


def open_energy_set(
    config: EvalConfig, trained: TrainedModel, seq_len: int
) -> PuzzleDataset | None:
    """Open the puzzles, of `seq_len` cells, from which `select=energy` learns; None without it.

    Raises:
        DatasetError: a folder or file is missing or broken, or the puzzles have another size.
        CheckpointError: they do not fit the model.
    """
    if "energy" not in config.select:
        return None
    asked, trained_on = config.energy.data_path, trained.run.data_folders("train")
    folders = [asked] if asked else trained_on
    try:
        for folder in folders:
            require_folder(folder, trained.run.data)
        dataset = PuzzleDataset(folders, config.energy.split, numbered_as=trained_on)
    except DatasetError as error:
        raise DatasetError(f"select=energy: {error} (energy.data_path=FOLDER)") from None
    where, facts = dataset.split_dirs[0], data_facts(dataset.metadata, kind=dataset.kind)
    trained.require_fit(facts, str(where))
    trained.require_names(dataset)
    if facts.seq_len != seq_len:
        other = f"{where} has puzzles of {facts.seq_len} cells, the test set of {seq_len}"
        raise DatasetError(f"select=energy: {other}; choose energy.data_path=FOLDER")
    return dataset


def require_thinking(config: EvalConfig, trained: TrainedModel, halts: bool) -> None:
    """Raise ConfigError if the model lacks what `halting`, `perturb` or `select` need. `halts`:
    whether a head says when a puzzle is done.
    """
    if config.halting != "steps" and not halts:
        raise ConfigError(
            f"halting: no head of {trained.weights} says when a puzzle is done; use halting=steps"
        )
    config.require_model(trained.run.arch, halts=halts, name=trained.weights)


def open_dataset(config: EvalConfig, trained: TrainedModel) -> PuzzleDataset:
    """Open the data set of the settings, or else the run's, with the label fields of the heads.
    Warn if the data lack the field of a head.

    Raises:
        ConfigError: neither the settings nor the run name a folder.
        DatasetError: a folder or file is missing or broken.
    """
    folders = config.data_folders or trained.run.data_folders(config.split)
    if not folders:
        unknown = f"{trained.weights} does not name its training data"
        raise ConfigError(f"{unknown}: set data_path=FOLDER")
    try:
        for folder in folders:
            require_folder(folder, trained.run.data)
        heads = trained.run.arch.heads
        parts = {f"heads.{head}": field for head, field in heads.fields.items()}
        missing = parts_without_field(parts, folders, config.split)
        for part, reason in missing.items():
            warn(f"{reason}: nothing is reported of {part.removeprefix('heads.')}")
        fields = [field for part, field in parts.items() if part not in missing]
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
    """Return the batch size, a multiple of the number of ranks.

    It is `global_batch_size` if set. Otherwise it is the run's, or `fits` rows on each rank if that
    is more, but no more rows than are measured of the largest set. With halting=q it is at most a
    sixteenth of these, or 32 rows if that is more: at the end of the set slots stay empty until the
    last row has halted.

    Raises:
        ConfigError: `global_batch_size` is not a multiple of the ranks.
    """
    size = config.global_batch_size
    if size is None:
        largest = max((arrays.num_examples for arrays in dataset.sets.values()), default=1)
        largest = min(largest, config.max_examples or largest)
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
    """Return the differences from the run's own evaluations, as parts of a file's name: other data,
    another split, a sample, halting, thinking longer, and settings of the model or a search. A
    setting that changes nothing is left out.
    """
    own = {Path(folder).resolve() for folder in trained.run.data_folders(config.split)}
    asked = {Path(folder).resolve(): None for folder in config.data_folders}
    largest = max((arrays.num_examples for arrays in dataset.sets.values()), default=0)
    sample, has_chains = config.max_examples, max(config.chains) > 1
    perturb = f"{config.perturb}{config.noise if config.perturb == 'noise' else ''}"
    arch, steps = trained.run.arch, config.arch_overrides.halt_max_steps
    overrides = dict(_values_that_differ(config.arch_overrides, arch))
    if steps is not None:  # Evaluations may have a setting of their own.
        overrides[f"halt_max_steps-{steps}"] = arch.with_depth(steps) != arch
    parts = [
        *((folder.name, own and own != asked.keys()) for folder in asked),
        (config.split, config.split != "test"),
        ("at_halt", config.halting == "q"),
        ("thinking", config.thinks_longer and not config.probes),
        ("-".join(["inside", *map(_named, config.probes)]), bool(config.probes)),
        (f"depth{_joined(config.steps or [])}", config.steps is not None),
        (f"breadth{_joined(config.chains)}", has_chains),
        (perturb, has_chains),
        ("-".join(dict.fromkeys(config.select)), config.select != ["q"]),
        ("last_weights", config.weights == "last" and trained.has_average),
        (f"first{sample}", sample is not None and sample < largest),
        *overrides.items(),
    ]
    if config.energy.data_path:
        parts.append((Path(config.energy.data_path).name, True))
    parts += _values_that_differ(config.energy, EnergySettings(), {"puzzles", "split"})
    if config.search.chains:
        names = {"backtrack", "caution", "control", "checks"}
        parts += _values_that_differ(config.search, EvalSearchSettings(), names)
    return [part for part, is_so in parts if is_so]


def _named(probe: ProbeConfig) -> str:
    """Return the name of a probe and its changed settings."""
    changed = probe.model_dump(exclude={"name"}, exclude_defaults=True)
    return "-".join([probe.name, *(f"{name}-{value}" for name, value in changed.items())])


def _joined(numbers: Sequence[int]) -> str:
    return "-".join(map(str, sorted(set(numbers))))


def _values_that_differ(
    asked: Schema, usual: object, names: set[str] | None = None
) -> list[tuple[str, bool]]:
    """Return NAME-VALUE of each setting that is not None, and whether it differs from `usual`."""
    values = asked.model_dump(include=names, exclude_none=True)
    return [
        (f"{name}-{str(value).lower()}", value != getattr(usual, name))
        for name, value in values.items()
    ]


def output_path(config: EvalConfig, trained: TrainedModel, differs: Sequence[str]) -> Path:
    """Return the path of the JSON file: by default eval_step_N.json in `output_folder`. Its name
    also has the parts of `differs`, the search, the evaluators if they are not the run's, and the
    seed if it is not 0.
    """
    if config.output is not None:
        return Path(config.output)
    parts = ["eval", trained.weights.name, *differs]
    if config.search.chains:
        parts.append(f"search{config.search.chains}x{config.search.rounds}")
    usual = trained.run.usual_evaluators
    if config.evaluators is not None and config.evaluators != usual:
        names = [evaluator.name for evaluator in config.evaluators]
        parts.append("-".join(["evaluators", *(names or ["none"])]))
    if config.seed:
        parts.append(f"seed{config.seed}")
    return output_folder(config.checkpoint, trained.weights) / f"{'_'.join(parts)}.json"


def output_folder(checkpoint: Path | str, weights: Path) -> Path:
    """Return the usual folder for evaluations of weights: the run's folder, for models of the Hub
    outputs/OWNER--NAME, for those of the zoo outputs/zoo--NAME.
    """
    address = parse_address(checkpoint)
    return weights.parent if address is None else Path("outputs", address.folder_name)


def require_writable(output: Path) -> None:
    """Create the folder of `output`; raise ConfigError if the file cannot be written."""
    try:
        if output.is_dir():
            raise ConfigError(f"output={output}: is a folder; expected the name of a file")
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=output.name):
            pass
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error.strerror}") from None


def beside(output: Path, ending: str) -> Path:
    """Return the path of a further file of a result: x.json becomes x and the ending. Another
    suffix stays, so that the files of a.v1 and a.v2 differ.
    """
    return output.with_name(output.name.removesuffix(".json") + ending)
