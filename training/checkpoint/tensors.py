"""What a run is made of as tensors by name: to be written, read, and put back."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from models.act import ACTCarry, ACTLossHead
from runtime.errors import CheckpointError
from runtime.ranks import Ranks
from training.checkpoint.archive import read_state_dict
from training.checkpoint.published import average_of
from training.checkpoint.store import EMA, MODEL, load_checkpoint
from training.optim.groups import ParamGroup

_MAX_FAULTS = 100
COMPILED_PREFIX = "_orig_mod."
_ALL_RANKS = "all"
_PUZZLE_TABLE = "model.inner.puzzle_emb.weights"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and persistent buffers by published key, on the CPU."""
    return {
        name.removeprefix(COMPILED_PREFIX): value.detach().cpu().contiguous()
        for name, value in model.state_dict().items()
    }


def optimizer_tensors(optimizer: Optimizer | None, groups: list[ParamGroup]) -> dict[str, Tensor]:
    """Return the optimizer's state by `PARAMETER.QUANTITY`, on the CPU; {} before step 1."""
    if optimizer is None:
        return {}
    return {
        f"{name}.{key}": value.detach().cpu().contiguous()
        for group in groups
        for name, parameter in group.params.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: Optimizer | None, groups: list[ParamGroup], tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` returned; CheckpointError: it does not fit."""
    own = {name: parameter for group in groups for name, parameter in group.params.items()}
    saved = {key.rpartition(".")[0] for key in tensors}
    if unknown := saved - own.keys():
        raise CheckpointError(
            f"optimizer state of unknown parameters: {', '.join(sorted(unknown))}"
        )
    if tensors and (missing := own.keys() - saved):
        raise CheckpointError(f"optimizer state of {min(missing)} is missing")
    for key, value in tensors.items():
        assert optimizer is not None, "there are groups"
        name, _, quantity = key.rpartition(".")
        shape, expected = tuple(value.shape), tuple(own[name].shape)
        if value.ndim and shape != expected:
            raise CheckpointError(f"optimizer state {key} has shape {shape}, not {expected}")
        kept = optimizer.state[own[name]]
        if quantity in kept:  # The optimizer may have joined it with others.
            kept[quantity].copy_(value)
        else:  # A copy, because what safetensors reads is mapped from the file.
            kept[quantity] = value.to(own[name].device, copy=True)


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Load weights by key; CheckpointError: as `require_fit`."""
    require_fit(model, tensors, source)
    model.load_state_dict(dict(tensors))


def require_fit(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Raise CheckpointError, which lists missing and unknown keys and other shapes, if any."""
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
        told = faults[:_MAX_FAULTS] + [f"and {len(faults)} in all"] * (len(faults) > _MAX_FAULTS)
        raise CheckpointError(f"{source} does not fit the model: {'; '.join(told)}")


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


def gather_carry(carry: ACTCarry, ranks: Ranks) -> dict[str, Tensor]:
    """Return the carry of all ranks in global row order; {} on ranks other than the first."""
    rows = {name: ranks.gather_rows(value) for name, value in carry.tensors().items()}
    return {name: value for name, value in rows.items() if value is not None}


def load_carry(path: Path, ranks: Ranks, template: ACTCarry) -> ACTCarry | None:
    """Read this rank's rows of a saved carry, for any number of ranks; None when it belongs to
    another global batch size or architecture.
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
    # Copies, because what safetensors reads is mapped from the file.
    parts = {name: saved[name][own].to(like.device, copy=True) for name, like in wanted.items()}
    return ACTCarry.from_tensors(parts)


def gather_rng(ranks: Ranks, *, same_on_all: bool = False) -> dict[str, Tensor]:
    """Return torch's random states of all ranks, from which dropout and a user's modules draw.

    With `same_on_all` one state stands for all ranks, however many there will be.
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
    """Put back this rank's random states, where the checkpoint has them."""
    for owner in (_ALL_RANKS, f"rank{ranks.rank}"):
        if (state := tensors.get(f"{owner}.cpu")) is not None:
            torch.set_rng_state(state)
        if ranks.device.type == "cuda" and (state := tensors.get(f"{owner}.cuda")) is not None:
            torch.cuda.set_rng_state(state, ranks.device)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU; CheckpointError: it is missing or none."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def tensor_writer(tensors: dict[str, Tensor]) -> Callable[[Path], None]:
    """Return a function that writes tensors as safetensors to a path, or raises OSError."""

    def write(path: Path) -> None:
        try:
            save_file(tensors, path)
        except SafetensorError as error:  # Its way of saying that the disk is full.
            raise OSError(str(error)) from error

    return write
