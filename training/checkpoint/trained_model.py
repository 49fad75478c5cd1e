"""Trained models on disk, ours and published ones: find and check them without torch, then load
them. `evaluate.py` and `scripts/solve.py` start here, without a training set or an optimizer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dataset.format.schema import IDENTIFIERS_NAME
from models.architectures import ArchConfig
from models.config import DataFacts
from runtime.errors import CheckpointError, ConfigError, disk_errors
from runtime.files import sha256
from runtime.schema import Count, NonNegativeFloat
from runtime.text import shown
from training.checkpoint import store
from training.checkpoint.addresses import parse_address
from training.checkpoint.published import CONFIG_FILE, FACTS_KEY, average_of, read_published_config
from training.checkpoint.store import read_facts
from training.config.explain import validate
from training.config.schema import DataConfig, DataSettings, in_present_terms

if TYPE_CHECKING:
    import torch

    from models.act import ACTLossHead
    from puzzle_dataset import PuzzleDataset

_STEP_NAME = re.compile(r"step_(\d+)")


class RecordedRun(DataSettings, extra="ignore"):
    """The settings of a recorded run that evaluation needs. The architecture must be valid; other
    settings may be of any version.
    """

    arch: ArchConfig
    global_batch_size: Count = 768
    lr: NonNegativeFloat = 1e-4

    @field_validator("data")
    @classmethod
    def _keep_no_commands(cls, data: DataConfig | None) -> DataConfig | None:
        return data and _with_our_command(data)


def _with_our_command(data: DataConfig) -> DataConfig:
    """Drop a stranger's build command, which messages would show as our advice. Models are shared
    without it: add ours if name and path are those of a data set of ours.
    """
    from training.config.source import CONFIG_DIR, read_yaml

    files = {path.stem: path for path in (CONFIG_DIR / "data").glob("*.yaml")}
    file, builder = files.get(data.name), data.builder
    if file is None:
        builder = None
    elif builder is None:
        ours = DataConfig.model_validate(read_yaml(file))
        builder = ours.builder if ours.path == data.path else None
    return data.model_copy(update={"builder": builder})


@dataclass(frozen=True)
class TrainedModel:
    """Weights on disk and the settings of their run.

    Attributes:
        weights: a checkpoint's folder, or a published file.
        facts: the facts of its training data; None if a published file does not record them.
        step: optimizer steps done; None if the file's name does not tell.
        settings: the recorded configuration, as its version of the code wrote it.
        origin: the address if it has one, from the Hub with its commit; else None.
    """

    weights: Path
    run: RecordedRun
    facts: DataFacts | None
    step: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None = None

    @property
    def is_published(self) -> bool:
        return self.weights.is_file()

    def digest(self) -> str:
        """Return the sha256 of a published file, or of a checkpoint's manifest."""
        return sha256(self.weights if self.is_published else self.weights / store.MANIFEST)

    @property
    def cells(self) -> int | None:
        """The cells of each puzzle that it reads; None: any number, or not recorded."""
        return None if self.run.arch.any_canvas or self.facts is None else self.facts.seq_len

    @property
    def has_average(self) -> bool:
        average = average_of(self.weights) if self.is_published else self.weights / store.EMA
        return average.exists()

    @property
    def may_halt(self) -> bool:
        """Whether a head may halt. Only the built model knows whether an auxiliary head does."""
        heads = self.run.arch.heads
        return heads.q is not None or bool(heads.auxiliary)

    @property
    def names_file(self) -> Path | None:
        """The file beside the weights with the name of each row of the puzzle embedding, or None.
        Models of the zoo and the Hub have one, because they come without their data.
        """
        file = self.weights / IDENTIFIERS_NAME
        return file if file.exists() else None

    def require_names(self, dataset: "PuzzleDataset") -> None:
        """Raise DatasetError if identifiers of `dataset` have other names in the puzzle embedding.
        A model without one takes any names.
        """
        if self.run.arch.puzzle_emb_ndim:
            dataset.require_names_of(self.run.data_folders("train"), self.names_file)

    def require_fit(self, data: DataFacts, source: str, known: DataFacts | None = None) -> None:
        """Raise CheckpointError if the model cannot read `data`, which `source` names. `known`
        replaces the recorded facts of the training data.
        """
        facts, arch = known or self.facts or data, self.run.arch
        # Data with fewer puzzle identifiers leave rows of the puzzle embedding unused.
        too_many = facts.num_puzzle_identifiers < data.num_puzzle_identifiers
        names = [] if arch.any_canvas else ["vocab_size", "seq_len"]
        names += ["num_puzzle_identifiers"] if arch.puzzle_emb_ndim and too_many else []
        values = [(name, getattr(facts, name), getattr(data, name)) for name in names]
        faults = [f"{name} {own}, not {found}" for name, own, found in values if own != found]
        # If the data lack a field, its reader raises an error later.
        faults += [
            f"the field {name} of shape {facts.fields.get(name)}, not {data.fields[name]}"
            for name in arch.heads.fields.values()
            if name in data.fields and facts.fields.get(name) != data.fields[name]
        ]
        if faults:
            trained_with = f"it was trained with {', '.join(faults)}"
            raise CheckpointError(f"{self.weights} does not fit {source}: {trained_with}")

    def load(
        self,
        arch: ArchConfig,
        data: DataFacts,
        source: str,
        device: "torch.device",
        *,
        averaged: bool = True,
    ) -> "ACTLossHead":
        """Return the model with its weights on `device`, in evaluation mode. Imports torch.

        Args:
            arch: the run's architecture, or one with the same weights.
            data: the facts of the data to evaluate on; `source` names them in messages.
            averaged: load the moving average if there is one.
        Raises:
            CheckpointError: the weights are damaged, or do not fit the architecture or the data.
            ConfigError: `arch.attention` cannot run on `device`.
        """
        import torch

        from models.layers import require_backend
        from models.registry import build_model
        from runtime.device import require_room
        from training.checkpoint.tensors import load_weights, require_fit, restore_model
        from training.optim.groups import LOSS_WEIGHTS_PREFIX

        require_backend(arch.kernel, device, arch.forward_dtype)
        tensors = load_weights(self.weights, averaged=averaged)
        facts = self._facts_for(data, tensors, any_canvas=arch.any_canvas)
        self.require_fit(data, source, facts)
        with torch.device("meta"):
            # Takes no memory, whatever size the configuration asks for.
            planned = build_model(arch, facts)
        # The learned weights of losses, which an evaluation does not use: with another number of
        # steps there may be other losses.
        own = {name for name in planned.state_dict() if name.startswith(LOSS_WEIGHTS_PREFIX)}
        kept = {n: t for n, t in tensors.items() if not n.startswith(LOSS_WEIGHTS_PREFIX)}
        tensors = kept | {name: tensors.get(name, torch.zeros(())) for name in own}
        require_fit(planned, tensors, self.weights)
        require_room(planned, self.weights)
        with torch.random.fork_rng(devices=[]):  # Fresh weights are drawn on the CPU.
            model = build_model(arch, facts)
        restore_model(model, tensors, self.weights)
        return model.to(device).eval()

    def _facts_for(
        self, data: DataFacts, tensors: Mapping[str, "torch.Tensor"], *, any_canvas: bool
    ) -> DataFacts:
        """Return the facts to build the model with: those of its training, or else of `data`."""
        facts = self.facts
        if facts is None:
            # Published trainers do not record the number of puzzles.
            table = tensors.get("model.inner.puzzle_emb.weights")
            rows = len(table) if table is not None and table.ndim else 1
            facts = replace(data, num_puzzle_identifiers=rows)
        if any_canvas:
            facts = replace(facts, seq_len=data.seq_len, vocab_size=data.vocab_size)
        return replace(facts, kind=data.kind or facts.kind)


def find_trained_model(path: Path, warn: Callable[[str], None]) -> TrainedModel:
    """Find the model at `path`, and check all that can be checked without torch.

    Args:
        path: a checkpoint's folder, a published `step_N` file, or a run's folder, which stands for
            its newest good checkpoint (in a published run: for its newest `step_N` file or the file
            `checkpoint`). Also an address, hf://OWNER/NAME[@REVISION] or zoo:NAME.
        warn: called with a message for each damaged checkpoint that is skipped.
    Raises:
        CheckpointError: a file is missing, damaged, or of an unknown kind; names it.
    """
    found, origin = _find(path, warn)
    if isinstance(found, store.Checkpoint):
        source = found.path / store.STATE
        facts, settings = read_facts(found.state.facts), found.state.config
        if facts is None:
            raise CheckpointError(f"{source}: has no valid facts of the training data")
        if settings is None:
            raise CheckpointError(f"{source}: has no configuration")
        run = _validate_recorded(settings, source)
        return TrainedModel(found.path, run, facts, found.step, settings, origin)
    settings = read_published_config(found)
    facts = read_facts(settings.pop(FACTS_KEY, None))
    run = _validate_recorded(settings, found.parent / CONFIG_FILE)
    named = _STEP_NAME.fullmatch(found.name.removesuffix("_ema"))
    step = int(named[1]) if named else None
    return TrainedModel(found, run, facts, step, settings, origin)


def find_start_weights(path: Path, warn: Callable[[str], None]) -> Path:
    """Return the checkpoint's folder or published file at `path`, the setting `load_checkpoint`. It
    may be given as in `find_trained_model`, but needs no configuration beside the weights.
    """
    try:
        found, _ = _find(path, warn)
    except CheckpointError as error:
        raise CheckpointError(f"load_checkpoint={path}: {error}") from None
    return found.path if isinstance(found, store.Checkpoint) else found


def _find(path: Path, warn: Callable[[str], None]) -> tuple[store.Checkpoint | Path, str | None]:
    """Return a verified checkpoint of ours or a published file, and its origin (see
    `TrainedModel`).
    """
    address, origin = parse_address(path), None
    if address is not None:
        path, origin = address.fetch()
    with disk_errors(path, CheckpointError):
        if path.is_file():
            return path, origin
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such checkpoint or run folder")
        # A run's folder may also be named like a checkpoint.
        named = _STEP_NAME.fullmatch(path.name) and not store.list_steps(path)
        if (path / store.MANIFEST).exists() or named:
            return store.load_checkpoint(path), origin
        found = store.newest_good(path, warn)
        if found is None and (path / CONFIG_FILE).exists():
            found = _newest_published(path)
    if found is None:
        raise CheckpointError(f"{path}: there is no checkpoint in this folder")
    return found, origin


def _newest_published(folder: Path) -> Path | None:
    named = ((_STEP_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_file())
    steps = {int(match[1]): path for match, path in named if match}
    # HRM's authors gave their shared checkpoints this name.
    shared = folder / "checkpoint"
    return steps[max(steps)] if steps else shared if shared.is_file() else None


def _validate_recorded(config: dict[str, Any], source: Path) -> RecordedRun:
    try:
        return validate(RecordedRun, in_present_terms(config, training=False))
    except ConfigError as error:
        had = config.get("plugins")
        named = shown(",".join(map(str, had)), 200) if isinstance(had, list) else ""
        hint = f"; if a plug-in is missing, add plugins=[{named}]" if named else ""
        raise CheckpointError(f"{source}: {error}{hint}") from None
