"""The run's folder: its name, its creation, and the checkpoint to resume. Imports no torch."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml
from coolname import generate_slug
from pydantic import ValidationError

from models.config import DataFacts
from runtime.errors import CheckpointError, ConfigError, disk_errors
from runtime.files import sha256, write_atomically
from runtime.text import shown
from training.checkpoint import store
from training.checkpoint.store import Checkpoint, checkpoint_path, list_steps, load_checkpoint
from training.config.schema import LoggerConfig, TrainConfig, changed_keys, in_present_terms

if TYPE_CHECKING:
    from runtime.ranks import Ranks

CONFIG_FILE = "config.yaml"
Warn = Callable[[str], None]


def with_names(config: TrainConfig) -> TrainConfig:
    """Fill in missing names as published: "DATA ACT-torch" for the project, "ARCH RANDOM-WORDS" for
    the run, and checkpoints/PROJECT/RUN, with dashes for spaces, for the folder.
    """
    project = config.project_name or f"{Path(config.train_paths[0]).name.capitalize()} ACT-torch"
    if config.run_name is None and config.checkpoint_path is not None:
        run = Path(os.path.abspath(config.checkpoint_path)).name  # Also of ".".
    else:
        run = config.run_name or f"{config.arch.name} {generate_slug(2)}"
    named = Path("checkpoints") / project / run
    if not named.is_dir():  # Earlier versions wrote names with spaces.
        named = Path("checkpoints", *(part.replace(" ", "-") for part in (project, run)))
    folder = config.checkpoint_path or str(named)
    names = {"project_name": project, "run_name": run, "checkpoint_path": folder}
    return config.model_copy(update=names)


@contextmanager
def placed(config: TrainConfig, say: Callable[[str], None]) -> Iterator[TrainConfig]:
    """Yield the configuration to train by, with all names. A dry run gets a temporary folder beside
    the run's, or in the nearest folder above it, and no loggers or callbacks; the folder is removed
    at the end.
    """
    config = with_names(config)
    if not config.dry_run:
        yield config
        return
    run_dir = Path(str(config.checkpoint_path))
    above = next(folder for folder in run_dir.absolute().parents if folder.is_dir())
    with disk_errors(above, ConfigError):
        temporary = TemporaryDirectory(prefix=".dry-run-", dir=above, ignore_cleanup_errors=True)
    own = {"checkpoint_path": str(Path(temporary.name) / run_dir.name), "resume": "auto"}
    own |= {"logger": LoggerConfig(name="jsonl"), "profile": False, "callbacks": []}
    own |= {"limit_eval_batches": min(2, config.limit_eval_batches or 2)}
    with temporary:
        yield config.model_copy(update=own)
    steps = store.list_steps(run_dir)
    held = f", which already has a checkpoint at step {steps[-1]}" if steps else ""
    say(f"its folder would be {run_dir}{held}")


def prepare_run_dir(run_dir: Path) -> None:
    """Create the run's folder; raise ConfigError if that fails or its name is not UTF-8."""
    try:
        str(run_dir).encode()
    except UnicodeEncodeError:
        fault = f"checkpoint_path={shown(run_dir, 300)}: the name is not UTF-8"
        raise ConfigError(f"{fault}: checkpoints could not be read there") from None
    with disk_errors(run_dir, ConfigError):
        run_dir.mkdir(parents=True, exist_ok=True)


def save_config(run_dir: Path, config: TrainConfig) -> None:
    """Write the resolved configuration into the run's folder, or raise CheckpointError."""
    path = run_dir / CONFIG_FILE
    with disk_errors(path, CheckpointError):
        write_atomically(path, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def find_checkpoint(
    config: TrainConfig, run_dir: Path, facts: DataFacts, fingerprint: str, warn: Warn
) -> Checkpoint | None:
    """Return the verified checkpoint to resume, or None for a new run.

    Raises:
        ConfigError: resume=never, but the folder has checkpoints.
        CheckpointError: the checkpoint is damaged, or its run has settings or data that would
            change the result.
    """
    store.put_back_replaced(run_dir)
    if config.resume == "never":
        if list_steps(run_dir):
            instead = "choose another checkpoint_path, or resume=auto"
            raise ConfigError(f"resume=never: {run_dir} already holds checkpoints; {instead}")
        return None
    if config.resume == "auto":
        checkpoint = store.newest_good(run_dir, warn)
    else:
        checkpoint = load_checkpoint(checkpoint_path(run_dir, config.resume))
    if checkpoint is not None:
        _require_same_run(config, checkpoint, facts, fingerprint, warn)
    return checkpoint


def agree_on_checkpoint(found: Checkpoint | None, ranks: "Ranks") -> Checkpoint | None:
    """Return, on every rank, the checkpoint that rank 0 found, or None if it found none. If a rank
    sees a different or damaged checkpoint at that path, raise CheckpointError on every rank.
    """
    chosen = ranks.broadcast_object(found and (found.path, sha256(found.path / store.MANIFEST)))
    if chosen is None:
        return None
    (path, manifest), fault = chosen, None
    if not ranks.is_main:
        try:
            found = load_checkpoint(path)
            if sha256(path / store.MANIFEST) != manifest:
                raise CheckpointError(f"{path}: differs from what rank 0 sees there")
        except (CheckpointError, OSError) as error:
            fault = f"rank {ranks.rank}: {error}"
    faults = [fault for fault in ranks.gather_objects(fault) if fault]
    if faults:
        raise CheckpointError("; ".join(faults))
    return found


def rename_newer(run_dir: Path, step: int) -> list[Path]:
    """Rename the checkpoints after `step` to `abandoned_step_N`, so that no start resumes them, and
    return the new paths.
    """
    moved = []
    for path in (checkpoint_path(run_dir, newer) for newer in list_steps(run_dir) if newer > step):
        targets = (path.with_name(f"abandoned_{path.name}{f'_{n}' * (n > 0)}") for n in count())
        moved.append(path.rename(next(target for target in targets if not target.exists())))
    return moved


def _require_same_run(
    config: TrainConfig, checkpoint: Checkpoint, facts: DataFacts, fingerprint: str, warn: Warn
) -> None:
    state = checkpoint.state
    if state.weights_only:
        raise CheckpointError(
            f"{checkpoint.path} holds weights only, so no run can resume from it; start a new run "
            f"with load_checkpoint={checkpoint.path} and another checkpoint_path"
        )
    known = store.read_facts(state.facts)
    if known is None or replace(known, kind=facts.kind) != facts:  # Older records have no kind.
        raise CheckpointError(
            f"{checkpoint.path} does not fit the data: it was trained with "
            f"{shown(state.facts, 300)}, the data have {facts.to_dict()}"
        )
    saved = in_present_terms(state.config or {}, training=True)
    with suppress(ValidationError):
        # Adds defaults for settings that are newer than the checkpoint.
        saved = TrainConfig.model_validate(saved).model_dump(mode="json")
    changes = changed_keys(saved, config.model_dump(mode="json"))
    if state.data_fingerprint != fingerprint:
        changes.append("the content of the training data")
    if changes:
        other = f"a run with other settings: {'; '.join(changes)}"
        if not config.resume_changed:
            raise CheckpointError(
                f"{checkpoint.path} was saved by {other}. Use the old ones, another "
                "checkpoint_path, or resume_changed=true"
            )
        warn(f"resuming {other}")
