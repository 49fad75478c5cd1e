"""Weights from a checkpoint of ours or from a published one."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from models.act import ACTLossHead
from runtime.errors import CheckpointError
from training.checkpoint.archive import read_state_dict
from training.checkpoint.published import average_of
from training.checkpoint.store import EMA, MODEL, load_checkpoint
from training.checkpoint.tensors import COMPILED_PREFIX, load_tensors, restore_model

_PUZZLE_TABLE = "model.inner.puzzle_emb.weights"


def load_weights(path: Path, *, averaged: bool = True) -> dict[str, Tensor]:
    """Read model weights from a checkpoint of ours or a published `step_N` file.

    Published files are pickles, and are never unpickled: see `training.checkpoint.archive`.

    Args:
        averaged: take the moving average where the checkpoint has one, which is what it was
            evaluated with and what a published file of TRM's holds; otherwise the last step's.
    Returns:
        tensors by key, without the prefix that torch.compile adds.
    Raises:
        CheckpointError: missing, damaged, or not a state dict.
    """
    if path.is_dir():
        tensors = load_tensors(load_checkpoint(path).path / MODEL)
        if averaged and (path / EMA).exists():
            tensors |= load_tensors(path / EMA)
        return tensors
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint")
    if averaged and average_of(path).exists():
        path = average_of(path)
    return {
        key.removeprefix(COMPILED_PREFIX): value for key, value in read_state_dict(path).items()
    }


def load_start_weights(model: ACTLossHead, path: Path, warn: Callable[[str], None]) -> None:
    """Start a model from trained weights; nothing else of the checkpoint is used.

    A puzzle embedding of another size knows other puzzles: every row starts as the mean of the old
    ones, with a warning.

    Raises:
        CheckpointError: lists the keys that are missing, unknown or of another shape.
    """
    tensors = load_weights(path)
    embedding, old = model.puzzle_embedding, tensors.get(_PUZZLE_TABLE)
    if embedding is not None and old is not None and old.ndim == 2:
        rows, width = embedding.weights.shape
        if old.shape[0] != rows and old.shape[1] == width:
            sizes = f"{old.shape[0]} rows, this data set {rows}"
            warn(f"{path}: its puzzle embedding has {sizes}: all start at their mean")
            tensors[_PUZZLE_TABLE] = old.float().mean(0, keepdim=True).expand(rows, width).clone()
    restore_model(model, tensors, path)
