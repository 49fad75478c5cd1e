"""The parts of a run as named tensors: collect, write, read and restore them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from models.act import ACTCarry, ACTLossHead
from runtime.errors import CheckpointError
from runtime.ranks import Ranks
from training.checkpoint.archive import read_state_dict
from training.checkpoint.published import average_of
from training.checkpoint.store import EMA, MODEL, load_checkpoint
from training.optim.adam_atan2 import AdamATan2, PackageAdamATan2
from training.optim.groups import ParamGroup
from training.optim.muon import Muon

_MAX_FAULTS = 100
COMPILED_PREFIX = "_orig_mod."
_ALL_RANKS = "all"
_PUZZLE_TABLE = "model.inner.puzzle_emb.weights"
# Their states have the shape of the weight, or none. A subclass may keep others.
_OF_WEIGHTS_SHAPE = (AdamATan2, PackageAdamATan2, AdamW, Muon)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and persistent buffers on the CPU, by published key."""
    return {
        name.removeprefix(COMPILED_PREFIX): value.to("cpu").contiguous()
        for name, value in model.state_dict().items()
    }


def optimizer_tensors(optimizer: Optimizer | None, groups: list[ParamGroup]) -> dict[str, Tensor]:
    """Return the optimizer's state on the CPU, by `PARAMETER.QUANTITY`; {} before step 1."""
    if optimizer is None:
        return {}
    return {
        f"{name}.{key}": value.detach().to("cpu").contiguous()
        for group in groups
        for name, parameter in group.params.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: Optimizer | None, groups: list[ParamGroup], tensors: Mapping[str, Tensor]
) -> None:
    """Restore the result of `optimizer_tensors`; raise CheckpointError if it does not fit."""
    own = {name: parameter for group in groups for name, parameter in group.params.items()}
    saved = {key.rpartition(".")[0] for key in tensors}
    if unknown := sorted(saved - own.keys()):
        names = ", ".join(unknown[:3]) + f" and {len(unknown) - 3} more" * (len(unknown) > 3)
        raise CheckpointError(f"optimizer state of unknown parameters: {names}")
    if tensors and (missing := own.keys() - saved):
        raise CheckpointError(f"optimizer state of {min(missing)} is missing")
    for key, value in tensors.items():
        assert optimizer is not None, "there are groups"
        name, _, quantity = key.rpartition(".")
        kept = optimizer.state[own[name]]
        known = own[name] if type(optimizer) in _OF_WEIGHTS_SHAPE else value
        shape, expected = tuple(value.shape), tuple(kept.get(quantity, known).shape)
        if value.ndim and shape != expected:
            raise CheckpointError(f"optimizer state {key} has shape {shape}, not {expected}")
        if quantity in kept:  # It may be a view of a tensor that several parameters share.
            kept[quantity].copy_(value)
        else:  # A copy, because safetensors maps its tensors from the file.
            kept[quantity] = value.to(own[name].device, copy=True)


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Load weights into a model, or raise CheckpointError like `require_fit`."""
    require_fit(model, tensors, source)
    model.load_state_dict(dict(tensors))


def require_fit(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Raise CheckpointError with the keys that are missing, unknown or of another shape, if any."""
    own = model.state_dict()
    faults = [f"{key} is missing" for key in own.keys() - tensors.keys()]
    faults += [f"{key} is unknown to this model" for key in tensors.keys() - own.keys()]
    faults += [
        f"{key} has shape {tuple(value.shape)}, the model has {tuple(own[key].shape)}"
        for key, value in tensors.items()
        if key in own and value.shape != own[key].shape
    ]
    if faults:
        faults.sort()
        first = faults[:_MAX_FAULTS] + [f"and {len(faults)} in all"] * (len(faults) > _MAX_FAULTS)
        raise CheckpointError(f"{source} does not fit the model: {'; '.join(first)}")


def load_weights(path: Path, *, averaged: bool = True) -> dict[str, Tensor]:
    """Return a checkpoint's weights by key, without the prefix that torch.compile adds.

    Args:
        path: a checkpoint of ours, or a published `step_N` file (a pickle, which is never
            unpickled: see `training.checkpoint.archive`).
        averaged: return the moving average if there is one, as evaluations use it; otherwise the
            weights of the last step. TRM's published files hold only the average.
    Raises:
        CheckpointError: the checkpoint is missing, damaged, or not a state dict.
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


def load_start_weights(
    model: ACTLossHead,
    path: Path,
    warn: Callable[[str], None],
    puzzle_rows: Literal["mean", "zero"] | int | None = None,
) -> None:
    """Load trained weights into a new run's model, or raise CheckpointError like `require_fit`.

    Args:
        puzzle_rows: what all rows of the puzzle embedding start at: the mean of the trained rows,
            0, or one of them. None: the trained rows; if their number differs, the puzzles differ
            too, and all rows start at the mean, with a warning.
    """
    tensors = load_weights(path)
    embedding, old = model.puzzle_embedding, tensors.get(_PUZZLE_TABLE)
    if embedding is not None and old is not None and old.ndim == 2:
        rows, width = embedding.weights.shape
        if puzzle_rows is None and old.shape[0] != rows and old.shape[1] == width:
            sizes = f"{old.shape[0]} rows, this data set {rows}"
            warn(f"{path}: its puzzle embedding has {sizes}: all start at their mean")
            puzzle_rows = "mean"
        if isinstance(puzzle_rows, int) and puzzle_rows >= len(old):
            has = f"its puzzle embedding has the rows 0 to {len(old) - 1}"
            raise CheckpointError(f"{path}: load_puzzle_rows={puzzle_rows}: {has}")
        if puzzle_rows is not None:
            wide = old.float()
            start = wide.mean(0) * (puzzle_rows == "mean")
            start = wide[puzzle_rows] if isinstance(puzzle_rows, int) else start
            tensors[_PUZZLE_TABLE] = start.expand(rows, -1).clone()
    restore_model(model, tensors, path)


def gather_carry(carry: ACTCarry, ranks: Ranks) -> dict[str, Tensor]:
    """Return the carry of all ranks in global row order on rank 0, and {} on other ranks."""
    rows = {name: ranks.gather_rows(value) for name, value in carry.tensors().items()}
    return {name: value for name, value in rows.items() if value is not None}


def load_carry(path: Path, ranks: Ranks, template: ACTCarry) -> ACTCarry | None:
    """Return this rank's rows of a carry that any number of ranks saved; None if its batch size or
    architecture differ from `template`, this rank's carry.
    """
    saved, wanted, rows = load_tensors(path), template.tensors(), len(template.steps)
    found = {name: (value.dtype, value.shape) for name, value in saved.items()}
    of_all = {
        name: (like.dtype, (rows * ranks.world_size, *like.shape[1:]))
        for name, like in wanted.items()
    }
    if found != of_all:
        return None
    own = slice(ranks.rank * rows, (ranks.rank + 1) * rows)
    # Copies, because safetensors maps its tensors from the file.
    parts = {name: saved[name][own].to(like.device, copy=True) for name, like in wanted.items()}
    return ACTCarry.from_tensors(parts)


def gather_rng(ranks: Ranks, *, same_on_all: bool = False) -> dict[str, Tensor]:
    """Return torch's random states of all ranks, used by dropout and users' modules. With
    `same_on_all`, return one state that is valid for any number of ranks.
    """
    states = {"cpu": torch.get_rng_state()}
    if ranks.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(ranks.device)
    if same_on_all:
        return {f"{_ALL_RANKS}.{kind}": state for kind, state in states.items()}
    of_all = ranks.gather_objects({kind: state.numpy() for kind, state in states.items()})
    return {
        f"rank{rank}.{kind}": torch.from_numpy(state)
        for rank, own in enumerate(of_all)
        for kind, state in own.items()
    }


def restore_rng(tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Restore this rank's random states, if the checkpoint has them."""
    for owner in (_ALL_RANKS, f"rank{ranks.rank}"):
        if (state := tensors.get(f"{owner}.cpu")) is not None:
            torch.set_rng_state(state)
        if ranks.device.type == "cuda" and (state := tensors.get(f"{owner}.cuda")) is not None:
            torch.cuda.set_rng_state(state, ranks.device)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU; raise CheckpointError if it is missing or damaged."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file, or raise OSError."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # For example, if the disk is full.
        raise OSError(str(error)) from error
