"""Exponential moving average of the weights (arXiv:2510.04871); not of buffers, as published."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from runtime.errors import CheckpointError


class WeightAverage:
    """average = rate * average + (1 - rate) * weight, after every step; starts with the weights."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.rate = rate
        self._weights = {name: p.detach() for name, p in model.named_parameters()}
        self._average = {name: weight.clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, skip: Tensor) -> None:
        """Update the average after a step, unless `skip` (bool []) is true."""
        average, weights = list(self._average.values()), list(self._weights.values())
        difference = torch._foreach_sub(weights, average)
        torch._foreach_mul_(difference, 1 - self.rate)
        for change in difference:
            change.masked_fill_(skip, 0.0)  # Multiplying by 0 would keep NaN.
        torch._foreach_add_(average, difference)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Let the model use the average inside the block, and its own weights again after it."""
        kept = {name: weight.clone() for name, weight in self._weights.items()}
        _copy(self._average, self._weights)
        try:
            yield
        finally:
            _copy(kept, self._weights)

    def tensors(self) -> dict[str, Tensor]:
        """Return the average by the names of the parameters, on the CPU, for checkpoints."""
        return {name: value.cpu().contiguous() for name, value in self._average.items()}

    def restore(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        """Set the average to `tensors`, as `tensors()` returned them; `source` is their file.

        Raises:
            CheckpointError: names the parameters that are missing, unknown or of another shape.
        """
        own = {name: value.shape for name, value in self._average.items()}
        given = {name: value.shape for name, value in tensors.items()}
        faults = sorted(n for n in own.keys() | given.keys() if own.get(n) != given.get(n))
        if faults:
            raise CheckpointError(f"{source} does not fit the model: {', '.join(faults)}")
        _copy(tensors, self._average)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
