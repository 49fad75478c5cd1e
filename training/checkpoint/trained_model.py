"""A trained model on disk, ours or a published one: found and checked without torch, then built.

`evaluate.py` and `scripts/solve.py` start here; neither needs the training set or an optimizer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from dataset.kinds import EvaluatorName
from models.config import ArchConfig, DataFacts
from runtime.errors import CheckpointError, ConfigError
from runtime.schema import Count, Schema
from training.checkpoint.published import CONFIG_FILE, FACTS_KEY, average_of, read_published_config
from training.checkpoint.state import read_facts
from training.checkpoint.store import EMA, MANIFEST, STATE, Checkpoint, load_checkpoint, newest_good
from training.config.explain import validate
from training.config.schema import DataConfig, chosen_evaluators

if TYPE_CHECKING:
    import torch

    from models.act import ACTLossHead

_STEP_NAME = re.compile(r"step_(\d+)")


class RecordedRun(Schema):
    """What evaluation needs of a recorded configuration; the other settings may be of any version.

    Attributes:
        arch: the architecture, which must be known in full.
        data: the data set by name, if it had one.
        data_path: as in `TrainConfig`.
        data_paths: as in `TrainConfig`.
        data_paths_test: as in `TrainConfig`.
        evaluators: as in `TrainConfig`.
        global_batch_size: sequences per step, over all ranks.
    """

    model_config = ConfigDict(extra="ignore")

    arch: ArchConfig
    data: DataConfig | None = None
    data_path: str | None = None
    data_paths: list[str] | None = None
    data_paths_test: list[str] | None = None
    evaluators: list[EvaluatorName] | None = None
    global_batch_size: Count = 768

    @property
    def active_evaluators(self) -> list[EvaluatorName]:
        """Evaluators of the run."""
        return chosen_evaluators(self.evaluators, self.data, self.data_folders("test"))

    def data_folders(self, split: str) -> list[str]:
        """Return the folders that hold a split, as the run named them; empty when it named none."""
        train = self.data_paths or ([self.data_path] if self.data_path else [])
        return train if split == "train" else self.data_paths_test or train


@dataclass(frozen=True)
class TrainedModel:
    """Weights on disk with the run that made them.

    Attributes:
        weights: a checkpoint's folder, or a published file.
        run: the recorded configuration.
        facts: of the data that it was trained on; None for a published file, which does not say.
        step: optimizer steps done; None where the file's name does not say.
        settings: the recorded configuration as it was written, by whatever version.
        recorded_facts: `facts`, also of a published file that we wrote.
    """

    weights: Path
    run: RecordedRun
    facts: DataFacts | None
    step: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recorded_facts: DataFacts | None = None

    @property
    def is_published(self) -> bool:
        """Whether the weights are a published file."""
        return self.facts is None

    @property
    def has_average(self) -> bool:
        """Whether there is a moving average beside the weights."""
        average = average_of(self.weights) if self.is_published else self.weights / EMA
        return average.exists()

    def require_fit(self, data: DataFacts, source: str) -> None:
        """Raise CheckpointError when the model cannot read the data; `source` names those."""
        if self.facts is not None:
            self._require_same(self.facts, data, source)

    def load(
        self,
        arch: ArchConfig,
        data: DataFacts,
        source: str,
        device: "torch.device",
        *,
        averaged: bool = True,
    ) -> "ACTLossHead":
        """Build the model and load its weights; loads torch.

        Args:
            arch: that of the run, or one that differs in nothing that has weights.
            data: of the data to be read.
            source: names those.
            device: of the model.
            averaged: take the moving average where there is one.
        Returns:
            the model in evaluation mode on `device`.
        Raises:
            CheckpointError: the weights are damaged, or do not fit the architecture or the data.
            ConfigError: `arch.attention` cannot run on `device`.
        """
        import torch

        from models.attention import require_backend
        from models.registry import build_model
        from runtime.device import require_room
        from training.checkpoint.start_weights import load_weights
        from training.checkpoint.tensors import require_fit, restore_model

        require_backend(arch.attention, device)
        tensors = load_weights(self.weights, averaged=averaged)
        facts = self.facts or _facts_of_weights(self.weights, tensors, data.seq_len)
        self._require_same(facts, data, source)
        with torch.device("meta"):
            # Takes no memory: the configuration may ask for any size.
            planned = build_model(arch, facts)
        require_fit(planned, tensors, self.weights)
        require_room(planned, self.weights)
        model = build_model(arch, facts)
        restore_model(model, tensors, self.weights)
        return model.to(device).eval()

    def _require_same(self, facts: DataFacts, data: DataFacts, source: str) -> None:
        names = ["vocab_size", "seq_len"]
        # With fewer puzzle identifiers in the data, the other rows of the table are not needed.
        if self.run.arch.puzzle_emb_ndim and (
            facts.num_puzzle_identifiers < data.num_puzzle_identifiers
        ):
            names.append("num_puzzle_identifiers")
        known, found = facts.to_dict(), data.to_dict()
        faults = [
            f"{name} {known[name]}, not {found[name]}"
            for name in names
            if known[name] != found[name]
        ]
        # A field that the data lack is missed where it is read.
        faults += [
            f"the field {name} of shape {facts.fields.get(name)}, not {data.fields[name]}"
            for name in self.run.arch.heads.fields.values()
            if name in data.fields and facts.fields.get(name) != data.fields[name]
        ]
        if faults:
            raise CheckpointError(
                f"{self.weights} does not fit {source}: it was trained with {', '.join(faults)}"
            )


def find_trained_model(path: Path, warn: Callable[[str], None]) -> TrainedModel:
    """Find the model at `path` and verify what can be verified without torch.

    Args:
        path: a run's folder (its newest good checkpoint; of a published run its newest `step_N`
            file, or the file `checkpoint`), a checkpoint's folder `step_N`, or a published `step_N`
            file.
        warn: told of damaged checkpoints that were passed over.
    Raises:
        CheckpointError: names the file that is missing, damaged, or of an unknown kind.
    """
    found = _find(path, warn)
    return _own(found) if isinstance(found, Checkpoint) else _published(found)


def find_start_weights(path: Path, warn: Callable[[str], None]) -> Path:
    """Return the checkpoint's folder or the published file that `load_checkpoint` names; takes what
    `find_trained_model` takes, and needs no configuration beside the weights.

    Raises:
        CheckpointError: as there.
    """
    try:
        found = _find(path, warn)
    except CheckpointError as error:
        raise CheckpointError(f"load_checkpoint={path}: {error}") from None
    return found.path if isinstance(found, Checkpoint) else found


def _find(path: Path, warn: Callable[[str], None]) -> Checkpoint | Path:
    """Return a verified checkpoint of ours, or a published file."""
    try:
        if path.is_file():
            return path
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such checkpoint or run folder")
        if (path / MANIFEST).exists() or _STEP_NAME.fullmatch(path.name):
            return load_checkpoint(path)
        checkpoint = newest_good(path, warn)
        if checkpoint is not None:
            return checkpoint
        if (path / CONFIG_FILE).exists() and (newest := _newest_published(path)) is not None:
            return newest
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    raise CheckpointError(f"{path}: there is no checkpoint in this folder")


def _own(checkpoint: Checkpoint) -> TrainedModel:
    source, settings = checkpoint.path / STATE, checkpoint.state.config
    facts = read_facts(checkpoint.state.facts)
    if facts is None:
        raise CheckpointError(f"{source}: does not say what data the model was trained on")
    run = _recorded(settings, source)
    assert isinstance(settings, dict)
    return TrainedModel(checkpoint.path, run, facts, checkpoint.step, settings, facts)


def _published(path: Path) -> TrainedModel:
    settings = read_published_config(path)
    facts = read_facts(settings.pop(FACTS_KEY, None))
    run = _recorded(settings, path.parent / CONFIG_FILE)
    named = _STEP_NAME.fullmatch(path.name.removesuffix("_ema"))
    step = int(named[1]) if named else None
    return TrainedModel(path, run, None, step, settings, facts)


def _newest_published(folder: Path) -> Path | None:
    named = ((_STEP_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_file())
    steps = {int(match[1]): path for match, path in named if match}
    # The checkpoints that HRM's authors shared have this name.
    shared = folder / "checkpoint"
    return steps[max(steps)] if steps else shared if shared.is_file() else None


def _recorded(config: object, source: Path) -> RecordedRun:
    if not isinstance(config, dict):
        raise CheckpointError(f"{source}: has no configuration")
    try:
        return validate(RecordedRun, config)
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from None


def _facts_of_weights(weights: Path, tensors: dict[str, Any], seq_len: int) -> DataFacts:
    """Read off the weights what the published trainers did not write down."""
    head = tensors.get("model.inner.lm_head.weight")
    if head is None or head.ndim != 2:
        raise CheckpointError(f"{weights}: model.inner.lm_head.weight is missing or no matrix")
    table = tensors.get("model.inner.puzzle_emb.weights")
    identifiers = 1 if table is None or table.ndim != 2 else table.shape[0]
    return DataFacts(head.shape[0], seq_len, identifiers)
