"""Exponential moving average of the weights (arXiv:2510.04871); not of buffers, as published."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from runtime.errors import CheckpointError


class WeightAverage:
    """A weight average: after every step, average = rate * average + (1 - rate) * weight."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.rate = rate
        self._weights = dict(model.named_parameters())
        self._names = {p: name for name, p in self._weights.items()}
        self._average = {name: p.detach().clone() for name, p in self._weights.items()}

    def update(self, skip: Tensor, *, without: Collection[nn.Parameter] = ()) -> None:
        """Update the average after a step unless `skip` (bool []) is true; leave out `without`."""
        if names := self._weights.keys() - {self._names[p] for p in without}:
            averages = [self._average[name] for name in names]
            move_(averages, [self._weights[name] for name in names], self.rate, skip)

    def restart(self) -> None:
        """Set the average to the weights."""
        _copy(self._weights, self._average)

    def joined(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Join the averages of these parameters into one tensor [n], and return it."""
        names = [self._names[parameter] for parameter in parameters]
        whole, parts = join([self._average[name] for name in names])
        self._average.update(zip(names, parts, strict=True))
        return whole

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Let the model use the average inside this context, and its own weights after it."""
        kept = {name: weight.detach().clone() for name, weight in self._weights.items()}
        _copy(self._average, self._weights)
        try:
            yield
        finally:
            _copy(kept, self._weights)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages on the CPU by name."""
        return {name: value.to("cpu").contiguous() for name, value in self._average.items()}

    def restore(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        """Set the average to `tensors` (by parameter name), read from the file `source`.

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
def move_(
    average: list[Tensor], weights: Sequence[Tensor], rate: float, skip: Tensor | None
) -> None:
    """Move an average towards the weights, unless `skip` (bool []) is true."""
    difference = torch._foreach_sub(list(weights), average)
    torch._foreach_mul_(difference, 1 - rate)
    if skip is not None:
        for change in difference:
            change.masked_fill_(skip, 0.0)  # Multiplying by 0 would keep NaN.
    torch._foreach_add_(average, difference)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def join(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copy `tensors` into one [n]; return it and a view for each. A single tensor is not copied."""
    if len(tensors) == 1:
        return tensors[0], list(tensors)
    whole = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    parts = whole.split([tensor.numel() for tensor in tensors])
    return whole, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
