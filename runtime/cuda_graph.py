"""A function of tensors as a CUDA graph: recorded once, then started as a whole."""

import gc
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from runtime.errors import ConfigError

T = TypeVar("T")


class CudaGraph(Generic[T]):
    """Calls `function`; after `WARM_UP` calls it starts a CUDA graph of one in its place.

    What the function reads is among its arguments, or stays where it is in memory, and so does what
    it changes; its results are tensors that the next call overwrites. On the host it does the same
    in every call: numbers of Python are those of the call that was recorded. The first calls are
    real ones. They allocate what stays, and compile; nothing has to be restored after them.

    Args:
        function: takes several dictionaries of tensors on the device, each of the same shapes in
            every call.
        setting: what asks for the graph, if it is true: for messages.
    """

    WARM_UP = 3

    def __init__(self, function: Callable[..., T], setting: str) -> None:
        self._function, self._setting = function, setting
        self._calls = 0
        self._stream: Any = None
        self._arguments: list[dict[str, Tensor]] = []
        self._recorded: tuple[T, Callable[[], None]] | None = None

    def __call__(self, *arguments: Mapping[str, Tensor]) -> T:
        self._calls += 1
        if self._calls <= self.WARM_UP:
            return self._aside(lambda: self._function(*arguments))
        if self._recorded is None:
            self._arguments = [
                {name: given.clone() for name, given in own.items()} for own in arguments
            ]
            self._recorded = self._record(lambda: self._function(*self._arguments))
        for kept, own in zip(self._arguments, arguments, strict=True):
            assert {n: t.shape for n, t in own.items()} == {n: t.shape for n, t in kept.items()}
            for name, given in own.items():
                kept[name].copy_(given)
        result, start = self._recorded
        start()
        return result

    def _aside(self, work: Callable[[], T]) -> T:
        """Run `work` on the stream that will be recorded: what autograd and the libraries keep
        belongs to the stream of its first use. Each stream waits for the other.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = work()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Return the results of `work`, which are not yet computed, and what computes them."""
        graph = torch.cuda.CUDAGraph()
        gc.collect()  # What it would free meanwhile could break the recording.
        try:
            # The stream is set twice, because a recording that fails leaves it set.
            with torch.cuda.stream(self._stream), torch.cuda.graph(graph, stream=self._stream):
                result = work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # The end of the recording fails too, and hides what broke it.
            reason = str(error.__context__ or error).partition("\n")[0]
            raise ConfigError(
                f"{self._setting}=true: this cannot be recorded as a CUDA graph ({reason}); use "
                f"{self._setting}=false"
            ) from error
        return result, graph.replay
