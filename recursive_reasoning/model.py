"""Load or train a model, let it solve puzzles, and measure it; build data sets."""

import io
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evaluate
import pretrain
from apps.reports.asking import kind_read_by, load_for
from apps.reports.solving import read_puzzles, require_effect
from dataset.kinds.base import Kind, Puzzle
from evaluation.config import EvalConfig, SolveConfig, ThinkingSettings
from evaluation.job import prepare
from runtime.errors import ConfigError, DatasetError
from runtime.registry import import_plugins
from runtime.text import shown
from scripts import build_dataset
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.explain import SchemaT, did_you_mean, validate
from training.config.schema import TrainConfig
from training.tracking import warn

if TYPE_CHECKING:
    from apps.reports.answers import Answer, Step
    from models.act import ACTLossHead

_SOURCES = ("file", "index", "count", "data_path", "split", "set")
_THINKING = (*ThinkingSettings.model_fields, "search", "arch_overrides")


def load(path: str | Path, device: str = "auto", plugins: str | Sequence[str] = ()) -> "Model":
    """Find a trained model and check it; its first puzzle loads torch and the weights.

    Args:
        path: what `checkpoint=` takes: zoo:NAME, a run's folder, a checkpoint, hf://OWNER/NAME, ...
        device: auto, cpu or cuda.
        plugins: your modules that register parts of the model.
    Raises:
        CheckpointError, ConfigError: it cannot be used; the message says why.
    """
    import_plugins([plugins] if isinstance(plugins, str) else plugins)
    config = validate(SolveConfig, {"checkpoint": str(path), "device": device})
    return Model(config, find_trained_model(Path(path), warn))


def train(overrides: str | Sequence[str]) -> "Model":
    """Train as pretrain.py does, ["experiment=dec_sudoku_demo", "epochs=1"], and return the model
    for the same `device`. Ctrl-C saves the run and raises Preempted. Outside the main thread it
    raises RuntimeError.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("train() handles signals: call it in the main thread")
    from runtime.device import undisturbed

    with undisturbed():
        lines = [overrides] if isinstance(overrides, str) else [*overrides]
        config = load_config(TrainConfig, "cfg_pretrain", lines)
        return load(pretrain.run(config), config.device)


def build(overrides: str | Sequence[str]) -> Path:
    """Build a data set as scripts/build_dataset.py does, ["data=NAME"], and return its folder."""
    try:
        return build_dataset.main([overrides] if isinstance(overrides, str) else [*overrides])
    except SystemExit as ending:
        why = ending.__cause__ or "--help belongs on the command line of the builder"
        raise ConfigError(f"data.builder.flags: {why}") from None


class Model:
    """A trained model. `trained` are its weights on disk and the settings of its run."""

    def __init__(self, config: SolveConfig, trained: TrainedModel) -> None:
        self._given, self.trained = config.model_dump(exclude_unset=True), trained
        self._loaded: tuple[Any, ACTLossHead | None] = None, None

    def __repr__(self) -> str:
        trained, path = self.trained, self._given["checkpoint"]
        return f"<Model {path}: {trained.run.arch.name}, step {trained.step}>"

    @cached_property
    def kind(self) -> Kind | None:
        """The kind of puzzles that it reads; None if its checkpoint does not tell."""
        return kind_read_by(self.trained)

    def puzzles(self, **source: Any) -> list[Puzzle]:
        """Read puzzles for this model, as scripts/solve.py does: `file` (an ARC task too), or
        `count` or `index` of the run's data set or of another, by data_path, split and set.
        """
        if not {"file", "index", "count"} & source.keys():
            raise ConfigError("no puzzles: set file=FILE, index=N or count=N")
        config = self._validated(SolveConfig, source, _SOURCES)
        return [puzzle for _, puzzle in read_puzzles(config, self.trained, self.kind)]

    def solve(self, puzzle: str | Puzzle, **settings: Any) -> "Answer":
        """Answer a puzzle, given as text or taken from `puzzles`. The settings are those of
        scripts/solve.py: steps, chains, perturb, noise, select, seed; for a model that searches
        seed and search, {"chains": 16, "rounds": 1000}.
        """
        asked = self._ready(puzzle, settings)
        from apps.reports.answers import answered

        return answered(*asked, searches=self.trained.run.arch.searches)

    def think(
        self, puzzle: str | Puzzle, *, record: Sequence[str] = (), **settings: Any
    ) -> "Iterator[Step]":
        """Yield the steps of `solve`. With one chain a step is computed when it is asked for; a
        search and several chains end first, because the last step decides which chain answers.

        Args:
            record: what a step keeps in `recorded`, for one chain: ["z_H"], the latent after it;
                ["z_H.updates"], after each update in it; ["attention"], the weights of its layers.
        """
        asked = self._ready(puzzle, settings)
        from apps.reports.answers import answered, thoughts

        config, searches = asked[-1], self.trained.run.arch.searches
        if searches or config.chains != [1] or config.select == ["first_halt"]:
            if record:
                raise ConfigError("record: only for one chain of a model that does not search")
            return iter(answered(*asked, searches=searches).steps)
        return thoughts(*asked, record=[record] if isinstance(record, str) else record)

    def save_gif(self, puzzle: str | Puzzle, path: str | Path, **settings: Any) -> Path:
        """Solve a puzzle, write the steps as an animation and return its path. Needs Pillow."""
        return self.solve(puzzle, **settings).save_gif(path)

    def evaluate(
        self, folder: str | Path | None = None, *, verbose: bool = False, **settings: Any
    ) -> dict[str, Any]:
        """Measure the model on a data set (None: the run's) as evaluate.py does, with its settings;
        sections are dicts. Return the result, and write it to the same file; verbose: print it.
        """
        accepted = [name for name in EvalConfig.model_fields if name != "checkpoint"]
        own = {} if folder is None else {"data_path": folder}
        job = prepare(self._validated(EvalConfig, own | settings, accepted))
        from runtime.device import undisturbed

        with nullcontext() if verbose else redirect_stdout(io.StringIO()), undisturbed():
            evaluate.run(job)
        return json.loads(job.output.read_bytes())

    def _validated(
        self, schema: type[SchemaT], settings: dict[str, Any], accepted: Sequence[str] = ()
    ) -> SchemaT:
        """Validate settings for this model, with paths as text; `accepted` are their names."""
        for name, value in settings.items():
            if accepted and name not in accepted:
                hint = did_you_mean(name, accepted)
                raise ConfigError(f"unknown setting {name}={shown(value)}{hint}")
        plain = {name: str(v) if isinstance(v, Path) else v for name, v in settings.items()}
        return validate(schema, self._given | plain)

    def _ready(self, puzzle: str | Puzzle, settings: dict[str, Any]) -> tuple[Any, ...]:
        """Check everything, load torch, and return the arguments of `answered`."""
        config = self._validated(SolveConfig, settings, _THINKING)
        arch, cells, name = self.trained.run.arch, self.trained.cells, self.trained.weights
        require_effect(config, arch.searches)
        config.require_model(arch, halts=self.trained.may_halt, name=name)
        if isinstance(puzzle, str):
            text = self._validated(SolveConfig, {"puzzle": puzzle})
            ((_, puzzle),) = read_puzzles(text, self.trained, self.kind)
        if not isinstance(puzzle, Puzzle):
            raise DatasetError(f"puzzle: {shown(puzzle)}; accepted: text, or one of puzzles()")
        if cells not in (None, puzzle.question.size):
            raise DatasetError(f"puzzle: {puzzle.question.size} cells; accepted: {cells}")
        import torch

        from runtime.device import resolve_device

        device = torch.device(resolve_device(config.device))
        needed = config.overrides, puzzle.kind, puzzle.question.shape, puzzle.identifier
        loaded_for, model = self._loaded
        if model is None or loaded_for != needed:
            _, model = load_for([puzzle], self.trained, device, config.overrides)
            self._loaded = needed, model
        config.require_model(arch, halts=model.halting_head is not None, name=name)
        return puzzle, model, device, config
