"""Write checkpoints of ours in the published format; every tensor keeps its bytes.

A published folder holds `all_config.yaml` and for each checkpoint a pickled state dict `step_N`.
The moving average of the weights, if there is one, gets its own file `step_N_ema`. TRM's trainer
saves only the average, as `step_N`: rename the file to get the same.
"""

import io
from pathlib import Path
from typing import Any

import torch
import yaml

from runtime.errors import CheckpointError, ConfigError, disk_errors
from runtime.files import write_together
from training.checkpoint import published
from training.checkpoint.tensors import COMPILED_PREFIX, load_weights
from training.checkpoint.trained_model import TrainedModel


def to_published(trained: TrainedModel, folder: Path) -> list[Path]:
    """Write a checkpoint of ours as `step_N`, `all_config.yaml` and, with an average, `step_N_ema`;
    return these files. The keys have the prefix of a compiled model, as published trainers write.

    Raises:
        ConfigError: no published architecture computes the same, or a file exists already.
        CheckpointError: the disk refused.
    """
    content = yaml.safe_dump(_published_settings(trained), sort_keys=False)
    weights, described = folder / f"step_{trained.step}", folder / published.CONFIG_FILE
    own = {weights: False} | ({published.average_of(weights): True} if trained.has_average else {})
    with disk_errors(folder, CheckpointError):
        for path in own:
            if path.exists():
                raise ConfigError(f"{path} exists already; choose another output folder")
        if described.exists() and described.read_text() != content:
            raise ConfigError(f"{described} is of another run; choose another output folder")
        folder.mkdir(parents=True, exist_ok=True)
        files = {path: _as_published(trained, averaged=averaged) for path, averaged in own.items()}
        write_together({**files, described: content})
    return [*own, described]


def _as_published(trained: TrainedModel, *, averaged: bool) -> bytes:
    tensors = load_weights(trained.weights, averaged=averaged)
    # Not into the file itself: torch's message does not say that a disk is full.
    file = io.BytesIO()
    torch.save({f"{COMPILED_PREFIX}{name}": value for name, value in tensors.items()}, file)
    return file.getvalue()


def _published_settings(trained: TrainedModel) -> dict[str, Any]:
    run, train = trained.run, trained.run.data_folders("train")
    settings: dict[str, Any] = {"arch": published.published_arch(run.arch)}
    if train:
        # HRM's trainer reads the first key, TRM's the others.
        settings |= {"data_path": train[0], "data_paths": train}
    settings["data_paths_test"] = run.data_paths_test or []
    # Published trainers have no other evaluator.
    names = [evaluator.name for evaluator in run.active_evaluators]
    settings["evaluators"] = [{"name": "arc@ARC"}] if "arc" in names else []
    for key in published.PUBLISHED_KEYS:
        if trained.settings.get(key) is not None:
            settings.setdefault(key, trained.settings[key])
    assert trained.facts is not None, "a checkpoint of ours has facts"
    return settings | {published.FACTS_KEY: trained.facts.to_dict()}
